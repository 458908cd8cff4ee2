"""Resumable uploads in the store: offsets, completion, and those whose writer was lost."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from serve_app.context import AppContext
from serve_app.errors import ApiError
from serve_app.uploads.access import Slot, open_slot, record_complete
from serve_app.uploads.leases import UploadLease, hold_lease
from serve_app.uploads.urls import resumable_key
from storage import uploads
from storage.objects import ObjectStore, ObjectStoreUnavailableError, PartialBusyError
from storage.uploads import Upload

log = logging.getLogger("vas.uploads")

_AT_ONCE = 20


def slot_key(slot: Slot) -> str:
    """Where the slot's resumable upload lies."""
    return resumable_key(slot.job.id, slot.upload.slot)


async def counted_bytes(context: AppContext, slot: Slot) -> int:
    """The upload's offset: what arrived and counts."""
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
    async with context.database.statement() as connection:
        lost = await uploads.list_lost_writers(connection, lost_after=lost_after, limit=_AT_ONCE)
    for upload in lost:
        async with context.database.statement() as connection:
            if not await uploads.forget_writer(
                connection, upload.job_id, upload.slot, lost_after=lost_after
            ):
                continue
        await _settle(context, upload)


async def _settle(context: AppContext, upload: Upload) -> None:
    try:
        if await finish_if_complete(
            context, await open_slot(context, str(upload.job_id), upload.slot)
        ):
            log.warning("job %s: %s was finished for a lost writer", upload.job_id, upload.slot)
    except (ApiError, PartialBusyError, ObjectStoreUnavailableError) as error:
        # Its client has come back, its job has ended, or the next request settles it.
        log.info("job %s: %s is left as it is: %s", upload.job_id, upload.slot, error)
