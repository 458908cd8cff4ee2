"""HTTP transports for every request that leaves the service: checked and pinned connections.

The host of a request is resolved once, every address it has is checked by the policy, and the
connection goes to one of those addresses: a name that resolves differently the second time gains
nothing. httpcore goes on using the host's *name* (``Host`` header, TLS server name, certificate),
because only the connection is pinned, not the URL.

No proxies from the environment, no redirects (each is the caller's to check), no Unix sockets.
Connections are used once, unless the caller keeps them for a few seconds. What a server sends
before the body is bounded in bytes and in time.
"""

# ruff: noqa: ASYNC109
# Timeouts are parameters because the interface is httpcore's.

from __future__ import annotations

import asyncio
import errno
import functools
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import httpcore
import httpx

from pipelines.net.addresses import (
    PUBLIC_ONLY,
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
        """Return the same limits as httpx knows them (it has none for headers or in total)."""
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
        """Return how much may be read at once: what comes before the body is counted."""
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
    """Yield each address with its share of the time left: one that hangs leaves some to the
    rest."""
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
    """Return a TCP connection to exactly ``address``; raises httpcore.ConnectError."""
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


AsyncResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The asynchronous form of ``Resolver``."""


async def system_addresses_async(host: str, port: int) -> list[str]:
    """Resolve by the operating system, off the event loop."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class AsyncBoundedStream(httpcore.AsyncNetworkStream):
    """A stream of httpcore's asyncio backend, within bounds."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, bounds: Bounds) -> None:
        self._stream = stream
        self.bounds = bounds

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        size = self.bounds.readable_bytes(max_bytes)
        try:
            data = await self._stream.read(size, self._bounded(timeout))
        except httpcore.ReadTimeout:
            # A different error where the whole request is overdue, not this read.
            self.bounds.seconds_left()
            raise
        self.bounds.was_read(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.bounds.begin_if_over()
        await self._stream.write(buffer, self._bounded(timeout))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            self._stream = await self._stream.start_tls(
                ssl_context, server_hostname, self._bounded(timeout)
            )
        except httpcore.ConnectError as error:
            raise tls_error(error) from error
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _bounded(self, timeout: float | None) -> float:
        left = self.bounds.seconds_left()
        return left if timeout is None else min(timeout, left)


class AsyncPinningBackend(httpcore.AsyncNetworkBackend):
    """Resolves a host, checks its addresses, and connects to one of them."""

    def __init__(
        self, policy: AddressPolicy, limits: TransportLimits, resolver: AsyncResolver
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._resolver = resolver
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        bounds = Bounds(self._limits, lambda: None)
        seconds = timeout or self._limits.connect_seconds
        addresses = await self._addresses(host, port, seconds)
        failure: Exception | None = None
        for address, share in address_shares(addresses, seconds):
            try:
                # The text of an address: asyncio resolves nothing.
                stream = await self._backend.connect_tcp(str(address), port, timeout=share)
                return AsyncBoundedStream(stream, bounds)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise no_connection_error(failure) from failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise BlockedAddressError("Unix sockets are not used")

    async def _addresses(self, host: str, port: int, seconds: float) -> tuple[IPAddress, ...]:
        name, literal = checked_host(host, self._policy)
        if literal is not None:
            return (literal,)
        with resolution_errors():
            answers = await asyncio.wait_for(self._resolver(name, port), seconds)
        return checked_answers(name, answers, self._policy)


_HTTPX_ERRORS: dict[type[Exception], type[httpx.TransportError]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
}


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Verifies certificates and names by the bundled authorities; ignores the environment.

    One for the process: reading the authorities takes longer than a small request.
    """
    return httpx.create_ssl_context(verify=True, trust_env=False)


class SafeTransport(httpx.BaseTransport):
    """For synchronous requests; used by itself or in an ``httpx.Client``.

    Raises httpx's transport errors, and of those BlockedAddressError,
    NameResolutionError, TlsError, ResponseHeadersTooLargeError and
    RequestTooLongError; also whatever ``watch`` raises, which is called several
    times a second while waiting. A request's extension ``target`` (bytes) is
    sent as its request target, untouched by httpx's own quoting.
    """

    def __init__(
        self,
        *,
        policy: AddressPolicy = PUBLIC_ONLY,
        limits: TransportLimits | None = None,
        resolver: Resolver = system_addresses,
        ssl_context: ssl.SSLContext | None = None,
        watch: Watch = lambda: None,
    ) -> None:
        self._limits = limits or TransportLimits()
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl_context or tls_context(),
            max_connections=self._limits.max_connections,
            max_keepalive_connections=0,
            network_backend=PinningBackend(policy, self._limits, resolver, watch),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with _httpx_errors():
            response = self._pool.handle_request(_core_request(request, self._limits))
        stream = cast(BoundedStream, response.extensions["network_stream"])
        stream.bounds.headers_are_read()
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response),
            request=request,
        )

    def close(self) -> None:
        self._pool.close()


class AsyncSafeTransport(httpx.AsyncBaseTransport):
    """For asynchronous requests (asyncio); as ``SafeTransport``, but stopped by cancelling."""

    def __init__(
        self,
        *,
        policy: AddressPolicy = PUBLIC_ONLY,
        limits: TransportLimits | None = None,
        resolver: AsyncResolver = system_addresses_async,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits or TransportLimits()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or tls_context(),
            max_connections=self._limits.max_connections,
            max_keepalive_connections=self._limits.kept_connections,
            keepalive_expiry=self._limits.kept_seconds,
            network_backend=AsyncPinningBackend(policy, self._limits, resolver),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _httpx_errors():
            response = await self._pool.handle_async_request(_core_request(request, self._limits))
        stream = cast(AsyncBoundedStream, response.extensions["network_stream"])
        stream.bounds.headers_are_read()
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_AsyncBody(response),
            request=request,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def safe_client(transport: SafeTransport, limits: TransportLimits) -> httpx.Client:
    """Return a client that takes nothing from the environment and follows no redirect.

    httpx reads a ``Location`` it does not follow, and raises RemoteProtocolError
    for one it cannot read; where that matters, use the transport by itself.
    """
    return httpx.Client(
        transport=transport, trust_env=False, follow_redirects=False, timeout=limits.timeout()
    )


def safe_async_client(transport: AsyncSafeTransport, limits: TransportLimits) -> httpx.AsyncClient:
    """As ``safe_client``."""
    return httpx.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=False, timeout=limits.timeout()
    )


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors():
            yield from self._response.iter_stream()

    def close(self) -> None:
        with _httpx_errors():
            self._response.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for chunk in self._response.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        with _httpx_errors():
            await self._response.aclose()


def _core_request(request: httpx.Request, limits: TransportLimits) -> httpcore.Request:
    extensions: dict[str, Any] = {"timeout": limits.timeout().as_dict(), **request.extensions}
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=extensions.pop("target", request.url.raw_path),
        ),
        headers=request.headers.raw,
        content=request.stream,
        extensions=extensions,
    )


@contextmanager
def _httpx_errors() -> Iterator[None]:
    """Errors of the layer below as those of httpx; all others as they are."""
    try:
        yield
    except tuple(_HTTPX_ERRORS) as error:
        raise _HTTPX_ERRORS[type(error)](str(error)) from error
