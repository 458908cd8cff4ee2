"""HTTP transports for every request that leaves the service: checked and pinned connections.

The host of a request is resolved once, every address it has is checked by the policy, and the
connection goes to one of those addresses: a name that resolves differently the second time gains
nothing. TLS still verifies the host's *name*, because only the connection is pinned, not the URL.

No proxies from the environment, no redirects (each is the caller's to check), no Unix sockets.
Connections are used once, unless the caller keeps them for a few seconds. What a server sends
before the body is bounded in bytes and in time.
"""

# Timeouts are parameters because the interface is httpcore's.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

import httpcore
import httpx

from pipelines.net.addresses import PUBLIC_ONLY, AddressPolicy, IPAddress
from pipelines.net.safe_connections import (
    BlockedAddressError,
    BoundedStream,
    Bounds,
    PinningBackend,
    Resolver,
    TransportLimits,
    Watch,
    address_shares,
    checked_answers,
    checked_host,
    no_connection_error,
    resolution_errors,
    system_addresses,
    tls_error,
)

AsyncResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The asynchronous form of ``safe_connections.Resolver``."""


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
    """A client that takes nothing from the environment and follows no redirect.

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
