"""The streaming PUT: bounded memory, all of the file or nothing of it."""

from __future__ import annotations

import asyncio
import functools
import uuid
from datetime import timedelta

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.errors import ApiError, ErrorCode
from serve_app.http.context import world_of
from serve_app.http.envelope import success
from serve_app.http.signing import ExpiredSignatureError
from serve_app.uploads.access import (
    Slot,
    check_signature,
    closing_unread,
    content_length,
    open_slot,
    require_awaiting,
    require_room,
    too_large,
    unauthorized,
)
from serve_app.uploads.completion import record_complete
from serve_app.uploads.cors import ANY_ORIGIN
from serve_app.uploads.gate import UploadGate, upload_gate
from serve_app.uploads.receiving import Rules, receive
from serve_app.uploads.urls import resumable_key
from serve_app.uploads.watch import Watch
from serve_app.uploads.writing import PieceWriter
from serve_app.world import World
from storage import uploads


async def put_upload(
    request: Request, job_id: str, slot: str, expires: str = "", signature: str = ""
) -> Response:
    """Take one file of a job. A second complete PUT replaces the first until the job is queued."""
    world, gate = world_of(request), upload_gate(request)
    request.state.answer_headers = ANY_ORIGIN
    with closing_unread(request):
        try:
            check_signature(request, expires, signature)
        except ExpiredSignatureError:
            raise unauthorized() from None
        found = await open_slot(world, job_id, slot)
        require_awaiting(found.job)
        await _refuse_hopeless(world, found, content_length(request))
        with gate.enter():
            received = await _take(request, world, gate, found)
    data = {"jobId": str(found.job.id), "receivedBytes": received}
    return success(request, data, headers=ANY_ORIGIN)


async def _refuse_hopeless(world: World, slot: Slot, declared: int | None) -> None:
    """Refuse before a byte is read what cannot succeed."""
    if declared is None:
        return
    if declared > slot.limit_bytes:
        raise too_large(slot)
    _require_promised_size(slot, declared)
    await require_room(world, declared)


def _require_promised_size(slot: Slot, size_bytes: int) -> None:
    """A file of another size than the job's creation said is not the file that was meant."""
    promised = slot.upload.declared_bytes
    if promised is not None and size_bytes != promised:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The file has {size_bytes} bytes; the job was created for one of {promised}.",
            param="fileSizeBytes",
        )


async def _take(request: Request, world: World, gate: UploadGate, slot: Slot) -> int:
    # A name of its own: a PUT that loses a race has touched nobody else's file.
    key = f"{resumable_key(slot.job.id, slot.upload.slot)}-{uuid.uuid4().hex}"
    try:
        received = await _store(request, world, gate, slot, key)
        _require_promised_size(slot, received)
        await record_complete(world, slot.job.id, slot.upload.slot, received, key)
    except ApiError:
        await asyncio.to_thread(world.objects.delete, key)
        raise
    except ClientDisconnect:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The upload broke off.") from None
    return received


async def _store(request: Request, world: World, gate: UploadGate, slot: Slot, key: str) -> int:
    keep = functools.partial(_keep_arriving, world, slot)
    if not await keep(True):
        require_awaiting((await open_slot(world, str(slot.job.id), slot.upload.slot)).job)
    limit = slot.limit_bytes
    if slot.upload.declared_bytes is not None:
        limit = min(limit, slot.upload.declared_bytes)
    rules = Rules(limit, functools.partial(_over, slot, limit))
    writer = await PieceWriter.open(world.objects.writer(key), gate.threads)
    watch = Watch(keep, world.settings)
    return await receive(request, writer, rules, watch)


def _over(slot: Slot, limit_bytes: int) -> ApiError:
    if limit_bytes == slot.limit_bytes:
        return too_large(slot)
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"The file has more than the {limit_bytes} bytes that the job was created for.",
        param="fileSizeBytes",
    )


async def _keep_arriving(world: World, slot: Slot, arriving: bool) -> bool:
    lease = timedelta(seconds=world.settings.upload_lease_seconds)
    async with world.database.statement() as connection:
        return await uploads.keep_arriving(
            connection, slot.job.id, slot.upload.slot, lease=lease, arriving=arriving
        )
