"""The streaming PUT: bounded memory, all of the file or nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.errors import ApiError, ErrorCode
from serve_app.http.envelope import success
from serve_app.http.signing import BadSignatureError
from serve_app.jobs.plans import max_upload_bytes
from serve_app.jobs.service import get_any_job
from serve_app.uploads.urls import UPLOAD_PURPOSE, UPLOADS_PATH
from serve_app.world import World
from storage import jobs, uploads
from storage.job_records import JobRecord
from storage.objects import ObjectStore
from storage.types import JobState

_BUFFER_BYTES = 1024 * 1024
"""Written in pieces of this size: large enough for the disk, small enough for many at once."""

router = APIRouter(prefix=UPLOADS_PATH)


class UploadGate:
    """At most so many uploads at once in this process; more are told to come back."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place for the block; raises SERVICE_UNAVAILABLE if there is none."""
        if self._free <= 0:
            raise ApiError(
                ErrorCode.SERVICE_UNAVAILABLE,
                "Too many uploads are running.",
            )
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


@router.put("/{job_id}/{slot}", include_in_schema=False)
async def put_upload(
    request: Request, job_id: str, slot: str, expires: str = "", signature: str = ""
) -> Response:
    """Take one file of a job. A second complete PUT replaces the first until the job is queued."""
    world: World = request.app.state.world
    try:
        world.signer.check_path(
            UPLOAD_PURPOSE, request.url.path, expires=expires, signature=signature
        )
    except BadSignatureError:
        raise ApiError(
            ErrorCode.UNAUTHORIZED, "The upload URL is not valid or has expired."
        ) from None
    async with world.database.transaction() as connection:
        job = await get_any_job(connection, job_id)
        upload = _find_upload(await uploads.list_uploads(connection, job.id), slot)
    _require_awaiting(job)
    limit = max_upload_bytes(world.settings, job.tier)
    _check_declared(request, limit, job)
    with request.app.state.upload_gate.enter():
        received = await _store(request, world.objects, upload.object_key, limit, job)
    await _complete(world, job, slot, received)
    return success(request, {"jobId": str(job.id), "receivedBytes": received})


def _find_upload(found: list[uploads.Upload], slot: str) -> uploads.Upload:
    upload = next((item for item in found if item.slot == slot), None)
    if upload is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such upload.")
    return upload


def _require_awaiting(job: JobRecord) -> None:
    if job.state is not JobState.AWAITING_UPLOAD:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The job takes no upload any more: it is {job.state}.",
            status=409,
            extra={"jobId": str(job.id), "state": str(job.state)},
        )


def _too_large(limit: int, job: JobRecord) -> ApiError:
    return ApiError(
        ErrorCode.FILE_TOO_LARGE,
        f"The file must not be larger than {limit} bytes.",
        extra={"maxUploadBytes": limit, "formatTier": str(job.tier)},
        headers={"Connection": "close"},
    )


def _check_declared(request: Request, limit: int, job: JobRecord) -> None:
    """Refuse before a byte is read what cannot succeed."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, job)


async def _store(request: Request, store: ObjectStore, key: str, limit: int, job: JobRecord) -> int:
    """Stream the body into the store; a broken-off or oversized body leaves nothing behind."""
    received = 0
    try:
        with store.writer(key) as stream:
            async for piece in _pieces(request):
                received += len(piece)
                if received > limit:
                    raise _too_large(limit, job)
                await asyncio.to_thread(_write, stream, piece)
    except ClientDisconnect:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The upload broke off.") from None
    return received


def _write(stream: BinaryIO, piece: bytes) -> None:
    stream.write(piece)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in request.stream():
        buffer += chunk
        if len(buffer) >= _BUFFER_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


async def _complete(world: World, job: JobRecord, slot: str, received: int) -> None:
    """Record the file; the last one queues the job, exactly once."""
    async with world.database.transaction() as connection:
        current = await jobs.find_job(connection, job.id, for_update=True)
        if current is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
        _require_awaiting(current)
        if await uploads.complete_upload(connection, job.id, slot, received):
            await jobs.set_state(
                connection, job.id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
