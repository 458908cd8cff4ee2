"""Network connections below the safe HTTP transports: limits, errors, and the synchronous backend.

A host is resolved once, every address is checked by the policy, and the connection goes to one
of the checked addresses, while httpcore above keeps using the host's name (``Host`` header, TLS
server name, certificate).
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, TypeVar

import httpcore
import httpx

from pipelines.net.addresses import (
    AddressPolicy,
    IPAddress,
    UrlError,
    check_answers,
    check_host,
    read_host,
)

Watch = Callable[[], None]
"""Called while waiting, several times a second; what it raises ends the request."""

_SLICE_SECONDS = 0.25
"""Longest wait in one go, so that a stop takes effect soon."""

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


def checked_host(host: str, policy: AddressPolicy) -> tuple[str, IPAddress | None]:
    """Parse the host as the connection receives it: a parsing difference above gains nothing."""
    try:
        name, address = read_host(f"[{host}]" if ":" in host else host)
        check_host(name, address, policy)
    except UrlError as error:
        raise BlockedAddressError("the host is not allowed") from error
    return name, address


def checked_answers(
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
    """Each address with its share of the time left: one that hangs leaves some to the rest."""
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
    """TlsError for a failed verification or negotiation; a broken connection as it is."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return TlsError("no secure connection to the host could be made")
    return error


Resolver = Callable[[str, int], Sequence[str]]
"""Host name and port to the texts of its addresses; raises OSError where there are none."""

T = TypeVar("T")


def system_addresses(host: str, port: int) -> list[str]:
    """Resolve by the operating system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class BoundedStream(httpcore.NetworkStream):
    """A connected socket, read and written in slices, within bounds."""

    def __init__(self, connection: socket.socket, bounds: Bounds) -> None:
        self._socket = connection
        self.bounds = bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        size = self.bounds.readable_bytes(max_bytes)
        waits = self.bounds.waits(timeout, httpcore.ReadTimeout())
        data = self._in_slices(lambda: self._socket.recv(size), waits, httpcore.ReadError)
        self.bounds.was_read(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        while rest:
            waits = self.bounds.waits(timeout, httpcore.WriteTimeout())
            sent = self._in_slices(
                functools.partial(self._socket.send, rest), waits, httpcore.WriteError
            )
            rest = rest[sent:]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            secured = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            self._socket = secured
            waits = self.bounds.waits(timeout, httpcore.ConnectTimeout())
            self._in_slices(secured.do_handshake, waits, httpcore.ConnectError)
        except httpcore.ConnectError as error:
            self.close()
            raise tls_error(error) from error
        except BaseException:
            self.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object":
            return self._socket if isinstance(self._socket, ssl.SSLSocket) else None
        if info == "is_readable":
            return bool(select.select([self._socket], [], [], 0)[0])
        return None

    def _in_slices(
        self, action: Callable[[], T], waits: Iterator[float], broken: type[Exception]
    ) -> T:
        for seconds in waits:
            self._socket.settimeout(seconds)
            try:
                return action()
            except TimeoutError:
                continue
            except OSError as error:
                raise broken(str(error)) from error
        raise AssertionError("unreachable")


class PinningBackend(httpcore.NetworkBackend):
    """Resolves a host, checks its addresses, and connects to one of them."""

    def __init__(
        self, policy: AddressPolicy, limits: TransportLimits, resolver: Resolver, watch: Watch
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._resolver = resolver
        self._watch = watch

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        bounds = Bounds(self._limits, self._watch)
        addresses = self._addresses(host, port, bounds.waits(timeout, httpcore.ConnectTimeout()))
        failure: Exception | None = None
        for address, share in address_shares(addresses, timeout or self._limits.connect_seconds):
            try:
                waits = bounds.waits(share, httpcore.ConnectTimeout())
                return BoundedStream(_connect(address, port, waits), bounds)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise no_connection_error(failure) from failure

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        raise BlockedAddressError("Unix sockets are not used")

    def _addresses(self, host: str, port: int, waits: Iterator[float]) -> tuple[IPAddress, ...]:
        name, literal = checked_host(host, self._policy)
        if literal is not None:
            return (literal,)
        answers = _in_background(lambda: self._resolved(name, port), waits)
        return checked_answers(name, answers, self._policy)

    def _resolved(self, name: str, port: int) -> Sequence[str]:
        with resolution_errors():
            return self._resolver(name, port)


def _in_background(call: Callable[[], T], waits: Iterator[float]) -> T:
    """``call`` in a thread of its own: getaddrinfo can neither be bounded nor stopped."""
    outcome: list[T | BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)
        ended.set()

    threading.Thread(target=run, name="resolve", daemon=True).start()
    for seconds in waits:
        if ended.wait(seconds):
            break
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _connect(address: IPAddress, port: int, waits: Iterator[float]) -> socket.socket:
    """A TCP connection to exactly ``address``; raises httpcore.ConnectError."""
    connection = _new_socket(address)
    try:
        status = connection.connect_ex((str(address), port))
        if status == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            for seconds in waits:
                if poll.poll(seconds * 1000):
                    break
            status = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        _raise_for_status(status)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _new_socket(address: IPAddress) -> socket.socket:
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        # A machine without IPv6, for one; another address may do.
        raise httpcore.ConnectError(str(error)) from error
    connection.setblocking(False)
    return connection


def _raise_for_status(status: int) -> None:
    if status != 0:
        raise httpcore.ConnectError(os.strerror(status))
