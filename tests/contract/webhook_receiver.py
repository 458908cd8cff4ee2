"""An HTTPS endpoint of a customer's, at https://127.0.0.1/, that keeps what it is sent.

Only the far edge is made up: connections to port 443 of loopback are forwarded to
the port that the receiver could get, and its certificate's authority is one of the
authorities that the service trusts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from pipelines.net.safe_http import tls_context
from tests.pipelines.net.fetch_servers import Authority

ADDRESS = "127.0.0.1"
URL = f"https://{ADDRESS}/hook"


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery as it came; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """Answers every delivery with ``status`` after ``delay_seconds``."""

    port: int = 0
    status: int = 204
    delay_seconds: float = 0.0
    received: list[Received] = field(default_factory=list)
    leaving: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        self.status, self.delay_seconds = 204, 0.0
        self.received.clear()

    @property
    def last(self) -> Received:
        return self.received[-1]


@contextlib.contextmanager
def receiving(folder: Path) -> Iterator[Receiver]:
    """A receiver that the service can reach at ``URL`` for the block."""
    receiver = Receiver()
    authority = Authority.new(folder)
    server = ThreadingHTTPServer((ADDRESS, 0), _handler(receiver))
    server.socket = authority.server_context(ADDRESS).wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    pem = authority.certificate.public_bytes(Encoding.PEM).decode()
    tls_context().load_verify_locations(cadata=pem)
    with pytest.MonkeyPatch.context() as patch:
        _forward(patch, 443, receiver.port)
        yield receiver
    receiver.leaving.set()
    server.shutdown()
    server.server_close()
    thread.join(120)


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            receiver.leaving.wait(receiver.delay_seconds)
            with contextlib.suppress(OSError):
                self.send_response(receiver.status)
                if 300 <= receiver.status < 400:
                    self.send_header("Location", URL)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Silence: the base class writes to stderr."""

    return Handler


def _forward(patch: pytest.MonkeyPatch, port: int, to_port: int) -> None:
    """Send connections to ``port`` of loopback elsewhere, as a port forwarding would."""
    connect = httpcore.AnyIOBackend.connect_tcp

    async def forwarded(self: Any, host: str, target: int, *rest: Any, **named: Any) -> Any:
        actual = to_port if (host, target) == (ADDRESS, port) else target
        return await connect(self, host, actual, *rest, **named)

    patch.setattr(httpcore.AnyIOBackend, "connect_tcp", forwarded)
