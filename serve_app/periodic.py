"""Work that a process repeats beside its requests or jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

log = logging.getLogger("vas.periodic")

RETRY_SECONDS = 1.0
"""Until a step that failed (the database was away, for example) is repeated."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A step repeated ``seconds`` after its end, or after as many as it returned."""

    name: str
    seconds: float
    step: Callable[[], Awaitable[float | None]]

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Repeat until cancelled, or ``until`` is set. What a step raises is logged."""
        while until is None or not until.is_set():
            try:
                pause_seconds = await self.step()
            except Exception:
                log.exception("%s failed", self.name)
                pause_seconds = RETRY_SECONDS
            await asyncio.sleep(self.seconds if pause_seconds is None else pause_seconds)


@asynccontextmanager
async def repeated(work: Sequence[Periodic]) -> AsyncIterator[None]:
    """Run ``work`` during the block."""
    tasks = [asyncio.create_task(each.run(), name=each.name) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
