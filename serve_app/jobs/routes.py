"""Endpoints of jobs and their results."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.http.authentication import KeyedRoute, principal_of
from serve_app.http.bodies import read_json_object
from serve_app.http.envelope import json_path, public_url, success
from serve_app.http.signing import BadSignatureError
from serve_app.jobs import captions_files, results, service
from serve_app.jobs.rendering import render_job
from serve_app.jobs.schemas import CreateJobBody
from serve_app.uploads.urls import upload_fields
from serve_app.world import World
from storage.jobs import JobRecord
from storage.results import get_scenes
from storage.types import StageName
from storage.uploads import list_uploads

API_PREFIX = "/v1/api"
_INCLUDABLE = frozenset({"scenes", "transcript"})
_THUMBNAIL_HOURS = 24

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Jobs"])
open_router = APIRouter(prefix=API_PREFIX)


def world_of(request: Request) -> World:
    """What this process was built with."""
    world: World = request.app.state.world
    return world


def base_url(request: Request) -> str:
    """The service's base address, path prefix included."""
    return f"{public_url(request)}{API_PREFIX}"


@router.post(
    "/jobs",
    operation_id="createJob",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": CreateJobBody.model_json_schema()}},
        }
    },
)
async def create_job(request: Request) -> Response:
    """Create a job whose media is uploaded next."""
    world = world_of(request)
    raw = await read_json_object(request, max_bytes=world.settings.max_body_bytes)
    body = _validated(raw)
    account_id = principal_of(request).account_id
    async with world.database.transaction() as connection:
        job = await service.create_upload_job(
            connection, account_id, body, settings=world.settings, base_url=base_url(request)
        )
        uploads = await list_uploads(connection, job.id)
    data = render_job(job, base_url(request)) | upload_fields(
        job, uploads, signer=world.signer, settings=world.settings, public=public_url(request)
    )
    return success(request, data, status=201, headers={"Location": data["links"]["self"]})


def _validated(raw: dict[str, Any]) -> CreateJobBody:
    try:
        return CreateJobBody.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = json_path(first["loc"]) or None
        raise invalid(f"{param or 'The body'}: {first['msg']}.", param) from error


@router.get("/jobs/{jobId}", operation_id="getJob")
async def get_job(request: Request, jobId: str, include: str | None = None) -> Response:  # noqa: N803
    """A job, by default with the results of its completed stages."""
    wanted = _parse_include(include)
    world = world_of(request)
    async with world.database.transaction() as connection:
        job = await service.get_job(connection, principal_of(request).account_id, jobId)
        data = render_job(job, base_url(request))
        if wanted:
            processed = await results.processed_data(connection, job, wanted)
            if "scenes" in processed:
                processed["scenes"] = _with_thumbnails(request, job, processed["scenes"])
            data["processedData"] = processed
    return success(request, data)


def _parse_include(include: str | None) -> frozenset[str]:
    if include is None:
        return _INCLUDABLE
    if include == "none":
        return frozenset()
    wanted = frozenset(include.split(","))
    if not wanted <= _INCLUDABLE:
        raise invalid("include must be `none` or a list of `scenes` and `transcript`.", "include")
    return wanted


@router.post("/jobs/{jobId}/cancel", operation_id="cancelJob")
async def cancel_job(request: Request, jobId: str) -> Response:  # noqa: N803
    """Cancel a job that has not ended; completed stages stay charged and readable."""
    return success(request, await _cancel(request, jobId))


async def _cancel(request: Request, job_id: str) -> dict[str, Any]:
    async with world_of(request).database.transaction() as connection:
        job = await service.cancel_job(connection, principal_of(request).account_id, job_id)
    return render_job(job, base_url(request))


@router.get("/jobs/{jobId}/scenes", operation_id="getScenes")
async def get_scenes_of_job(request: Request, jobId: str) -> Response:  # noqa: N803
    """The scenes of a job; empty when the video has no cuts."""
    async with world_of(request).database.transaction() as connection:
        job = await service.get_job(connection, principal_of(request).account_id, jobId)
        results.require_stage(job, StageName.VISION)
        scenes = await get_scenes(connection, job.id)
    data = {"jobId": str(job.id), "scenes": _with_thumbnails(request, job, scenes)}
    return success(request, data)


@router.get("/jobs/{jobId}/transcript", operation_id="getTranscript")
async def get_transcript(
    request: Request,
    jobId: str,  # noqa: N803
    format: Literal["json", "srt", "vtt", "txt"] = "json",  # noqa: A002
    track: int | None = Query(None, ge=0, le=255),
) -> Response:
    """The transcript as JSON or as a caption or text file."""
    async with world_of(request).database.transaction() as connection:
        job = await service.get_job(connection, principal_of(request).account_id, jobId)
        tracks = await results.read_tracks(connection, job)
    if format == "json":
        if track is None and len(tracks) > 1:
            return success(request, results.combined_transcript_json(job, tracks))
        chosen = results.choose_track(job, tracks, track)
        return success(request, results.transcript_json(job, chosen, multi=len(tracks) > 1))
    chosen = results.choose_track(job, tracks, track)
    return captions_files.file_response(job, chosen, format)


def _with_thumbnails(
    request: Request, job: JobRecord, scenes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    signer = world_of(request).signer
    # Whole hours, so that a page that is read twice shows the same addresses.
    expires_at = (int(time.time()) // 3600 + _THUMBNAIL_HOURS + 1) * 3600
    public = public_url(request)
    rendered = []
    for scene in scenes:
        path = f"{API_PREFIX}/jobs/{job.id}/thumbnails/{scene['index']}.jpg"
        url = public + signer.sign_path("thumbnail", path, expires_at=expires_at)
        rendered.append(
            {name: value for name, value in scene.items() if name != "thumbnailKey"}
            | {"thumbnailUrl": url}
        )
    return rendered


@open_router.get("/jobs/{jobId}/thumbnails/{index}.jpg", include_in_schema=False)
async def get_thumbnail(
    request: Request,
    jobId: str,  # noqa: N803
    index: int,
    expires: str = "",
    signature: str = "",
) -> Response:
    """A still of a scene, for whoever holds the signed address."""
    world = world_of(request)
    missing = ApiError(ErrorCode.NOT_FOUND, "There is no such picture.")
    try:
        world.signer.check_path("thumbnail", request.url.path, expires=expires, signature=signature)
    except BadSignatureError:
        raise missing from None
    async with world.database.transaction() as connection:
        job = await service.get_any_job(connection, jobId)
        results.require_stage(job, StageName.VISION)
        scenes = await get_scenes(connection, job.id)
    key = next((scene["thumbnailKey"] for scene in scenes if scene["index"] == index), None)
    if key is None or not world.objects.exists(key):
        raise missing
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(world.objects.read_bytes(key), media_type="image/jpeg", headers=headers)
