"""Endpoints of customers: over real TLS, verifying every delivery, answering by script."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

import pytest
from standardwebhooks import webhooks as standard

from serve_app.webhooks.sender import SenderClock
from tests.pipelines.net.fetch_servers import accepting, read_request

LONGEST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery as it came; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def webhook_id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def signed_at(self) -> int:
        return int(self.headers["webhook-timestamp"])

    @property
    def signatures(self) -> list[str]:
        return self.headers["webhook-signature"].split(" ")


Script = Callable[[Delivered, socket.socket], object]
"""Answers one delivery on its connection, as badly as it likes."""


def status(code: int, body: bytes = b"", **headers: object) -> Script:
    """A whole answer with ``code``."""

    def script(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(head(code, content_length=len(body), **headers) + body)

    return script


def in_turn(*scripts: Script) -> Script:
    """One script a delivery; the last one stays."""
    left = list(scripts)

    def script(delivered: Delivered, connection: socket.socket) -> None:
        chosen = left.pop(0) if len(left) > 1 else left[0]
        chosen(delivered, connection)

    return script


def head(code: int, /, **headers: object) -> bytes:
    """A status line and headers, ended."""
    lines = [f"HTTP/1.1 {code} Scripted"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(slots=True)
class Receiver:
    """Takes deliveries on a port of loopback; ``verify`` is asked about each of them."""

    script: Script
    tls: ssl.SSLContext | None
    verify: Callable[[Delivered], None]
    name: str = "127.0.0.1"
    port: int = 0
    received: list[Delivered] = field(default_factory=list)
    refused: list[BaseException] = field(default_factory=list)
    keeps_alive: bool = False
    """Whether it waits for another delivery on a connection."""
    connections: int = 0
    all_left: threading.Event = field(default_factory=threading.Event)
    """Set when a sender has closed a kept connection."""
    leaving: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"https://{self.name}:{self.port}/hook"

    @property
    def last(self) -> Delivered:
        return self.received[-1]

    @contextlib.contextmanager
    def running(self) -> Iterator[Receiver]:
        """Listen for the block; fails at its end if a delivery did not verify."""
        with accepting("127.0.0.1", 0, self._serve) as self.port:
            try:
                yield self
            finally:
                self.leaving.set()
        assert self.refused == []

    def _serve(self, connection: socket.socket) -> None:
        self.connections += 1
        connection.settimeout(LONGEST_SECONDS)
        # Senders that hang up in the middle are what some of these tests are about.
        with contextlib.suppress(OSError), connection:
            if self.tls is None:
                connection.recv(65_536)
                connection.sendall(head(400, content_length=0))
                return
            with self.tls.wrap_socket(connection, server_side=True) as secured:
                while self._take(secured) and self.keeps_alive:
                    pass

    def _take(self, connection: socket.socket) -> bool:
        """Serve one delivery; False if the sender has hung up instead."""
        request = read_request(connection)
        if request is None:
            self.all_left.set()
            return False
        asked, body = request
        delivered = Delivered(asked.target, asked.headers, body)
        try:
            self.verify(delivered)
        except standard.WebhookVerificationError as error:
            self.refused.append(error)
        self.received.append(delivered)
        self.script(delivered, connection)
        return True


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    # Not through TLS, which would say goodbye.
    socket.close(connection.detach())


@dataclass(frozen=True, slots=True)
class Verifier:
    """The official verifier of Standard Webhooks, which trusts any of ``secrets``."""

    secrets: list[str]

    def __call__(self, delivered: Delivered) -> None:
        """Raises WebhookVerificationError unless one of the secrets signed it."""
        last: standard.WebhookVerificationError | None = None
        for secret in self.secrets:
            try:
                standard.Webhook(secret).verify(delivered.body, delivered.headers)
            except standard.WebhookVerificationError as error:
                last = error
            else:
                return
        raise last or standard.WebhookVerificationError("no secret is known")


@contextlib.contextmanager
def receivers_clock(clock: SenderClock) -> Iterator[None]:
    """Let the verifier's watch show the sender's time, which tests move."""

    class Moved(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Moved:
            moved = datetime.now(tz) + clock.ahead
            return cls.fromtimestamp(moved.timestamp(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standard, "datetime", Moved)
        yield
