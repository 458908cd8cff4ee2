"""HTTP byte by byte: requests that no client library would send, and what comes back."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.serve_app.running_api import Customer, RunningApi


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it came over the wire; status 0 where the connection was just closed."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def from_application(self) -> bool:
        return "x-request-id" in self.headers


def exchange(api: RunningApi, request: bytes) -> Answer:
    """Send raw bytes, read one answer."""
    parts = urlsplit(api.root)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=120) as connection:
        received = b""
        # Refused before all was sent: the answer may be there all the same.
        with contextlib.suppress(OSError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
    return parse(received)


def parse(received: bytes) -> Answer:
    if not received:
        return Answer(0, {}, b"")
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Answer(int(first.split(" ")[1]), headers, body)


def request(
    customer: Customer,
    *,
    method: bytes = b"POST",
    target: bytes = b"/v1/api/jobs",
    body: bytes = b"",
    headers: tuple[bytes, ...] = (),
    host: bytes = b"video.example.com",
) -> bytes:
    """A request that asks for the connection to be closed."""
    lines = [
        method + b" " + target + b" HTTP/1.1",
        b"Host: " + host,
        b"Connection: close",
        b"X-API-Key: " + customer.key.encode(),
        *headers,
    ]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
        if not any(line.lower().startswith(b"content-type") for line in headers):
            lines.append(b"Content-Type: application/json")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
