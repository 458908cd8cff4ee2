"""Host names for the sender: resolved in threads of its own, each name once at a time.

A name server that does not answer holds a thread for many seconds. With the
event loop's few threads, one such endpoint would keep all others waiting; here it
holds one thread however many of its events are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipelines.net.safe_http import system_addresses

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
