"""Who may append to a resumable upload: one request at a time, over all replicas.

The claim is a lease in the upload's row, kept while bytes arrive. A client that
lost its connection comes back with a new one while the old may still hang: it
waits a moment for the old request to let go, and after a few silent seconds the
old one is replaced and cut off. The folder store's own lock makes sure that a
replaced writer that the disk held up cannot write beside the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.uploads.access import Slot, open_slot
from storage import uploads
from storage.database import UNAVAILABLE
from storage.types import TERMINAL_STATES, JobState

log = logging.getLogger("vas.uploads")

_RETRY_SECONDS = 0.1
_KEEP_SECONDS = 0.7


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
class Claim:
    """The right to write, and the file as it was when the right was taken."""

    context: AppContext
    slot: Slot
    token: uuid.UUID

    async def keep(self, arriving: bool) -> bool:
        """The heartbeat; False once the right is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        async with self.context.database.statement() as connection:
            return await uploads.keep_writer(
                connection, job_id, name, self.token, lease=_lease(self.context), arriving=arriving
            )

    async def set_unverified(self, offset_bytes: int | None) -> None:
        """Note from where on nothing counts yet; raises ApiError 423 if the right is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        async with self.context.database.statement() as connection:
            if not await uploads.set_unverified(connection, job_id, name, self.token, offset_bytes):
                raise locked()

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the right while the disk is at work and no bytes arrive."""
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
            await asyncio.sleep(_KEEP_SECONDS)


@contextlib.asynccontextmanager
async def claimed(context: AppContext, slot: Slot, *, wait_seconds: float) -> AsyncIterator[Claim]:
    """Hold the right to write for the block; raises ApiError 423, 410, 409."""
    token = uuid.uuid4()
    await _take(context, slot, token, wait_seconds)
    try:
        # What the row said before the claim may be old.
        now = await open_slot(context, str(slot.job.id), slot.upload.slot)
        yield Claim(context, now, token)
    finally:
        await _release(context, slot, token)


async def _take(context: AppContext, slot: Slot, token: uuid.UUID, wait_seconds: float) -> None:
    job_id, name = slot.job.id, slot.upload.slot
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        async with context.database.statement() as connection:
            if await uploads.take_writer(connection, job_id, name, token, lease=_lease(context)):
                return
        now = await open_slot(context, str(job_id), name)
        require_alive(now)
        if not now.awaiting or asyncio.get_running_loop().time() >= deadline:
            raise locked()
        await asyncio.sleep(_RETRY_SECONDS)


def _lease(context: AppContext) -> timedelta:
    return timedelta(seconds=context.settings.upload_lease_seconds)


async def _release(context: AppContext, slot: Slot, token: uuid.UUID) -> None:
    try:
        async with context.database.statement() as connection:
            await uploads.release_writer(connection, slot.job.id, slot.upload.slot, token)
    except UNAVAILABLE as error:
        # It lapses by itself in a few seconds.
        log.warning("an upload's lease could not be released: %s", error)
