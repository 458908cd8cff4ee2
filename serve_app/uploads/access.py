"""One file of one job behind a signed URL: checks before a byte is read, CORS, completion."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from pipelines.types import WarningCode
from serve_app.api.authentication import parse_job_id, require_active_owner
from serve_app.api.context import context_of
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError, ExpiredSignatureError
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.settings import Settings
from serve_app.uploads.urls import UPLOAD_PURPOSE
from storage import jobs, uploads
from storage.database import Connection
from storage.job_records import JobRecord
from storage.types import JobState
from storage.uploads import Upload

_EXPOSED = (
    "Location, Retry-After, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, "
    "Tus-Version, Upload-Defer-Length, Upload-Expires, Upload-Length, Upload-Offset, X-Request-Id"
)
_SENT = (
    "Content-Type, Tus-Resumable, Upload-Checksum, Upload-Length, Upload-Offset, "
    "X-HTTP-Method-Override, X-Request-Id, X-Requested-With"
)

ANY_ORIGIN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": _EXPOSED,
}
"""On every answer of an upload's address."""


_DISCARDED_BYTES = 64 * 1024
"""The rest of so small a body is read and dropped; for a larger one the connection is closed."""

_SPARE_BYTES = 64 * 1024 * 1024
"""Space that stays free on the disk, for the database and other processes."""


def preflight(methods: str) -> dict[str, str]:
    """The answer to a browser's preflight request."""
    return ANY_ORIGIN | {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": "86400",
    }


async def put_options(request: Request) -> Response:
    """The preflight of a plain PUT."""
    return Response(status_code=204, headers=preflight("PUT, OPTIONS") | {"Allow": "PUT, OPTIONS"})


@dataclass(frozen=True, slots=True)
class Slot:
    """A file of a job, as it was when the request came."""

    job: JobRecord
    upload: Upload
    limit_bytes: int

    @property
    def awaiting(self) -> bool:
        return self.job.state is JobState.AWAITING_UPLOAD


def check_signature(request: Request, expires: str, signature: str) -> None:
    """Raises UNAUTHORIZED; ExpiredSignatureError for an address whose time is over."""
    # The path that was routed by, not one put together from it and the Host header.
    path, signer = request.scope["path"], context_of(request).signer
    try:
        signer.check_path(UPLOAD_PURPOSE, path, expires=expires, signature=signature)
    except ExpiredSignatureError:
        raise
    except BadSignatureError:
        raise unauthorized() from None


def unauthorized() -> ApiError:
    return ApiError(ErrorCode.UNAUTHORIZED, "The upload URL is not valid or has expired.")


async def open_slot(context: AppContext, job_id: str, slot: str) -> Slot:
    """The file that the address names; raises NOT_FOUND, ACCOUNT_SUSPENDED."""
    async with context.database.statement() as connection:
        job = await jobs.find_job(connection, parse_job_id(job_id))
        if job is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such job.")
        await require_active_owner(connection, job.id)
        upload = await uploads.find_upload(connection, job.id, slot)
    if upload is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such upload.")
    return Slot(job, upload, upload_limit(context.settings, job))


def upload_limit(settings: Settings, job: JobRecord) -> int:
    """The most bytes that a file of the job may have."""
    return settings.max_upload_bytes(job.tier)


def require_awaiting(job: JobRecord) -> None:
    """Raises 409 for a job that takes no upload any more."""
    if job.state is not JobState.AWAITING_UPLOAD:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The job takes no upload any more: it is {job.state}.",
            status=409,
            extra={"jobId": str(job.id), "state": str(job.state)},
        )


def too_large(slot: Slot) -> ApiError:
    """413, naming the limit."""
    return ApiError(
        ErrorCode.FILE_TOO_LARGE,
        f"The file must not be larger than {slot.limit_bytes} bytes.",
        extra={"maxUploadBytes": slot.limit_bytes, "formatTier": str(slot.job.tier)},
    )


def empty_file() -> ApiError:
    """400: nothing can be analysed in no bytes."""
    return invalid("The file is empty.", "fileSizeBytes")


async def require_room(context: AppContext, size_bytes: int) -> None:
    """Raises SERVICE_UNAVAILABLE where the store cannot hold so much more."""
    free = await asyncio.to_thread(context.objects.free_bytes)
    if free is not None and size_bytes > max(0, free - _SPARE_BYTES):
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "There is no room for the file.")


def content_length(request: Request) -> int | None:
    """The length that the body declares; None for one that comes in chunks."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdigit() else None


@contextlib.contextmanager
def closing_unread(request: Request) -> Iterator[None]:
    """A refusal closes the connection if more than _DISCARDED_BYTES of the body may follow."""
    try:
        yield
    except ApiError as error:
        read = getattr(request.state, "body_read", False)
        length = content_length(request)
        chunked = "transfer-encoding" in request.headers
        if not read and (chunked or (length or 0) > _DISCARDED_BYTES):
            error.headers.setdefault("Connection", "close")
        raise


async def warn_of_length(
    connection: Connection, job: JobRecord, upload: Upload, *, missing: bool
) -> None:
    """Set or clear the warning that bytes of the upload came without its length being stated."""
    message = (
        f"The length of {upload.file_name} is not stated, so that its upload cannot be complete: "
        "give fileSizeBytes when the job is created, or Upload-Length with a PATCH."
    )
    warning = {"code": WarningCode.UPLOAD_LENGTH_MISSING, "message": message}
    if (warning in job.warnings) != missing:
        await jobs.set_warning(connection, job.id, warning, holds=missing)


async def record_complete(
    context: AppContext, job_id: uuid.UUID, slot: str, received_bytes: int, object_key: str
) -> None:
    """The file lies under ``object_key``; one that came before it is removed.

    Raises ApiError 409 where the job takes no upload any more: then the caller
    has to delete its object.
    """
    async with context.database.transaction() as connection:
        # The job's lock makes completions one after the other: only one is the last.
        job = await jobs.find_job(connection, job_id, for_update=True)
        earlier = await uploads.find_upload(connection, job_id, slot)
        if job is None or earlier is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such upload.")
        if (earlier.received_bytes, earlier.object_key) == (received_bytes, object_key):
            return  # recorded already by another request
        require_awaiting(job)
        await warn_of_length(connection, job, earlier, missing=False)
        if await uploads.complete_upload(
            connection, job_id, slot, received_bytes, object_key=object_key
        ):
            await jobs.set_state(
                connection, job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
    if earlier.completed_at is not None and earlier.object_key != object_key:
        await asyncio.to_thread(context.objects.delete, earlier.object_key)
