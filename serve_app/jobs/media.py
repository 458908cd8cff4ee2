"""``GET /jobs/{jobId}/media``: what was analysed, under a signed address, in pieces as players ask.

There as long as the job's source is kept (``VAS_SOURCE_RETENTION_SECONDS`` after its end).
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from serve_app.api.authentication import parse_job_id
from serve_app.api.context import API_PREFIX, context_of
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError
from serve_app.errors import ApiError, ErrorCode, invalid
from storage import jobs, uploads
from storage.database import Connection
from storage.job_records import JobRecord
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.previews import Preview, find_preview
from storage.types import JobState, PreviewStatus
from storage.uploads import MEDIA_SLOT, preview_key, source_prefix

_PURPOSE = "media"
_LIFETIME_HOURS = 12
_BLOCK_BYTES = 1024**2
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_TYPES = {
    "mp4": "video/mp4", "m4v": "video/mp4", "mov": "video/mp4", "webm": "video/webm",
    "mkv": "video/webm", "ogv": "video/ogg", "mp3": "audio/mpeg", "m4a": "audio/mp4",
    "aac": "audio/aac", "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg",
    "oga": "audio/ogg", "opus": "audio/ogg",
}  # fmt: skip
"""Media types by the file name's ending. Nothing else is named, whatever the file holds."""
_UNNAMED = "application/octet-stream"

router = APIRouter(prefix=API_PREFIX)


@dataclass(frozen=True, slots=True)
class JobMedia:
    """Signed paths of a job's media, good for half a day; None where it is not kept.

    A programme of several clips has no file of its own.
    """

    player: str | None = None
    """What a browser plays: the source, or its preview once that is made."""
    source: str | None = None
    preview: Preview | None = None
    """What became of the preview, where the source is nothing that browsers play."""

    @property
    def waits(self) -> bool:
        """Whether the preview is still to come."""
        waiting = self.preview is not None and self.preview.status is PreviewStatus.WAITING
        return waiting and self.source is not None


async def find_media(context: AppContext, connection: Connection, job: JobRecord) -> JobMedia:
    """Where the job's media is."""
    preview = await find_preview(connection, job.id)
    key = await _source_key(connection, job)
    if key is None or not await run_in_threadpool(context.objects.exists, key):
        return JobMedia(preview=preview)
    # Whole hours, so that a page that is read twice shows the same address.
    expires_at = (int(time.time()) // 3600 + _LIFETIME_HOURS + 1) * 3600
    path = f"{API_PREFIX}/jobs/{job.id}/media"
    signed = context.signer.sign_path(_PURPOSE, path, expires_at=expires_at)
    playable = preview is None or preview.status is PreviewStatus.MADE
    return JobMedia(signed if playable else None, f"{signed}&original=true", preview)


async def _source_key(connection: Connection, job: JobRecord) -> str | None:
    if job.state in {JobState.AWAITING_UPLOAD, JobState.CANCELLED, JobState.EXPIRED}:
        return None
    if job.source.kind == "upload":
        upload = await uploads.find_upload(connection, job.id, MEDIA_SLOT)
        return None if upload is None or upload.completed_at is None else upload.object_key
    if job.source.kind == "url" and len(job.source.clips) == 1:
        return f"{source_prefix(job.id)}/clip-000"
    return None


@router.api_route("/jobs/{job_id}/media", methods=["GET", "HEAD"], include_in_schema=False)
async def get_media(
    request: Request, job_id: str, expires: str = "", signature: str = "", original: str = ""
) -> Response:
    """The media by its signed URL, or the range of it that is asked for; NOT_FOUND otherwise.

    Its preview in its place, where browsers cannot play it; with ``original=true`` what was sent.
    """
    context = context_of(request)
    missing = ApiError(ErrorCode.NOT_FOUND, "There is no such media, or it is not kept any more.")
    try:
        path = request.scope["path"]
        context.signer.check_path(_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise missing from None
    async with context.database.statement() as connection:
        job = await jobs.find_job(connection, parse_job_id(job_id))
        key = None if job is None else await _source_key(connection, job)
        preview = None if job is None else await find_preview(connection, job.id)
    if job is None or key is None:
        raise missing
    media_type = _TYPES.get(PurePosixPath(job.file_name).suffix[1:].lower(), _UNNAMED)
    if preview is not None and preview.status is PreviewStatus.MADE and original != "true":
        key, media_type = preview_key(job.id), "video/mp4"
    try:
        size = await run_in_threadpool(context.objects.size_bytes, key)
    except ObjectNotFoundError:
        raise missing from None
    return _answer(request, context.objects, key, size, media_type)


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of a file: from ``first`` up to, not including, ``end``."""

    first: int
    end: int


def _span(header: str, size: int) -> _Span | None:
    """What a ``Range`` header asks for; None for all, as for what is no single range of bytes.

    Raises 416 for a range that begins beyond the end. Source: RFC 9110, section 14.
    """
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(0, size - int(found[2])), size - 1
    else:
        first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    if last < first < size:
        return None
    if first >= size:
        headers = {"Content-Range": f"bytes */{size}"}
        error = invalid("The range lies beyond the end of the media.")
        raise ApiError(error.code, error.message, status=416, headers=headers)
    return _Span(first, min(last + 1, size))


def _answer(request: Request, store: ObjectStore, key: str, size: int, media_type: str) -> Response:
    span = _span(request.headers.get("range", ""), size)
    wanted = span or _Span(0, size)
    headers = {
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=3600",
        "Content-Length": str(wanted.end - wanted.first),
        # Shown by players only: opened by itself, whatever it is, it is saved.
        "Content-Disposition": "attachment",
    }
    if span is not None:
        headers["Content-Range"] = f"bytes {span.first}-{span.end - 1}/{size}"
    return StreamingResponse(
        _blocks(store, key, wanted) if request.method == "GET" else _nothing(),
        status_code=200 if span is None else 206,
        media_type=media_type,
        headers=headers,
    )


async def _blocks(store: ObjectStore, key: str, span: _Span) -> AsyncIterator[bytes]:
    for offset in range(span.first, span.end, _BLOCK_BYTES):
        count = min(_BLOCK_BYTES, span.end - offset)
        yield await run_in_threadpool(store.read_range, key, offset, count)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
