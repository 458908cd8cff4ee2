"""A small receiver for trying webhooks out: verifies, prints, answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serve_app.webhooks.verifying import VerificationError, verify

MAX_BODY_BYTES = 4 * 1024**2
CONNECTION_SECONDS = 15.0
REFUSED = 401
ACCEPTED = 204
IDS_REMEMBERED = 10_000


@dataclass(slots=True)
class Listener:
    """What is known of deliveries so far; ``say`` prints a line."""

    secrets: Sequence[str]
    """Of the account; without one nothing can be verified."""
    say: Callable[[str], None]
    answers: list[int] = field(default_factory=lambda: [ACCEPTED])
    """Statuses for verified deliveries, in turn; the last one stays."""
    seen: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Judge and print one delivery; return the status to answer with."""
        with self.lock:
            try:
                verdict = self._verdict(headers, body)
            except VerificationError as error:
                self.say(f"{_clock()}  NOT VERIFIED: {error}  -> {REFUSED}")
                return REFUSED
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.say(f"{_clock()}  {verdict}  -> {status}")
            self.say(_pretty(body))
            return status

    def _verdict(self, headers: dict[str, str], body: bytes) -> str:
        verified = "not verified (no --secret)"
        if self.secrets:
            verify(self.secrets, headers, body, time.time())
            verified = "verified"
        event_id = headers.get("webhook-id", "without webhook-id")
        again = ", again: deduplicate by webhook-id" if event_id in self.seen else ""
        if len(self.seen) < IDS_REMEMBERED:
            self.seen.add(event_id)
        return f"{event_id}  {verified}{again}"


def listening_server(
    listener: Listener, address: str, port: int, tls: ssl.SSLContext | None
) -> ThreadingHTTPServer:
    """A bound server; ``serve_forever`` runs it. Raises OSError where the port is taken."""
    server = ThreadingHTTPServer((address, port), _handler(listener, tls))
    server.daemon_threads = True
    return server


def _handler(listener: Listener, tls: ssl.SSLContext | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_SECONDS

        def setup(self) -> None:
            # Here, in the connection's own thread: a slow handshake keeps nobody waiting.
            if tls is not None:
                self.request.settimeout(CONNECTION_SECONDS)
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def do_POST(self) -> None:
            size = self.headers.get("content-length", "")
            if not size.isdigit() or int(size) > MAX_BODY_BYTES:
                self._answer(400)
                return
            body = self.rfile.read(int(size))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._answer(listener.take(headers, body))

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Silence: what came is printed by the listener."""

    return Handler


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _pretty(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        return body.decode("utf-8", errors="replace")
