"""Stills of scenes, under signed addresses that need no key."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import parse_job_id, require_active_owner
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.urls import OVERVIEW_STILL, STILL_PURPOSE
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError
from serve_app.errors import ApiError, ErrorCode
from storage.objects import ObjectNotFoundError
from storage.results import find_overview, find_people

router = APIRouter(prefix=API_PREFIX)
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
    async with context.database.statement() as connection:
        await require_active_owner(connection, parse_job_id(job_id))
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
