"""The streaming PUT: bounded memory, all of the file or nothing of it."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import uuid
from datetime import timedelta

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.api.context import context_of
from serve_app.api.envelope import success
from serve_app.api.upload_urls import resumable_key
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.signing import ExpiredSignatureError
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
from serve_app.uploads.limiter import UploadGate, upload_gate
from serve_app.uploads.receiving import Rules, receive
from serve_app.uploads.watch import Watch
from serve_app.uploads.writing import PieceWriter
from storage import uploads
from storage.database import UNAVAILABLE

log = logging.getLogger("vas.uploads")

_RECORD_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)

_RANGE = re.compile(r"bytes 0-(?P<last>\d{1,18})/(?P<whole>\d{1,18})", re.IGNORECASE)


async def put_upload(
    request: Request, job_id: str, slot: str, expires: str = "", signature: str = ""
) -> Response:
    """Take one file of a job. A second complete PUT replaces the first until the job is queued."""
    context, gate = context_of(request), upload_gate(request)
    request.state.answer_headers = ANY_ORIGIN
    with closing_unread(request):
        try:
            check_signature(request, expires, signature)
        except ExpiredSignatureError:
            raise unauthorized() from None
        found = await open_slot(context, job_id, slot)
        require_awaiting(found.job)
        _require_all_of_it(request.headers.get("content-range"))
        await _refuse_hopeless(context, found, content_length(request))
        with gate.enter():
            received = await _take(request, context, gate, found)
    data = {"jobId": str(found.job.id), "receivedBytes": received}
    return success(request, data, headers=ANY_ORIGIN)


def _require_all_of_it(content_range: str | None) -> None:
    """A part of a file must not pass for the file (RFC 9110, section 14.5)."""
    if content_range is None:
        return
    found = _RANGE.fullmatch(content_range.strip())
    if found is None or int(found["last"]) + 1 != int(found["whole"]):
        message = "A PUT takes the whole file; parts go to resumableUploadUrl."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


async def _refuse_hopeless(context: AppContext, slot: Slot, declared: int | None) -> None:
    """Refuse before a byte is read what cannot succeed."""
    if declared is None:
        return
    if declared > slot.limit_bytes:
        raise too_large(slot)
    _require_promised_size(slot, declared)
    await require_room(context, declared)


def _require_promised_size(slot: Slot, size_bytes: int) -> None:
    """A file of another size than the job's creation said is not the file that was meant."""
    promised = slot.upload.declared_bytes
    if promised is not None and size_bytes != promised:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The file has {size_bytes} bytes; the job was created for one of {promised}.",
            param="fileSizeBytes",
        )


async def _take(request: Request, context: AppContext, gate: UploadGate, slot: Slot) -> int:
    # A name of its own: a PUT that loses a race has touched nobody else's file.
    key = f"{resumable_key(slot.job.id, slot.upload.slot)}-{uuid.uuid4().hex}"
    try:
        received = await _store(request, context, gate, slot, key)
        _require_promised_size(slot, received)
        await _record(context, slot, received, key)
    except ApiError:
        await asyncio.to_thread(context.objects.delete, key)
        raise
    except ClientDisconnect:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The upload broke off.") from None
    return received


async def _record(context: AppContext, slot: Slot, received: int, key: str) -> None:
    """Record the file; a database that is away for a moment must not cost all that was sent."""
    for pause_seconds in _RECORD_PAUSES_SECONDS:
        try:
            await record_complete(context, slot.job.id, slot.upload.slot, received, key)
        except UNAVAILABLE as error:
            log.warning("job %s: its file is there, recording waits: %s", slot.job.id, error)
            await asyncio.sleep(pause_seconds)
        else:
            return
    await record_complete(context, slot.job.id, slot.upload.slot, received, key)


async def _store(
    request: Request, context: AppContext, gate: UploadGate, slot: Slot, key: str
) -> int:
    keep = functools.partial(_keep_arriving, context, slot)
    if not await keep(True):
        require_awaiting((await open_slot(context, str(slot.job.id), slot.upload.slot)).job)
    limit = slot.limit_bytes
    if slot.upload.declared_bytes is not None:
        limit = min(limit, slot.upload.declared_bytes)
    rules = Rules(limit, functools.partial(_over, slot, limit))
    writer = await PieceWriter.open(context.objects.writer(key), gate.threads)
    watch = Watch(keep, context.settings, exclusive=False)
    return await receive(request, writer, rules, watch)


def _over(slot: Slot, limit_bytes: int) -> ApiError:
    if limit_bytes == slot.limit_bytes:
        return too_large(slot)
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"The file has more than the {limit_bytes} bytes that the job was created for.",
        param="fileSizeBytes",
    )


async def _keep_arriving(context: AppContext, slot: Slot, arriving: bool) -> bool:
    lease = timedelta(seconds=context.settings.upload_lease_seconds)
    async with context.database.statement() as connection:
        return await uploads.keep_arriving(
            connection, slot.job.id, slot.upload.slot, lease=lease, arriving=arriving
        )
