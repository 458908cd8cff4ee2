"""Servers on loopback for tests of fetching: scripted ones, traps, and a certificate authority."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import itertools
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pipelines.execution.chain import FreeRun
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchedSource, FetchLimits, fetch
from pipelines.types import StageCode, StageError
from storage.objects.folder import FolderStore

_LONGEST_CONNECTION_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a scripted server got it; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def first_byte(self) -> int:
        """Where the requested range begins; 0 without one."""
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


Script = Callable[[Asked, socket.socket], None]
"""Answers one request on one connection, as badly as it likes."""


@dataclass(slots=True)
class ScriptedServer:
    """Hands each connection's request to ``script``; remembers what it was asked."""

    script: Script
    address: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    port: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        with accepting(self.address, self.port, self._serve) as self.port:
            try:
                yield self
            finally:
                self.stopping.set()

    def url(self, target: str = "/clip.mp4", host: str | None = None) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{host or self.address}:{self.port}{target}"

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_LONGEST_CONNECTION_SECONDS)
        # Clients that hang up in the middle are what many of these tests are about.
        with contextlib.suppress(OSError), connection:
            if self.tls is not None:
                connection = self._secured(self.tls, connection)
            with connection:
                request = read_request(connection)
                if request is not None:
                    self.asked.append(request[0])
                    self.script(request[0], connection)

    def _secured(self, context: ssl.SSLContext, connection: socket.socket) -> ssl.SSLSocket:
        def note(_socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            self.server_names.append(name)

        context.sni_callback = note
        return context.wrap_socket(connection, server_side=True)


@contextlib.contextmanager
def accepting(address: str, port: int, serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a listener each of whose connections is served in a thread of its own."""
    with socket.create_server((address, port), backlog=128) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _peer = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(120)


def read_request(connection: socket.socket) -> tuple[Asked, bytes] | None:
    """A whole request and its body; None if the client hung up before its end.

    Closing a socket with unread bytes would reset the connection.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65_536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _version = first.split(" ")
    pairs = (line.split(":", 1) for line in lines)
    headers = {name.lower(): value.strip() for name, value in pairs}
    while len(body) < int(headers.get("content-length", 0)):
        more = connection.recv(65_536)
        if not more:
            return None
        body += more
    return Asked(method, target, headers), body


def answer(
    connection: socket.socket, status: int = 200, body: bytes = b"", /, **headers: object
) -> None:
    """A whole response; ``content_length`` and any other header may be given, or None."""
    send_head(connection, status, **{"content_length": len(body), **headers})
    connection.sendall(body)


def send_head(connection: socket.socket, status: int = 200, /, **headers: object) -> None:
    lines = [f"HTTP/1.1 {status} Scripted"]
    lines += [
        f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value is not None
    ]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def redirect(connection: socket.socket, location: str, status: int = 302) -> None:
    answer(connection, status, location=location)


def drip(connection: socket.socket, data: bytes, pause_seconds: float) -> None:
    """One byte after the other, slowly."""
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(pause_seconds)


def mute_after_headers(_asked: Asked, connection: socket.socket) -> None:
    """Headers that promise a body, and then nothing."""
    send_head(connection, content_length=99)
    time.sleep(60)


def body_in_drops(_asked: Asked, connection: socket.socket) -> None:
    """A body of 500 bytes, 50 bytes a second."""
    send_head(connection, content_length=500)
    drip(connection, bytes(500), 0.02)


@dataclass(slots=True)
class Trap:
    """Listens where nobody may connect; knows who did."""

    port: int = 0
    addresses: list[str] = field(default_factory=list)
    peers: list[tuple[str, int]] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Trap]:
        """On IPv4 loopback (two addresses) and, where there is one, IPv6 loopback; one port."""
        with contextlib.ExitStack() as stack:
            for address in ("127.0.0.1", "127.0.0.53", *(["::1"] if has_ipv6_loopback() else [])):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                listener = stack.enter_context(
                    socket.create_server((address, self.port), family=family, backlog=64)
                )
                self.port = listener.getsockname()[1]
                self.addresses.append(address)
                thread = threading.Thread(target=self._count, args=(listener,), daemon=True)
                thread.start()
                stack.callback(thread.join, 5)
                stack.callback(listener.shutdown, socket.SHUT_RDWR)
            yield self

    def take(self) -> list[tuple[str, int]]:
        """Who has connected since the last time; connections still in the queue included."""
        marks = [self._mark(address) for address in self.addresses]
        caught = [peer for peer in self.peers if peer not in marks]
        self.peers.clear()
        return caught

    def _mark(self, address: str) -> tuple[str, int]:
        """Connect and wait to be served: whoever connected before has been counted then."""
        with socket.create_connection((address, self.port), 5) as connection:
            name = connection.getsockname()
            while connection.recv(4096):
                pass
            return str(name[0]), int(name[1])

    def _count(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            self.peers.append((str(peer[0]), int(peer[1])))
            with contextlib.suppress(OSError), connection:
                answer(connection, 200, b"caught")
                # Closing with a request unread would reset the connection under the answer.
                connection.settimeout(2)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass


def has_ipv6_loopback() -> bool:
    """Whether this machine has ``::1``."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@dataclass(slots=True)
class Resolutions:
    """A resolver with prepared answers; each list is a name's answers, the last one stays."""

    answers: dict[str, list[list[str]]]
    questions: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> list[str]:
        self.questions.append(host)
        prepared = self.answers.get(host)
        if prepared is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        return prepared.pop(0) if len(prepared) > 1 else prepared[0]

    async def asynchronously(self, host: str, port: int) -> list[str]:
        return self(host, port)


class NetworkLog:
    """What this process asks of the network, by Python's audit events: a second pair of eyes."""

    _events = frozenset({"socket.connect", "socket.sendto", "socket.getaddrinfo"})

    def __init__(self) -> None:
        self._open: list[list[tuple[str, Any]]] = []
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[str, Any]]]:
        """The events of the block; audit hooks cannot be removed, so one instance for all."""
        events: list[tuple[str, Any]] = []
        self._open.append(events)
        try:
            yield events
        finally:
            self._open.remove(events)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self._events:
            for events in self._open:
                events.append((event, arguments[-1] if event == "socket.connect" else arguments))


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of the tests' own."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name("Test Authority")
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_authority_usage(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(folder, key, certificate)

    def client_context(self) -> ssl.SSLContext:
        """Trusts this authority alone, and verifies names."""
        pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def server_context(self, *names: str) -> ssl.SSLContext:
        """Presents a certificate for ``names`` (host names or addresses)."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_common_name(names[0]), self.certificate.subject, key)
            .add_extension(x509.SubjectAlternativeName([_san(name) for name in names]), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False
            )
            .sign(self.key, hashes.SHA256())
        )
        path = self.folder / f"{names[0]}.pem"
        path.write_bytes(_key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _authority_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


LOOPBACK = AddressPolicy((ipaddress.ip_network("127.0.0.0/8"),))
BODY = bytes(itertools.islice(itertools.cycle(range(251)), 300_000))
QUICK = FetchLimits(
    max_bytes=1 << 20,
    total_seconds=120,
    idle_seconds=60,
    idle_bytes=100,
    connect_seconds=60,
    header_seconds=60,
    attempts=3,
    backoff_seconds=0.02,
)
"""Tries again at once, and waits as long as a busy machine takes."""
IMPATIENT = replace(
    QUICK, total_seconds=8, idle_seconds=0.6, connect_seconds=1, header_seconds=1, attempts=1
)
"""For sources that make us wait."""
KEY = "jobs/1/source"

Serve = Callable[..., ScriptedServer]


def get(
    store: FolderStore,
    url: str,
    limits: FetchLimits = QUICK,
    **options: object,
) -> FetchedSource:
    given = {"policy": LOOPBACK, "control": FreeRun(), **options}
    return fetch(url, store=store, key=KEY, limits=limits, **given)  # type: ignore[arg-type]


def refused(store: FolderStore, url: str, limits: FetchLimits = QUICK, **options: object) -> str:
    """The sentence of a fetch that must fail and leave nothing behind."""
    with pytest.raises(StageError) as failure:
        get(store, url, limits, **options)
    assert failure.value.code == StageCode.FETCH_FAILED
    assert nothing_stored(store)
    assert "127." not in failure.value.message
    return failure.value.message


def nothing_stored(store: FolderStore) -> bool:
    return not [path for path in store.root.rglob("*") if path.is_file()]
