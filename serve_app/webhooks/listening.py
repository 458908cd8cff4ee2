"""A small HTTPS receiver for trying webhooks out, with a certificate by an authority of its own."""

from __future__ import annotations

import datetime as dt
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serve_app.webhooks.signing import VerificationError, verify

LIFETIME = dt.timedelta(days=30)
RENEWED_BEFORE = dt.timedelta(days=2)
AUTHORITY_FILE = "authority.pem"
SERVER_FILE = "server.pem"

MAX_BODY_BYTES = 4 * 1024**2
CONNECTION_SECONDS = 15.0
REFUSED = 401
ACCEPTED = 204
IDS_REMEMBERED = 10_000


def own_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the authority's file, for the service to trust, and TLS as ``localhost`` and
    ``127.0.0.1``.

    Both are kept in ``folder`` and made anew when they near their end.
    """
    authority, server = folder / AUTHORITY_FILE, folder / SERVER_FILE
    if not _lasts(authority) or not server.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _make(authority, server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    return authority, context


def _lasts(path: Path) -> bool:
    if not path.exists():
        return False
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.not_valid_after_utc > dt.datetime.now(dt.UTC) + RENEWED_BEFORE


def _make(authority_path: Path, server_path: Path) -> None:
    """The authority's own key is forgotten at once: it signs this one certificate."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("vas webhooks listen: local authority")
    authority = (
        _builder(issuer, issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        _builder(_name("localhost"), issuer, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(key_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = private + _pem(server)
    server_path.unlink(missing_ok=True)
    descriptor = os.open(server_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    authority_path.write_bytes(_pem(authority))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(slots=True)
class Listener:
    """Verifies and prints deliveries; ``write`` prints a line."""

    secrets: Sequence[str]
    """Of the account; without one nothing can be verified."""
    write: Callable[[str], None]
    answers: list[int] = field(default_factory=lambda: [ACCEPTED])
    """Statuses for verified deliveries, in turn; the last one stays."""
    seen: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Judge and print one delivery; return the status to answer with."""
        with self.lock:
            try:
                verified = "not verified (no --secret)"
                if self.secrets:
                    verify(self.secrets, headers, body, time.time())
                    verified = "verified"
                event_id = headers.get("webhook-id", "without webhook-id")
                again = ", again: deduplicate by webhook-id" if event_id in self.seen else ""
                if len(self.seen) < IDS_REMEMBERED:
                    self.seen.add(event_id)
                verdict = f"{event_id}  {verified}{again}"
            except VerificationError as error:
                self.write(f"{_clock()}  NOT VERIFIED: {error}  -> {REFUSED}")
                return REFUSED
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.write(f"{_clock()}  {verdict}  -> {status}")
            self.write(_pretty(body))
            return status


def listening_server(
    listener: Listener, address: str, port: int, tls: ssl.SSLContext | None
) -> ThreadingHTTPServer:
    """Return a bound server; ``serve_forever`` runs it. Raises OSError where the port is taken."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            error = sys.exception()
            if not isinstance(error, OSError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]
                return
            with listener.lock:
                listener.write(f"{_clock()}  {_without_delivery(error)}")

    return Server((address, port), _handler(listener, tls))


def _without_delivery(error: OSError) -> str:
    """Why a connection carried no delivery, and what helps; errors of TLS are OSErrors too."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and ("UNKNOWN_CA" in reason or "CERTIFICATE" in reason):
        return (
            "REFUSED by the sender: it does not trust the certificate. Start the service with "
            "VAS_WEBHOOK_CA_FILE, as printed above."
        )
    if reason == "HTTP_REQUEST":
        return "NO DELIVERY: without TLS; the address begins with https://."
    return f"NO DELIVERY: the connection ended ({reason or error.strerror or error})."


def _handler(listener: Listener, tls: ssl.SSLContext | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_SECONDS

        def setup(self) -> None:
            # Here, in the connection's own thread: a slow handshake blocks no other connection.
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
            """The listener prints deliveries."""

    return Handler


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _pretty(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        return body.decode("utf-8", errors="replace")
