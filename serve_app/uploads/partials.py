"""Resumable uploads in the store: how much counts, what is dropped, when one is complete."""

from __future__ import annotations

import asyncio

from serve_app.api.upload_urls import resumable_key
from serve_app.context import AppContext
from serve_app.errors import ApiError
from serve_app.uploads.access import Slot
from serve_app.uploads.completion import record_complete
from serve_app.uploads.leases import Claim, claimed
from storage.objects import ObjectStore


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


async def recover_offset(claim: Claim) -> int:
    """``counted_bytes`` for the writer, who drops what a dead one left unverified."""
    offset = await counted_bytes(claim.context, claim.slot)
    if claim.slot.upload.unverified_from_bytes is not None:
        await drop_back(claim, offset)
    return offset


async def drop_back(claim: Claim, offset_bytes: int) -> None:
    """Forget what lies beyond ``offset_bytes``, unless the right to write was lost."""
    if not await claim.keep(True):
        return
    await asyncio.to_thread(_truncate, claim.context.objects, slot_key(claim.slot), offset_bytes)
    await claim.set_unverified(None)


def _truncate(store: ObjectStore, key: str, size_bytes: int) -> None:
    if store.partial_size_bytes(key) > size_bytes:
        store.truncate_partial(key, size_bytes)


async def finish(claim: Claim, total_bytes: int) -> None:
    """Make the complete partial the file and record it; raises ApiError 409 if nobody wants it."""
    key, store, job = slot_key(claim.slot), claim.context.objects, claim.slot.job
    async with claim.kept():
        await asyncio.to_thread(_finish, store, key, total_bytes)
    try:
        await record_complete(claim.context, job.id, claim.slot.upload.slot, total_bytes, key)
    except ApiError:
        await asyncio.to_thread(store.delete, key)
        raise


def _finish(store: ObjectStore, key: str, total_bytes: int) -> None:
    if total_bytes == 0 and not store.exists(key):
        with store.append_partial(key, 0):
            pass
    store.finish_partial(key)


async def settle(context: AppContext, slot: Slot) -> bool:
    """Finish an upload of which all bytes came, though its writer died; whether it is complete.

    Raises ApiError 423 while another request is at work on it.
    """
    if slot.upload.completed_at is not None:
        return True
    total = slot.upload.total_bytes
    if not slot.awaiting or total is None or await counted_bytes(context, slot) != total:
        return False
    async with claimed(context, slot, wait_seconds=0) as claim:
        if claim.slot.upload.completed_at is not None:
            return True
        if await recover_offset(claim) != total:
            return False
        await finish(claim, total)
    return True
