"""Connections of a sender: kept for a moment, so that an endpoint's next event needs no new one.

Resolving, connecting and the TLS handshake are most of what a delivery costs, on
both sides. What is kept stays pinned to the address that was judged when it was
opened, and is given up after KEPT_SECONDS without use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from pipelines.net.safe_http import AsyncSafeTransport, system_addresses
from serve_app.webhooks.sending import LIMITS, Way

KEPT_SECONDS = 5.0
KEPT_AN_ENDPOINT = 16
ENDPOINTS_KEPT = 32
"""Endpoints without a delivery under way whose connections are kept."""

_LIMITS = replace(LIMITS, kept_connections=KEPT_AN_ENDPOINT, kept_seconds=KEPT_SECONDS)


@dataclass(slots=True)
class _Kept:
    transport: AsyncSafeTransport
    users: int = 0
    expiry: asyncio.TimerHandle | None = None


class Connections:
    """One transport an endpoint; they are never shared by two accounts."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._kept: dict[str, _Kept] = {}
        self._idle = 0
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, endpoint: str) -> AsyncIterator[AsyncSafeTransport]:
        """The endpoint's transport, for one delivery."""
        kept = self._kept.get(endpoint)
        if kept is None:
            kept = self._kept[endpoint] = _Kept(self._way.transport(_LIMITS))
        elif kept.expiry is not None:
            kept.expiry.cancel()
            kept.expiry = None
            self._idle -= 1
        kept.users += 1
        try:
            yield kept.transport
        finally:
            kept.users -= 1
            if kept.users == 0:
                self._rest(endpoint, kept)

    def _rest(self, endpoint: str, kept: _Kept) -> None:
        """Keep what is idle now, for a while and within bounds."""
        self._idle += 1
        wait = KEPT_SECONDS if self._idle <= ENDPOINTS_KEPT else 0.0
        loop = asyncio.get_running_loop()
        kept.expiry = loop.call_later(wait, self._expire, endpoint)

    def _expire(self, endpoint: str) -> None:
        self._idle -= 1
        task = asyncio.ensure_future(self._kept.pop(endpoint).transport.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close everything; no delivery may be under way."""
        for endpoint, kept in list(self._kept.items()):
            if kept.expiry is not None:
                kept.expiry.cancel()
                self._expire(endpoint)
        await asyncio.gather(*self._closing, return_exceptions=True)


Lookup = Callable[[str, int], Sequence[str]]


class SharedResolver:
    """An ``AsyncResolver``; what is under way for a name serves all who ask for it meanwhile."""

    def __init__(self, *, threads: int, lookup: Lookup = system_addresses) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(threads, "webhook-names")
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Addresses of ``host``; raises OSError where it has none."""
        asked = (host, port)
        running = self._running.get(asked)
        if running is None:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, self._lookup, host, port)
            self._running[asked] = running
            running.add_done_callback(lambda _: self._running.pop(asked))
        # Who gives up waiting must not take the answer from the others.
        return await asyncio.shield(running)

    def close(self) -> None:
        """Ask no more; lookups under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
