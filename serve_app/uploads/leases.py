"""Uploads under way: a limit for each process, a heartbeat each, a lease to append to one.

The lease of a resumable upload stands in its row and is renewed while bytes arrive. A client that
lost its connection may come back while the old request hangs: the new one waits a moment, and after
a few silent seconds replaces it. The folder store's lock keeps a replaced writer that the disk held
up from writing beside the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request

from serve_app.api import downloads
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.observability.metrics import NULL_METRICS, UPLOADS_UNDER_WAY, Metrics
from serve_app.settings import Settings
from serve_app.uploads.access import Slot, open_slot
from storage import uploads
from storage.database import UNAVAILABLE
from storage.types import TERMINAL_STATES, JobState

log = logging.getLogger("vas.uploads")

_BEAT_SECONDS = 0.7
_TRUSTED_SHARE = 0.5
"""Nothing is written on a lease renewed longer ago: the rest of it is left for the disk."""

Keep = Callable[[bool], Awaitable[bool]]
"""Renew the upload's lease (true: bytes came); false once the upload must end."""

_RETRY_SECONDS = 0.1


class UploadLimiter:
    """At most ``limit`` uploads at once in this process, half of them of one account; more get 503.

    Each upload writes from a thread of its own (``threads``), so that a slow disk delays no other.
    """

    def __init__(self, limit: int, metrics: Metrics = NULL_METRICS) -> None:
        self._limit = limit
        self._held = Counter[uuid.UUID]()
        self._metrics = metrics
        self.threads = ThreadPoolExecutor(limit, thread_name_prefix="upload")

    @contextlib.contextmanager
    def enter(self, account_id: uuid.UUID) -> Iterator[None]:
        """Hold a place for the block; raises SERVICE_UNAVAILABLE where the account or all have
        none."""
        if self._held[account_id] >= max(1, self._limit // 2):
            message = "Too many uploads of this account are running."
            raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, message)
        if self._held.total() >= self._limit:
            raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "Too many uploads are running.")
        self._held[account_id] += 1
        try:
            yield
        finally:
            self._held[account_id] -= 1
            if not self._held[account_id]:
                del self._held[account_id]

    async def report(self) -> None:
        """Record how many uploads are under way. Ray drops a gauge once it is exported."""
        self._metrics.record(UPLOADS_UNDER_WAY, self._held.total(), {})


def upload_limiter(request: Request) -> UploadLimiter:
    """This process's limiter."""
    limiter: UploadLimiter = request.app.state.upload_limiter
    return limiter


class UploadHeartbeat:
    """The heartbeat of one upload, run by ``heartbeat_running``.

    ``reason`` is why the upload must end, once it must; ``lost`` whether others may write now;
    ``patience_seconds`` how far it may fall behind the least rate.
    ``on_beat`` is called after each successful beat.
    """

    def __init__(self, keep: Keep, settings: Settings, *, exclusive: bool = True) -> None:
        """``exclusive``: others may write to the same place once the lease is over."""
        self._keep = keep
        self._exclusive = exclusive
        self._idle_seconds = settings.upload_idle_seconds
        self.patience_seconds = max(downloads.PATIENCE_SECONDS, self._idle_seconds)
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
        """Call before writing; raises ApiError where the upload must end."""
        if time.monotonic() - self._kept_at > self._trusted_seconds:
            try:
                await self._beat()
            except UNAVAILABLE:
                if self._exclusive:
                    raise
        if self.reason is not None:
            raise self.reason

    async def run(self, limit: asyncio.Timeout, *, finishing: bool = False) -> None:
        """Beat until cancelled; let ``limit`` expire where the upload must end."""
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
async def heartbeat_running(
    heartbeat: UploadHeartbeat, *, finishing: bool = False
) -> AsyncIterator[None]:
    """Run the heartbeat during the block, which gets ApiError once the upload must end.

    ``finishing``: no more bytes are expected, the disk is at work.
    """
    try:
        async with asyncio.timeout(None) as limit:
            beating = asyncio.create_task(heartbeat.run(limit, finishing=finishing))
            try:
                yield
            finally:
                beating.cancel()
                await asyncio.wait([beating])
                if not beating.cancelled():
                    beating.result()
    except TimeoutError:
        if heartbeat.reason is None:
            raise
        raise heartbeat.reason from None


def locked() -> ApiError:
    """423: another request writes."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        "Another request is writing this upload.",
        status=423,
        headers={"Retry-After": "1"},
    )


def require_alive(slot: Slot) -> None:
    """Raises 410 for an upload that was given up or whose job ended without it."""
    dead = TERMINAL_STATES - {JobState.COMPLETED}
    completed = slot.upload.completed_at is not None
    if slot.upload.terminated_at is not None or (slot.job.state in dead and not completed):
        raise gone()


def gone() -> ApiError:
    """410: there was such an upload."""
    return ApiError(ErrorCode.NOT_FOUND, "The upload is not there any more.", status=410)


@dataclass(frozen=True, slots=True)
class UploadLease:
    """The lease to append to an upload, and the file as it was when the lease was taken."""

    context: AppContext
    slot: Slot
    token: uuid.UUID

    async def keep(self, arriving: bool) -> bool:
        """The heartbeat; False once the lease is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        async with self.context.database.statement() as connection:
            return await uploads.keep_writer(
                connection,
                job_id,
                name,
                self.token,
                lease=_lease_time(self.context),
                arriving=arriving,
            )

    async def set_unverified(self, offset_bytes: int | None) -> None:
        """Set the offset from which bytes do not count yet; ApiError 423 if the lease is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        async with self.context.database.statement() as connection:
            if not await uploads.set_unverified(connection, job_id, name, self.token, offset_bytes):
                raise locked()

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease while the disk is busy and no bytes arrive."""
        keeping = asyncio.create_task(self._keep_on())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    async def _keep_on(self) -> None:
        while True:
            try:
                await self.keep(True)
            except UNAVAILABLE as error:
                log.warning("an upload's lease could not be renewed: %s", error)
            await asyncio.sleep(_BEAT_SECONDS)


@contextlib.asynccontextmanager
async def hold_lease(
    context: AppContext, slot: Slot, *, wait_seconds: float
) -> AsyncIterator[UploadLease]:
    """Hold the lease for the block; raises ApiError 423, 410, 409."""
    token = uuid.uuid4()
    await _take(context, slot, token, wait_seconds)
    try:
        # The row may have changed before the lease was taken.
        now = await open_slot(context, str(slot.job.id), slot.upload.slot)
        yield UploadLease(context, now, token)
    finally:
        try:
            async with context.database.statement() as connection:
                await uploads.release_writer(connection, slot.job.id, slot.upload.slot, token)
        except UNAVAILABLE as error:
            # It lapses by itself in a few seconds.
            log.warning("an upload's lease could not be released: %s", error)


async def _take(context: AppContext, slot: Slot, token: uuid.UUID, wait_seconds: float) -> None:
    job_id, name = slot.job.id, slot.upload.slot
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        async with context.database.statement() as connection:
            if await uploads.take_writer(
                connection, job_id, name, token, lease=_lease_time(context)
            ):
                return
        now = await open_slot(context, str(job_id), name)
        require_alive(now)
        if not now.awaiting or asyncio.get_running_loop().time() >= deadline:
            raise locked()
        await asyncio.sleep(_RETRY_SECONDS)


def _lease_time(context: AppContext) -> timedelta:
    return timedelta(seconds=context.settings.upload_lease_seconds)
