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
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.uploads.access import Slot, open_slot, record_complete, resumable_key
from storage import uploads
from storage.database import UNAVAILABLE
from storage.objects import ObjectStore, ObjectStoreUnavailableError, PartialBusyError
from storage.types import TERMINAL_STATES, JobState

log = logging.getLogger("vas.uploads")

BEAT_SECONDS = 0.7

_RETRY_SECONDS = 0.1


def locked() -> ApiError:
    """423: another request writes."""
    message, wait = "Another request is writing this upload.", {"Retry-After": "1"}
    return ApiError(ErrorCode.INVALID_REQUEST, message, status=423, headers=wait)


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
        """Return the heartbeat; False once the lease is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        return await self.context.database.read(
            uploads.keep_writer,
            job_id,
            name,
            self.token,
            lease=_lease_time(self.context),
            arriving=arriving,
        )

    async def set_unverified(self, offset_bytes: int | None) -> None:
        """Set the offset from which bytes do not count yet; ApiError 423 if the lease is lost."""
        job_id, name = self.slot.job.id, self.slot.upload.slot
        is_held = await self.context.database.read(
            uploads.set_unverified, job_id, name, self.token, offset_bytes
        )
        if not is_held:
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
            await asyncio.sleep(BEAT_SECONDS)


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
            held = slot.job.id, slot.upload.slot, token
            await context.database.read(uploads.release_writer, *held)
        except UNAVAILABLE as error:
            # It lapses by itself in a few seconds.
            log.warning("an upload's lease could not be released: %s", error)


async def _take(context: AppContext, slot: Slot, token: uuid.UUID, wait_seconds: float) -> None:
    job_id, name = slot.job.id, slot.upload.slot
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        if await context.database.read(
            uploads.take_writer, job_id, name, token, lease=_lease_time(context)
        ):
            return
        now = await open_slot(context, str(job_id), name)
        require_alive(now)
        if not now.awaiting or asyncio.get_running_loop().time() >= deadline:
            raise locked()
        await asyncio.sleep(_RETRY_SECONDS)


def _lease_time(context: AppContext) -> timedelta:
    return timedelta(seconds=context.settings.upload_lease_seconds)


_AT_ONCE = 20


def slot_key(slot: Slot) -> str:
    """Return where the slot's resumable upload lies."""
    return resumable_key(slot.job.id, slot.upload.slot)


async def counted_bytes(context: AppContext, slot: Slot) -> int:
    """Return the upload's offset: what arrived and counts."""
    if slot.upload.received_bytes is not None:
        return slot.upload.received_bytes
    arrived = await asyncio.to_thread(_stored_bytes, context.objects, slot_key(slot))
    unverified_from = slot.upload.unverified_from_bytes
    return arrived if unverified_from is None else min(arrived, unverified_from)


def _stored_bytes(store: ObjectStore, key: str) -> int:
    # A process may have died between making it the object and recording that.
    return store.size_bytes(key) if store.exists(key) else store.partial_size_bytes(key)


async def recover_offset(lease: UploadLease) -> int:
    """``counted_bytes`` for the writer, who drops unverified bytes of a lost one."""
    offset = await counted_bytes(lease.context, lease.slot)
    if lease.slot.upload.unverified_from_bytes is not None:
        await drop_back(lease, offset)
    return offset


async def drop_back(lease: UploadLease, offset_bytes: int) -> None:
    """Drop what lies beyond ``offset_bytes``, unless the lease was lost."""
    if not await lease.keep(True):
        return
    await asyncio.to_thread(_truncate, lease.context.objects, slot_key(lease.slot), offset_bytes)
    await lease.set_unverified(None)


def _truncate(store: ObjectStore, key: str, size_bytes: int) -> None:
    if store.partial_size_bytes(key) > size_bytes:
        store.truncate_partial(key, size_bytes)


async def finish(lease: UploadLease, total_bytes: int) -> None:
    """Make the complete partial the file and record it; raises ApiError 409."""
    key, store, job = slot_key(lease.slot), lease.context.objects, lease.slot.job
    async with lease.kept():
        await asyncio.to_thread(_finish, store, key, total_bytes)
    try:
        await record_complete(lease.context, job.id, lease.slot.upload.slot, total_bytes, key)
    except ApiError:
        await asyncio.to_thread(store.delete, key)
        raise


def _finish(store: ObjectStore, key: str, total_bytes: int) -> None:
    if total_bytes == 0 and not store.exists(key):
        with store.append_partial(key, 0):
            pass
    store.finish_partial(key)


async def finish_if_complete(context: AppContext, slot: Slot) -> bool:
    """Finish an upload of which all bytes came, though its writer was lost; whether it is complete.

    Raises ApiError 423 while another request holds its lease.
    """
    if slot.upload.completed_at is not None:
        return True
    total = slot.upload.total_bytes
    if not slot.awaiting or total is None or await counted_bytes(context, slot) != total:
        return False
    async with hold_lease(context, slot, wait_seconds=0) as lease:
        if lease.slot.upload.completed_at is not None:
            return True
        if await recover_offset(lease) != total:
            return False
        await finish(lease, total)
    return True


async def finish_for_lost_writers(context: AppContext) -> None:
    """Release the leases of lost writers, and finish uploads of which every byte had arrived.

    A client that saw all of it accepted sends no further request.
    """
    lost_after = timedelta(seconds=context.settings.upload_idle_seconds + 5)
    read = context.database.read
    for upload in await read(uploads.list_lost_writers, lost_after=lost_after, limit=_AT_ONCE):
        of = upload.job_id, upload.slot
        if not await read(uploads.forget_writer, *of, lost_after=lost_after):
            continue
        try:
            slot = await open_slot(context, str(upload.job_id), upload.slot)
            if await finish_if_complete(context, slot):
                log.warning("job %s: %s was finished for a lost writer", *of)
        except (ApiError, PartialBusyError, ObjectStoreUnavailableError) as error:
            # Its client has come back, its job has ended, or the next request settles it.
            log.info("job %s: %s is left as it is: %s", *of, error)
