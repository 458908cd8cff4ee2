"""The asyncio twin of ``safe_connections``: resolved once, judged, pinned, bounded."""

# Timeouts are parameters because the interface is httpcore's.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore

from pipelines.net.address_ranges import IPAddress
from pipelines.net.addresses import AddressPolicy
from pipelines.net.connection_rules import (
    BlockedAddressError,
    Bounds,
    TransportLimits,
    address_shares,
    judged_answers,
    judged_host,
    no_connection_error,
    resolution_errors,
    tls_error,
)

AsyncResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""As ``safe_connections.Resolver``."""


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
            # Says so where it is the whole request that is overdue, not this read.
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
    """Resolves, judges, and connects to what was judged."""

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
        name, literal = judged_host(host, self._policy)
        if literal is not None:
            return (literal,)
        with resolution_errors():
            answers = await asyncio.wait_for(self._resolver(name, port), seconds)
        return judged_answers(name, answers, self._policy)
