"""An HTTPS endpoint of a customer's, at https://127.0.0.1/, that keeps what it is sent.

Only the far edge is made up: connections to port 443 of loopback are forwarded to
the port that the receiver could get, and its certificate's authority is one of the
authorities that the service trusts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from pipelines.net.safe_http import tls_context
from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.receivers import Receiver, status

ADDRESS = "127.0.0.1"
URL = f"https://{ADDRESS}/hook"


@contextlib.contextmanager
def receiving(folder: Path) -> Iterator[Receiver]:
    """A receiver that the service can reach at ``URL`` for the block."""
    authority = Authority.new(folder)
    pem = authority.certificate.public_bytes(Encoding.PEM).decode()
    tls_context().load_verify_locations(cadata=pem)
    made = Receiver(status(204), authority.server_context(ADDRESS), lambda _: None)
    with made.running() as receiver, pytest.MonkeyPatch.context() as patch:
        _forward(patch, 443, receiver.port)
        yield receiver


def _forward(patch: pytest.MonkeyPatch, port: int, to_port: int) -> None:
    """Send connections to ``port`` of loopback elsewhere, as a port forwarding would."""
    connect = httpcore.AnyIOBackend.connect_tcp

    async def forwarded(self: Any, host: str, target: int, *rest: Any, **named: Any) -> Any:
        actual = to_port if (host, target) == (ADDRESS, port) else target
        return await connect(self, host, actual, *rest, **named)

    patch.setattr(httpcore.AnyIOBackend, "connect_tcp", forwarded)
