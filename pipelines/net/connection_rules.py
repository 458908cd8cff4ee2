"""What both kinds of safe connection share: limits, errors, and the judging of a host."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpcore
import httpx

from pipelines.net.address_ranges import IPAddress
from pipelines.net.addresses import (
    AddressPolicy,
    UrlError,
    check_answers,
    check_host,
    read_host,
)

Watch = Callable[[], None]
"""Called while waiting, several times a second; what it raises ends the request."""

_SLICE_SECONDS = 0.25
"""Longest wait in one go, so that a stop is heard soon."""

_ADDRESSES_TRIED = 8


class BlockedAddressError(httpx.ConnectError):
    """The host, or an address it resolves to, is not one to talk to. Names no address."""


class NameResolutionError(httpx.ConnectError):
    """The host name could not be resolved."""


class TlsError(httpx.ConnectError):
    """No secure connection: a certificate that does not fit, or no common protocol."""


class ResponseHeadersTooLargeError(httpx.RemoteProtocolError):
    """The server sent more before the body than is accepted."""


class RequestTooLongError(httpx.TimeoutException):
    """The request as a whole took longer than it may."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """What one request may take."""

    connect_seconds: float = 10.0
    """Resolving and connecting; the TLS handshake has as much again."""
    read_seconds: float = 30.0
    """Longest silence."""
    write_seconds: float = 30.0
    header_seconds: float = 30.0
    """From resolving to the end of the response's headers, beside ``connect_seconds``."""
    total_seconds: float = 3600.0
    header_bytes: int = 64 << 10
    """Status line and headers, and whatever informational responses come before them."""
    max_connections: int = 100
    kept_connections: int = 0
    """Idle ones that a transport keeps for its next requests to the same origin (asyncio only)."""
    kept_seconds: float = 5.0
    """How long each of these may be idle."""

    def timeout(self) -> httpx.Timeout:
        """The same limits as httpx knows them (it has none for headers or in total)."""
        return httpx.Timeout(
            connect=self.connect_seconds,
            read=self.read_seconds,
            write=self.write_seconds,
            pool=self.connect_seconds,
        )


class Bounds:
    """The limits of one connection, which carries one request at a time."""

    def __init__(self, limits: TransportLimits, watch: Watch) -> None:
        self._limits = limits
        self.watch = watch
        self.begin()

    def begin(self) -> None:
        """From here on it is a request: time and bytes are counted anew."""
        now = time.monotonic()
        self._total_ends = now + self._limits.total_seconds
        self._headers_end = now + self._limits.connect_seconds + self._limits.header_seconds
        self._header_bytes_left = self._limits.header_bytes
        self._in_headers = True

    def begin_if_over(self) -> None:
        """What is written after a response's headers belongs to the next request."""
        if not self._in_headers:
            self.begin()

    def headers_are_read(self) -> None:
        """From here on it is the body, which is the caller's to bound."""
        self._in_headers = False

    def readable_bytes(self, wanted: int) -> int:
        """How much may be read at once: what comes before the body is counted."""
        if not self._in_headers:
            return wanted
        if self._header_bytes_left <= 0:
            raise ResponseHeadersTooLargeError("the response's headers are too large")
        return min(wanted, self._header_bytes_left)

    def was_read(self, size: int) -> None:
        """Count what came."""
        if self._in_headers:
            self._header_bytes_left -= size

    def seconds_left(self) -> float:
        """Until the headers or the whole request are overdue; raises when they are."""
        now = time.monotonic()
        if now >= self._total_ends:
            raise RequestTooLongError("the request took too long")
        if not self._in_headers:
            return self._total_ends - now
        if now >= self._headers_end:
            raise httpx.ReadTimeout("the response's headers took too long")
        return min(self._total_ends, self._headers_end) - now

    def waits(self, timeout: float | None, overdue: Exception) -> Iterator[float]:
        """Lengths of the next waits, watching in between; raises ``overdue`` after ``timeout``."""
        end = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while True:
            self.watch()
            left = min(self.seconds_left(), end - time.monotonic())
            if left <= 0:
                raise overdue
            yield min(left, _SLICE_SECONDS)


def judged_host(host: str, policy: AddressPolicy) -> tuple[str, IPAddress | None]:
    """Read the host as the connection gets it: a difference in parsing above gains nothing."""
    try:
        name, address = read_host(f"[{host}]" if ":" in host else host)
        check_host(name, address, policy)
    except UrlError as error:
        raise BlockedAddressError("the host is not allowed") from error
    return name, address


def judged_answers(
    name: str, answers: Sequence[str], policy: AddressPolicy
) -> tuple[IPAddress, ...]:
    if not answers:
        raise NameResolutionError("the host name has no address")
    try:
        return check_answers(name, answers, policy)
    except UrlError as error:
        raise BlockedAddressError("the host is not allowed") from error


@contextmanager
def resolution_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpcore.ConnectTimeout("resolving the host name took too long") from error
    except (OSError, UnicodeError) as error:
        raise NameResolutionError("the host name could not be resolved") from error


def address_shares(
    addresses: tuple[IPAddress, ...], seconds: float
) -> Iterator[tuple[IPAddress, float]]:
    """Each address with its share of the time left: a mute one leaves some to the rest."""
    end = time.monotonic() + seconds
    tried = addresses[:_ADDRESSES_TRIED]
    for position, address in enumerate(tried):
        left = max(0.0, end - time.monotonic())
        yield address, left / (len(tried) - position)


def no_connection_error(failure: Exception | None) -> Exception:
    if isinstance(failure, httpcore.ConnectTimeout):
        return httpcore.ConnectTimeout("no address of the host answers")
    return httpcore.ConnectError("no address of the host accepts connections")


def tls_error(error: httpcore.ConnectError) -> Exception:
    """What a failed handshake was: a lasting disagreement, or a connection that broke."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return TlsError("no secure connection to the host could be made")
    return error
