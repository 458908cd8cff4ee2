"""Stills of scenes, under signed addresses that need no key."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import parse_job_id, require_active_owner
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import public_url
from serve_app.crypto import BadSignatureError, Signer
from serve_app.errors import ApiError, ErrorCode
from serve_app.jobs import answers
from serve_app.jobs.documents import StoredScene
from storage.objects import ObjectNotFoundError
from storage.results import find_thumbnail_key

_PURPOSE = "thumbnail"
_LIFETIME_HOURS = 24

router = APIRouter(prefix=API_PREFIX)


def still_path(signer: Signer, job_id: uuid.UUID, index: int) -> str:
    """The signed path of a scene's still, good for a day."""
    # Whole hours, so that a list that is read twice shows the same addresses.
    expires_at = (int(time.time()) // 3600 + _LIFETIME_HOURS + 1) * 3600
    path = f"{API_PREFIX}/jobs/{job_id}/thumbnails/{index}.jpg"
    return signer.sign_path(_PURPOSE, path, expires_at=expires_at)


def with_thumbnails(
    request: Request, job_id: uuid.UUID, scenes: list[StoredScene]
) -> list[answers.Scene]:
    """Stored scenes with ``thumbnailUrl`` in place of the object's key."""
    signer = context_of(request).signer
    for scene in scenes:
        scene["thumbnailUrl"] = public_url(request) + still_path(signer, job_id, scene["index"])
        scene.pop("thumbnailKey", None)
    return [*scenes]


@router.get("/jobs/{job_id}/thumbnails/{index}.jpg", include_in_schema=False)
async def get_thumbnail(
    request: Request, job_id: str, index: int, expires: str = "", signature: str = ""
) -> Response:
    """A still, by its signed URL; NOT_FOUND otherwise."""
    context = context_of(request)
    missing = ApiError(ErrorCode.NOT_FOUND, "There is no such picture.")
    try:
        path = request.scope["path"]
        context.signer.check_path(_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise missing from None
    async with context.database.statement() as connection:
        await require_active_owner(connection, parse_job_id(job_id))
        key = await find_thumbnail_key(connection, parse_job_id(job_id), index)
    if key is None:
        raise missing
    try:
        picture = await run_in_threadpool(context.objects.read_bytes, key)
    except ObjectNotFoundError:
        raise missing from None
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(picture, media_type="image/jpeg", headers=headers)
