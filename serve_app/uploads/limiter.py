"""A cap on the uploads that one process takes at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request

from serve_app.errors import ApiError, ErrorCode
from serve_app.observability.metrics import LEVEL_SECONDS, SILENT, UPLOADS_UNDER_WAY, Metrics


class UploadGate:
    """At most so many uploads at once in this process; more are told to come back.

    Each upload writes from a thread of its own, so that a slow disk holds up
    nobody else; ``threads`` has one for every place.
    """

    def __init__(self, limit: int, metrics: Metrics = SILENT) -> None:
        self._limit = limit
        self._free = limit
        self._metrics = metrics
        self.threads = ThreadPoolExecutor(limit, thread_name_prefix="upload")

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place for the block; raises SERVICE_UNAVAILABLE if there is none."""
        if self._free <= 0:
            raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "Too many uploads are running.")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1

    async def report_for_ever(self) -> None:
        """Record how many uploads are under way, again and again, until cancelled.

        Ray forgets a level that it has handed on: what is not recorded again is gone.
        """
        while True:
            self._metrics.record(UPLOADS_UNDER_WAY, self._limit - self._free, {})
            await asyncio.sleep(LEVEL_SECONDS)


def upload_gate(request: Request) -> UploadGate:
    """The cap of this process."""
    gate: UploadGate = request.app.state.upload_gate
    return gate
