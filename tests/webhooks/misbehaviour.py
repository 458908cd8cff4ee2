"""Every way in which an endpoint can misbehave, and what the delivery log must say of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.receivers import Delivered, Script, head, reset, status

SILENCE_SECONDS = 15.0
"""Longer than the deadline that these tests hand in."""

ENDLESS = b"x" * 65_536


Tls = Callable[[Authority, Path], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True)
class Case:
    """A behaviour and the log's row after one attempt."""

    script: Script
    status: str
    error: str | None
    """The first line of ``lastError``."""
    last_status: int | None = None
    tls: Tls | None = None
    """Makes the receiver's side of TLS; a good one without it."""
    body: str = ""
    """The rest of ``lastError``, a regular expression."""


def _silence(_delivered: Delivered, _connection: socket.socket) -> None:
    time.sleep(SILENCE_SECONDS)


def _says_and_hangs(said: bytes) -> Script:
    def script(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(said)
        time.sleep(SILENCE_SECONDS)

    return script


def _says_and_leaves(said: bytes) -> Script:
    def script(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(said)

    return script


def _drips(first: bytes, slowly: bytes) -> Script:
    def script(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(first)
        ends = time.monotonic() + SILENCE_SECONDS
        for byte in slowly:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
            if time.monotonic() > ends:
                return

    return script


def _endless(code: int) -> Script:
    def script(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(head(code, content_length=10**12))
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(ENDLESS)

    return script


def _resets(said: bytes = b"") -> Script:
    def script(_delivered: Delivered, connection: socket.socket) -> None:
        if said:
            connection.sendall(said)
            time.sleep(0.1)
        reset(connection)

    return script


def _wrong_name(authority: Authority, _folder: Path) -> ssl.SSLContext:
    return authority.server_context("hooks.example.com")


def _old_tls(authority: Authority, _folder: Path) -> ssl.SSLContext:
    context = authority.server_context("127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    return context


def _no_tls(_authority: Authority, _folder: Path) -> None:
    return None


def _stranger(_authority: Authority, folder: Path) -> ssl.SSLContext:
    """Right in all but the authority, whom nobody trusts."""
    return Authority.new(folder).server_context("127.0.0.1")


def _expired(authority: Authority, folder: Path) -> ssl.SSLContext:
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    return _certified(folder / "expired.pem", yesterday, authority)


def _self_signed(_authority: Authority, folder: Path) -> ssl.SSLContext:
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    return _certified(folder / "self.pem", tomorrow, None)


def _certified(path: Path, ends: dt.datetime, authority: Authority | None) -> ssl.SSLContext:
    """A server whose certificate for 127.0.0.1 ends then, signed by ``authority`` or itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.certificate.subject if authority else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - dt.timedelta(days=3))
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(authority.key if authority else key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def _retried(script: Script, error: str, last_status: int | None = None, body: str = "") -> Case:
    return Case(script, "pending_retry", error, last_status, body=body)


def _failed(script: Script, error: str, last_status: int | None = None, body: str = "") -> Case:
    return Case(script, "failed", error, last_status, body=body)


def _delivered(script: Script, last_status: int) -> Case:
    return Case(script, "delivered", None, last_status)


def _redirects(code: int, location: str) -> Case:
    return _failed(status(code, location=location), "redirect", code)


def _insecure(tls: Tls) -> Case:
    return replace(_retried(status(204), "tls"), tls=tls)


_LINE = b"HTTP/1.1 200 OK\r\n"
_HALF = head(200, content_length=100) + b"half"

CASES: dict[str, Case] = {
    "answers 200": _delivered(status(200, b"thanks"), 200),
    "answers 204": _delivered(status(204), 204),
    "answers 299": _delivered(status(299), 299),
    "says 103 first": _delivered(_says_and_leaves(head(103) + head(200, content_length=0)), 200),
    "200 with an endless body": _delivered(_endless(200), 200),
    "hangs before the status line": _retried(_silence, "timeout"),
    "hangs in the status line": _retried(_says_and_hangs(b"HTTP/1.1 20"), "timeout"),
    "hangs after the status line": _retried(_says_and_hangs(_LINE), "timeout"),
    "hangs after the headers of a 200": _retried(
        _says_and_hangs(head(200, content_length=9)), "timeout", 200
    ),
    "drips its headers": _retried(_drips(_LINE, b"a: " + b"b" * 9999), "timeout"),
    "drips its body": _retried(
        _drips(head(200, content_length=9999), b"c" * 9999), "timeout", 200, "c*"
    ),
    "drips the body of a 500": _retried(
        _drips(head(500, content_length=9999), b"d" * 9999), "http_5xx: 500", 500, "d*"
    ),
    "hangs up without a word": _retried(_says_and_leaves(b""), "connection"),
    "hangs up after the status line": _retried(_says_and_leaves(_LINE), "connection"),
    "hangs up in the body of a 200": _retried(_says_and_leaves(_HALF), "connection", 200, "half"),
    "hangs up in the body of a 404": _failed(
        _says_and_leaves(head(404, content_length=100) + b"no"), "http_4xx: 404", 404, "no"
    ),
    "resets the connection": _retried(_resets(), "connection"),
    "resets in the headers": _retried(_resets(_LINE), "connection"),
    "is no web server": _retried(_says_and_leaves(b"SSH-2.0-OpenSSH_9.9\r\n"), "connection"),
    "has endless headers": _retried(
        _says_and_leaves(_LINE + b"x: " + b"y" * 200_000), "connection"
    ),
    "makes up a status": _retried(status(799), "connection", 799),
    "429": _retried(status(429, b"slow down"), "http_4xx: 429", 429, "slow down"),
    "500": _retried(status(500, b"oops"), "http_5xx: 500", 500, "oops"),
    "502": _retried(status(502), "http_5xx: 502", 502),
    "503": _retried(status(503), "http_5xx: 503", 503),
    "500 with an endless body": _retried(_endless(500), "http_5xx: 500", 500, "x" * 4096),
    "500 with bytes that are no text": _retried(
        status(500, b"\0\xff\xfe"), "http_5xx: 500", 500, "�" * 3
    ),
    "400": _failed(status(400), "http_4xx: 400", 400),
    "401": _failed(status(401), "http_4xx: 401", 401),
    "404": _failed(status(404, b"no such hook"), "http_4xx: 404", 404, "no such hook"),
    "408": _failed(status(408), "http_4xx: 408", 408),
    "410": Case(status(410, b"gone"), "disabled", "http_4xx: 410", 410, body="gone"),
    "redirect to itself": _redirects(302, "/hook"),
    "redirect to a private address": _redirects(307, "https://10.0.0.1/"),
    "redirect to the metadata service": _redirects(301, "http://169.254.169.254/latest/"),
    "redirect to nonsense": _redirects(308, "https://[::"),
    "304": _failed(status(304), "redirect", 304),
    "certificate for another host": _insecure(_wrong_name),
    "expired certificate": _insecure(_expired),
    "self-signed certificate": _insecure(_self_signed),
    "unknown authority": _insecure(_stranger),
    "TLS 1.1": _insecure(_old_tls),
    "no TLS": _insecure(_no_tls),
}
