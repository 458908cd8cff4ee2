"""``GET /jobs/{jobId}/media`` and stills of scenes, under signed addresses that need no key.

Media are served in ranges, as long as the job's source is kept (``VAS_SOURCE_RETENTION_SECONDS``
after its end).
"""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api import downloads
from serve_app.api.envelope import API_PREFIX, Context
from serve_app.api.urls import OVERVIEW_STILL, STILL_PURPOSE, parse_job_id, require_active_owner
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError
from serve_app.errors import ApiError, ErrorCode
from storage import history, jobs
from storage.database import Connection
from storage.history import find_source_key
from storage.job_records import JobRecord
from storage.objects import ObjectNotFoundError
from storage.results import find_overview, find_people
from storage.types import PreviewStatus
from storage.uploads import Preview, find_preview, preview_key

_PURPOSE = "media"
_LIFETIME_HOURS = 12
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
class PlayableMedia:
    """Signed paths of a job's media, good for half a day; None where it is not kept.

    A timeline of several clips has no file of its own.
    """

    player: str | None = None
    """What a browser plays: the source, or its preview once that is made."""
    source: str | None = None
    preview: Preview | None = None
    """What became of the preview, where the source is nothing that browsers play."""
    is_gone: bool = False
    """Whether the media was removed, not merely kept back as that of a redacted job is."""

    @property
    def waits(self) -> bool:
        """Whether the preview is still to come."""
        waiting = self.preview is not None and self.preview.status is PreviewStatus.WAITING
        return waiting and not self.is_gone


async def find_media(context: AppContext, connection: Connection, job: JobRecord) -> PlayableMedia:
    """Return where the job's media is."""
    preview = await find_preview(connection, job.id)
    key = await find_source_key(connection, job)
    if key is None or not await run_in_threadpool(context.objects.exists, key):
        return PlayableMedia(preview=preview, is_gone=True)
    # Whole hours, so that a page that is read twice shows the same address.
    expires_at = (int(time.time()) // 3600 + _LIFETIME_HOURS + 1) * 3600
    path = f"{API_PREFIX}/jobs/{job.id}/media"
    signed = context.signer.sign_path(_PURPOSE, path, expires_at=expires_at)
    if job.hides_sound:
        return PlayableMedia(signed if _is_made(job, preview) else None, None, preview)
    playable = preview is None or preview.status is PreviewStatus.MADE
    return PlayableMedia(signed if playable else None, f"{signed}&original=true", preview)


@dataclass(frozen=True, slots=True)
class _Held:
    """An object to show, and the place that it has."""

    key: str
    media_type: str
    place: downloads.DownloadPlace


async def _shown(
    request: Request,
    context: Context,
    job_id: str,
    expires: str = "",
    signature: str = "",
    original: str = "",
) -> AsyncIterator[_Held]:
    """Yield what the signed URL names, in a place of its account's; NOT_FOUND otherwise."""
    try:
        path = request.scope["path"]
        context.signer.check_path(_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise _missing() from None
    async with context.database.statement() as connection:
        job = await jobs.find_job(connection, parse_job_id(job_id))
        if job is None:
            raise _missing()
        await require_active_owner(connection, job.id)
        key = await find_source_key(connection, job)
        preview = await find_preview(connection, job.id)
        muted = await history.find_muted(connection, job.id)
    is_made = _is_made(job, preview)
    if key is None or (job.hides_sound and not is_made):
        raise _missing()
    media_type = _TYPES.get(PurePosixPath(job.file_name).suffix[1:].lower(), _UNNAMED)
    if is_made and (original != "true" or job.hides_sound):
        key, media_type = preview_key(job.id, muted), "video/mp4"
    with downloads.downloads_of(request, downloads.Download.MEDIA).place(job.account_id) as place:
        yield _Held(key, media_type, place)


def _is_made(job: JobRecord, preview: Preview | None) -> bool:
    """Not one of before the job's redaction."""
    made = preview is not None and preview.status is PreviewStatus.MADE
    return made and not job.shows_personal_data


def _missing() -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, "There is no such media, or it is not kept any more.")


@router.api_route("/jobs/{job_id}/media", methods=["GET", "HEAD"], include_in_schema=False)
async def get_media(
    request: Request, context: Context, shown: Annotated[_Held, Depends(_shown)]
) -> Response:
    """The media by its signed URL, or the range of it that is requested.

    Its preview in its place, where browsers cannot play it; with ``original=true`` what was sent.
    """
    store = context.objects
    try:
        size = await run_in_threadpool(store.size_bytes, shown.key)
    except ObjectNotFoundError:
        raise _missing() from None
    content = downloads.RangedContent(
        size, shown.media_type, functools.partial(store.read_range, shown.key)
    )
    # Shown by players only: opened by itself, whatever it is, it is saved.
    headers = {"Cache-Control": "private, max-age=3600", "Content-Disposition": "attachment"}
    return downloads.ranged_response(request, shown.place, content, headers)


PersonId = Annotated[str, Field(pattern=r"^person_\d{1,4}$")]
SecondStill = Annotated[str, Field(pattern=r"^(\d{1,9}|overview)-2$")]


@router.get("/jobs/{job_id}/thumbnails/{name}.jpg", include_in_schema=False)
async def get_thumbnail(
    request: Request,
    context: Context,
    job_id: str,
    name: int | Literal["overview"] | PersonId | SecondStill,
    expires: str = "",
    signature: str = "",
) -> Response:
    """The still of a scene (its index), of all, a second one of these, or of a person, by its
    signed URL; else NOT_FOUND."""
    missing = ApiError(ErrorCode.NOT_FOUND, "There is no such picture.")
    try:
        path = request.scope["path"]
        context.signer.check_path(STILL_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise missing from None
    await context.database.read(require_active_owner, parse_job_id(job_id))
    try:
        key = await _key(context, parse_job_id(job_id), str(name))
        picture = await run_in_threadpool(context.objects.read_bytes, key)
    except (LookupError, ObjectNotFoundError):
        raise missing from None
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(picture, media_type="image/jpeg", headers=headers)


async def _key(context: AppContext, job_id: uuid.UUID, name: str) -> str:
    """Of the still's object. Raises LookupError where there is none."""
    if name.startswith("person_"):
        async with context.database.statement() as connection:
            people = json.loads(await find_people(connection, job_id) or "[]")
        return str({each["id"]: each["still_key"] for each in people}[name])
    of, _, second = name.partition("-")
    if of == OVERVIEW_STILL:
        async with context.database.statement() as connection:
            part = [json.loads(await find_overview(connection, job_id) or "{}")]
        wanted = part[0]["index"]
    else:
        scenes, wanted = await context.parts.find_scenes(job_id), int(of)
        part = [] if scenes is None else scenes.read(wanted)
    scene = {each["index"]: each for each in part}[wanted]
    return str(scene["stills"][1]["key"] if second else scene["thumbnail_key"])
