"""HTTP transports for every request that leaves the service: checked and pinned connections.

The host of a request is resolved once, every address it has is judged by the
policy, and the connection goes to one of those very addresses: a name that
answers differently the second time gains nothing. TLS still verifies the host's
*name*, because only the connection is pinned, not the URL.

There are no proxies from the environment, no redirects (each is the caller's to
check) and no Unix sockets. Connections are used once, unless the caller has them
kept for a few seconds. What a server sends before the body is bounded in bytes
and in time.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

import httpcore
import httpx

from pipelines.net.addresses import PUBLIC_ONLY, AddressPolicy
from pipelines.net.connection_rules import (
    BlockedAddressError,
    NameResolutionError,
    RequestTooLongError,
    ResponseHeadersTooLargeError,
    TlsError,
    TransportLimits,
    Watch,
)
from pipelines.net.safe_connections import (
    BoundedStream,
    PinningBackend,
    Resolver,
    system_addresses,
)
from pipelines.net.safe_connections_async import (
    AsyncBoundedStream,
    AsyncPinningBackend,
    AsyncResolver,
    system_addresses_async,
)

__all__ = [
    "AsyncResolver",
    "AsyncSafeTransport",
    "BlockedAddressError",
    "NameResolutionError",
    "RequestTooLongError",
    "Resolver",
    "ResponseHeadersTooLargeError",
    "SafeTransport",
    "TlsError",
    "TransportLimits",
    "Watch",
    "safe_async_client",
    "safe_client",
    "system_addresses",
    "system_addresses_async",
    "tls_context",
]

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
    """Verifies certificates and names by the bundled authorities, whatever the environment says.

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
