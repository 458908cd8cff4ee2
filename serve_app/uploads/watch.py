"""An upload under way: it shows that it lives, and ends when it stands still or is not wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from serve_app.errors import ApiError, ErrorCode
from serve_app.settings import Settings
from storage.database import UNAVAILABLE

log = logging.getLogger("vas.uploads")

_BEAT_SECONDS = 0.7
_TRUSTED_SHARE = 0.5
"""Nothing is written on a lease that was seen longer ago: the rest of it is left for the disk."""

Keep = Callable[[bool], Awaitable[bool]]
"""Tell the database that the upload lives (true: bytes came); false once it may not go on."""


class Watch:
    """The heartbeat of one upload. Used through ``watched``.

    ``reason`` is why it may not go on, once that is so; ``lost`` that others may
    write now. ``on_beat`` is called after each beat that found all well.
    """

    def __init__(self, keep: Keep, settings: Settings, *, exclusive: bool = True) -> None:
        """``exclusive``: others may write to the same place once the lease is over."""
        self._keep = keep
        self._exclusive = exclusive
        self._idle_seconds = settings.upload_idle_seconds
        self._trusted_seconds = settings.upload_lease_seconds * _TRUSTED_SHARE
        self._kept_at = self._arrived_at = time.monotonic()
        self._arrived = False
        self.reason: ApiError | None = None
        self.lost = False
        self.on_beat: Callable[[], None] = lambda: None

    def arrived(self) -> None:
        """Bytes came."""
        self._arrived = True

    async def check(self) -> None:
        """Call before writing; raises ApiError where the upload may not go on."""
        if time.monotonic() - self._kept_at > self._trusted_seconds:
            try:
                await self._beat()
            except UNAVAILABLE:
                if self._exclusive:
                    raise
        if self.reason is not None:
            raise self.reason

    async def run(self, limit: asyncio.Timeout, *, finishing: bool = False) -> None:
        """Beat until cancelled; let ``limit`` run out where the upload may not go on."""
        while self.reason is None:
            await asyncio.sleep(_BEAT_SECONDS)
            self._arrived |= finishing
            try:
                await self._beat()
            except UNAVAILABLE as error:
                # The next beat may get through; ``check`` guards what is written until then.
                log.warning("an upload's heartbeat failed: %s", error)
                continue
            if self.reason is None:
                self.on_beat()
        limit.reschedule(asyncio.get_running_loop().time())

    async def _beat(self) -> None:
        now, arrived = time.monotonic(), self._arrived
        self._arrived = False
        if arrived:
            self._arrived_at = now
        if not await self._keep(arrived):
            self.lost = True
            self.reason = ApiError(
                ErrorCode.INVALID_REQUEST,
                "The upload was ended: its job takes no upload any more, or another request "
                "has taken over.",
                status=409,
            )
        elif now - self._arrived_at > self._idle_seconds:
            self.reason = ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Nothing arrived for {self._idle_seconds:g} seconds.",
                status=408,
            )
        else:
            self._kept_at = now


@contextlib.asynccontextmanager
async def watched(watch: Watch, *, finishing: bool = False) -> AsyncIterator[None]:
    """Run the heartbeat beside the block; ApiError inside it once the upload may not go on.

    ``finishing``: no more bytes are expected, the disk is at work.
    """
    try:
        async with asyncio.timeout(None) as limit:
            beating = asyncio.create_task(watch.run(limit, finishing=finishing))
            try:
                yield
            finally:
                beating.cancel()
                await asyncio.wait([beating])
                if not beating.cancelled():
                    beating.result()
    except TimeoutError:
        if watch.reason is None:
            raise
        raise watch.reason from None
