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
import concurrent.futures
import functools
import socket
import ssl
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

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

_BODY_BYTES = 256 << 10
"""Of a body, read at once: what asyncio does. httpcore asks for a quarter of it."""
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
    """Idle ones that a transport keeps for its next requests to the same origin."""
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

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
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
            return max(wanted, _BODY_BYTES)
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


Resolver = Callable[[str, int], Sequence[str]]
"""Host name and port to the texts of its addresses; raises OSError where there are none."""

T = TypeVar("T")


def system_addresses(host: str, port: int) -> list[str]:
    """Resolve by the operating system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


AsyncResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The asynchronous form of ``Resolver``."""


async def system_addresses_async(host: str, port: int) -> list[str]:
    """Resolve by the operating system, off the event loop."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class BoundedStream(httpcore.AsyncNetworkStream):
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
            # Verification or negotiation failed; a broken connection stays what it is.
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise TlsError("no secure connection to the host could be made") from error
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _bounded(self, timeout: float | None) -> float:
        left = self.bounds.seconds_left()
        return left if timeout is None else min(timeout, left)


class PinningBackend(httpcore.AsyncNetworkBackend):
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
        bounds = Bounds(self._limits)
        seconds = timeout or self._limits.connect_seconds
        tried = (await self._addresses(host, port, seconds))[:_ADDRESSES_TRIED]
        end = time.monotonic() + seconds
        failure: Exception | None = None
        for position, address in enumerate(tried):
            # Of the time left each has a share: one that hangs leaves some for others.
            share = max(0.0, end - time.monotonic()) / (len(tried) - position)
            try:
                # The text of an address: asyncio resolves nothing.
                stream = await self._backend.connect_tcp(str(address), port, timeout=share)
                return BoundedStream(stream, bounds)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        if isinstance(failure, httpcore.ConnectTimeout):
            raise httpcore.ConnectTimeout("no address of the host answers") from failure
        raise httpcore.ConnectError("no address of the host accepts connections") from failure

    async def _addresses(self, host: str, port: int, seconds: float) -> tuple[IPAddress, ...]:
        try:
            # As the connection receives it: a parsing difference above gains nothing.
            name, literal = read_host(f"[{host}]" if ":" in host else host)
            check_host(name, literal, self._policy)
            if literal is not None:
                return (literal,)
            answers = await asyncio.wait_for(self._resolver(name, port), seconds)
            if not answers:
                raise NameResolutionError("the host name has no address")
            return check_answers(name, answers, self._policy)
        except UrlError as error:
            raise BlockedAddressError("the host is not allowed") from error
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("resolving the host name took too long") from error
        except (OSError, UnicodeError) as error:
            raise NameResolutionError("the host name could not be resolved") from error


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


class AsyncSafeTransport(httpx.AsyncBaseTransport):
    """For asynchronous requests (asyncio); used by itself or in an ``httpx.AsyncClient``.

    Raises httpx's transport errors, and of those BlockedAddressError, NameResolutionError,
    TlsError, ResponseHeadersTooLargeError and RequestTooLongError. A request's extension
    ``target`` (bytes) is sent as its request target, untouched by httpx's own quoting.
    """

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
            network_backend=PinningBackend(policy, self._limits, resolver),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _httpx_errors():
            response = await self._pool.handle_async_request(_core_request(request, self._limits))
        stream = cast(BoundedStream, response.extensions["network_stream"])
        stream.bounds.headers_are_read()
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_AsyncBody(response),
            request=request,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class SafeTransport(httpx.BaseTransport):
    """For synchronous requests: an AsyncSafeTransport on an event loop of its own, in a thread.

    Raises as that does, and whatever ``watch`` raises, which is called several times a second while
    waiting. To be closed after use.
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
        resolve = functools.partial(_in_background, resolver)
        self._transport = AsyncSafeTransport(
            policy=policy, limits=limits, resolver=resolve, ssl_context=ssl_context
        )
        self._watch, self._over = watch, asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def until_closed() -> None:
            await self._over.wait()
            await self._transport.aclose()

        with self._runner:
            self._runner.run(until_closed())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.wait(self._transport.handle_async_request(request))
        body = _Body(cast(httpx.AsyncByteStream, response.stream), self)
        return httpx.Response(
            response.status_code, headers=response.headers, stream=body, request=request
        )

    def wait(self, action: Coroutine[Any, Any, T], *, is_end: bool = False) -> T:
        """Return what ``action`` returns, watching meanwhile unless it ends what is watched."""
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        try:
            while not is_end:
                self._watch()
                if concurrent.futures.wait([future], _SLICE_SECONDS).done:
                    break
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(10.0)


async def _in_background(resolver: Resolver, host: str, port: int) -> Sequence[str]:
    """``resolver`` in a thread that nobody waits for: getaddrinfo can be neither bounded nor
    stopped."""
    found: concurrent.futures.Future[Sequence[str]] = concurrent.futures.Future()
    found.set_running_or_notify_cancel()

    def resolve() -> None:
        try:
            found.set_result(resolver(host, port))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=resolve, name="resolve", daemon=True).start()
    return await asyncio.wrap_future(found)


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, transport: SafeTransport) -> None:
        self._stream, self._transport = stream, transport

    def __iter__(self) -> Iterator[bytes]:
        chunks = aiter(self._stream)

        async def following() -> bytes | None:
            return await anext(chunks, None)

        while (chunk := self._transport.wait(following())) is not None:
            yield chunk

    def close(self) -> None:
        self._transport.wait(self._stream.aclose(), is_end=True)


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
