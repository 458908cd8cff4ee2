"""The same face across a job's scenes: read, and deleted."""

from __future__ import annotations

from typing import Annotated, NotRequired

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.codec import decode
from pipelines.types import Person
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import public_url, success
from serve_app.api.openapi import errors
from serve_app.api.schemas import Answer, Count, Seconds, Url, Uuid, doc
from serve_app.api.urls import still_path
from serve_app.errors import ApiError, ErrorCode
from serve_app.results.availability import no_result, require_stage
from serve_app.results.scenes import BoxJson, box_document
from storage import results
from storage.audit import AuditAction, record
from storage.cleaning import is_held
from storage.types import SkipReason, StageName


class AppearanceJson(TypedDict):
    """Somebody in a still of a scene."""

    time: Annotated[Seconds, doc("Of the still, in seconds of the media.", 4.2)]
    box: BoxJson
    sceneIndex: NotRequired[Annotated[Count, doc("The scene, where the video has any.", 0)]]


class PersonJson(TypedDict):
    """Somebody whose face is seen in two stills at least."""

    id: Annotated[str, doc("By first appearance; of this job alone.", "person_0")]
    stillUrl: Annotated[Url, doc("The largest picture of the face; signed, expires.")]
    appearances: Annotated[list[AppearanceJson], doc("In scenes' stills, by time.")]


class PeopleList(TypedDict):
    """Who is seen in a job's video."""

    jobId: Annotated[Uuid, doc("The job.")]
    people: Annotated[list[PersonJson], doc("By first appearance.")]


class PeopleDeleted(TypedDict):
    """Nothing of a job's faces is kept."""

    jobId: Annotated[Uuid, doc("The job.")]
    deleted: Annotated[int, doc("How many people there were.", 2, ge=0)]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/people",
    operation_id="getPeople",
    summary="Read who is seen",
    response_model=Answer[PeopleList],
    response_description="The people.",
    responses=errors(
        ErrorCode.NOT_FOUND, ErrorCode.RESULTS_UNAVAILABLE, ErrorCode.RESULTS_NOT_READY
    ),
)
async def get_people(request: Request, context: Context, job: CurrentJob) -> Response:
    """The same face across the scenes of a job that was created with `people`; nobody is named.
    Faces that are small, in profile or like no other one are left out."""
    require_stage(job, StageName.VISION)
    async with context.database.statement() as connection:
        stored = await results.find_people(connection, job.id)
    if stored is None:
        message = "The job was not created with people, or they were deleted."
        raise no_result(job, StageName.VISION, message, SkipReason.STAGE_SKIPPED)
    root = public_url(request)
    shown: list[PersonJson] = []
    for person in decode(tuple[Person, ...], stored.encode(), ignore_unknown=True):
        url = root + still_path(context.signer, job.id, person.id)
        appearances: list[AppearanceJson] = []
        for each in person.appearances:
            seen: AppearanceJson = {"time": each.time_ms / 1000, "box": box_document(each.box)}
            if each.scene_index is not None:
                seen["sceneIndex"] = each.scene_index
            appearances.append(seen)
        shown.append({"id": person.id, "stillUrl": url, "appearances": appearances})
    return success(request, {"jobId": str(job.id), "people": shown})


@router.delete(
    "/jobs/{jobId}/people",
    operation_id="deletePeople",
    summary="Delete who is seen",
    response_model=Answer[PeopleDeleted],
    response_description="They are deleted.",
    responses=errors(
        ErrorCode.NOT_FOUND,
        ErrorCode.LEGAL_HOLD,
        ErrorCode.RESULTS_UNAVAILABLE,
        ErrorCode.RESULTS_NOT_READY,
    ),
)
async def delete_people(request: Request, context: Context, job: CurrentJob) -> Response:
    """Groups, and pictures of faces; scenes and their stills stay. Without any it does nothing."""
    require_stage(job, StageName.VISION)
    count, known = 0, None
    while True:
        async with context.database.transaction() as connection:
            if await is_held(connection, job.id):
                raise ApiError(ErrorCode.LEGAL_HOLD)
            stored = await results.find_people(connection, job.id, locked=True)
            if stored == known:
                await results.delete_people(connection, job.id)
                await record(connection, job.account_id, AuditAction.DELETE_PEOPLE, job_id=job.id)
                break
        # Their pictures first: they are named until the store has removed them.
        people = [] if stored is None else decode(tuple[Person, ...], stored.encode())
        await run_in_threadpool(context.objects.delete_keys, [each.still_key for each in people])
        count, known = len(people), stored
    return success(request, {"jobId": str(job.id), "deleted": count})
