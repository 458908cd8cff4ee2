"""Stills of scenes, under signed addresses that need no key."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import parse_job_id, require_active_owner
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.urls import OVERVIEW_STILL, STILL_PURPOSE
from serve_app.crypto import BadSignatureError
from serve_app.errors import ApiError, ErrorCode
from storage.objects import ObjectNotFoundError
from storage.results import find_overview, find_people

router = APIRouter(prefix=API_PREFIX)
PersonId = Annotated[str, Field(pattern=r"^person_\d{1,4}$")]


@router.get("/jobs/{job_id}/thumbnails/{name}.jpg", include_in_schema=False)
async def get_thumbnail(
    request: Request,
    context: Context,
    job_id: str,
    name: int | Literal["overview"] | PersonId,
    expires: str = "",
    signature: str = "",
) -> Response:
    """The still of a scene (its index), of all, of a person, by its signed URL; else NOT_FOUND."""
    missing = ApiError(ErrorCode.NOT_FOUND, "There is no such picture.")
    try:
        path = request.scope["path"]
        context.signer.check_path(STILL_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        raise missing from None
    async with context.database.statement() as connection:
        await require_active_owner(connection, parse_job_id(job_id))
    if isinstance(name, int):
        scenes = await context.parts.find_scenes(parse_job_id(job_id))
        part = [] if scenes is None else scenes.read(name)
        key = {each["index"]: each["thumbnail_key"] for each in part}.get(name)
    elif name != OVERVIEW_STILL:
        async with context.database.statement() as connection:
            people = json.loads(await find_people(connection, parse_job_id(job_id)) or "[]")
        key = {each["id"]: each["still_key"] for each in people}.get(name)
    else:
        async with context.database.statement() as connection:
            overview = await find_overview(connection, parse_job_id(job_id))
        key = None if overview is None else json.loads(overview)["thumbnail_key"]
    if key is None:
        raise missing
    try:
        picture = await run_in_threadpool(context.objects.read_bytes, key)
    except ObjectNotFoundError:
        raise missing from None
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(picture, media_type="image/jpeg", headers=headers)
