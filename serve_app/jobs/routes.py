"""Endpoints that create, list, read and cancel jobs. A creation validates, then creates once: see
``api/idempotency``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api import parameters
from serve_app.api.authentication import CreationRoute, CurrentAccount, CurrentJob, KeyedRoute
from serve_app.api.downloads import LargeResults
from serve_app.api.envelope import API_PREFIX, Context, base_url, page, public_url, success
from serve_app.api.idempotency import create_once
from serve_app.api.openapi import answers, headers, links
from serve_app.api.schemas import Answer
from serve_app.context import AppContext
from serve_app.errors import ErrorCode, invalid
from serve_app.jobs import schemas, service
from serve_app.jobs.answers import (
    BatchResult,
    CreatedUploadJob,
    Job,
    JobPage,
    render_job,
    render_summary,
)
from serve_app.jobs.plans import Planner, plan_batch, plan_from_url, plan_upload
from serve_app.jobs.schemas import CreateBatchBody, CreateJobBody, CreateJobFromUrlBody
from serve_app.jobs.service import create_jobs
from serve_app.observability.metrics import record_job_end
from serve_app.uploads.access import direct_urls, upload_fields
from storage import job_records, results
from storage.database import Connection
from storage.job_records import LEGACY_FILTERS, JobRecord
from storage.queue import find_place
from storage.types import JobState

_CREATION_ERRORS = (
    ErrorCode.INVALID_CALLBACK_URL,
    ErrorCode.INSUFFICIENT_CREDITS,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS,
    ErrorCode.UNSUPPORTED_FORMAT,
    ErrorCode.IDEMPOTENCY_BODY_MISMATCH,
    ErrorCode.TOO_MANY_ACTIVE_JOBS,
    ErrorCode.THROTTLED,
    ErrorCode.INVALID_URL,
    ErrorCode.URL_NOT_ALLOWED,
)
_FOLLOWING = ("getJob", "cancelJob", "getScenes", "getTranscript")
_CREATED: dict[str, Any] = {
    "headers": headers("Location", sometimes=["Idempotent-Replayed"]),
    "links": links({"jobId": "$response.body#/data/jobId"}, *_FOLLOWING),
}
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes the creation safe to repeat for 24 hours: the same key and body get "
        "the first answer again.",
        # White space around a header's value is no part of it.
        json_schema_extra={"pattern": "^[!-~]([ -~]{0,253}[!-~])?$"},
        examples=["shoot-42-take-7"],
    ),
]

creation_router = APIRouter(prefix=API_PREFIX, route_class=CreationRoute, tags=["Jobs"])


async def _planner(request: Request, context: Context, account_id: CurrentAccount) -> Planner:
    return Planner(context.settings, context.encrypter, account_id, base_url(request))


CurrentPlanner = Annotated[Planner, Depends(_planner)]


@creation_router.post(
    "/jobs",
    **answers(
        Answer[CreatedUploadJob],
        "The job waits for its upload.",
        *_CREATION_ERRORS,
        ErrorCode.FILE_TOO_LARGE,
        status=201,
        **_CREATED,
    ),
)
async def create_job(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateJobBody,
    key: IdempotencyKey = None,
) -> Response:
    """Create a job and upload its media.

    The answer has signed URLs.

    `PUT` the media to `uploadUrl` within `expiresInSeconds`, or send it to `resumableUploadUrl`
    with any client of tus 1.0.0. The job is queued as soon as every declared file has arrived."""
    plan = plan_upload(planner, body)
    direct = await direct_urls(context.objects, plan.uploads, context.settings)

    async def create(connection: Connection) -> Response:
        [job] = await create_jobs(connection, account_id, [plan], context)
        data = render_job(job, base_url(request)) | upload_fields(
            job,
            plan.uploads,
            signer=context.signer,
            settings=context.settings,
            public=public_url(request),
            direct=direct,
        )
        return _created(data)

    return await create_once(request, "createJob", key, create)


@creation_router.post(
    "/jobs/from-url",
    **answers(Answer[Job], "The job is queued.", *_CREATION_ERRORS, status=201, **_CREATED),
)
async def create_job_from_url(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateJobFromUrlBody,
    key: IdempotencyKey = None,
) -> Response:
    """Create a job from a URL.

    The service fetches the media itself.

    Addresses that are not on the public internet are refused."""
    plan = plan_from_url(planner, body)

    async def create(connection: Connection) -> Response:
        [job] = await create_jobs(connection, account_id, [plan], context)
        return _created(render_job(job, base_url(request)))

    return await create_once(request, "createJobFromUrl", key, create)


@creation_router.post(
    "/jobs/batch",
    **answers(
        Answer[BatchResult],
        "The jobs are queued.",
        *_CREATION_ERRORS,
        status=201,
        headers=headers(sometimes=["Idempotent-Replayed"]),
        links=links({"jobId": "$response.body#/data/jobs/0/jobId"}, "getJob"),
    ),
)
async def create_batch(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateBatchBody,
    key: IdempotencyKey = None,
) -> Response:
    """Create a batch of up to 100 clips.

    `independent`: a job a clip. `continuous`: one job whose timeline is the clips end to end.

    One bad clip fails the request before any job is made."""
    plans = plan_batch(planner, body)

    async def create(connection: Connection) -> Response:
        jobs = await create_jobs(connection, account_id, plans, context)
        data = {
            "batchId": str(plans[0].job.batch_id),
            "mode": body.mode,
            "jobs": [render_job(job, base_url(request)) for job in jobs],
        }
        return success(data, status=201)

    return await create_once(request, "createBatch", key, create)


def _created(data: Mapping[str, Any]) -> Response:
    return success(data, status=201, headers={"Location": data["links"]["self"]})


INCLUDABLE = frozenset({"scenes", "transcript"})
DEFAULT_PAGE = 20
MAX_PAGE = 100
STATE_ALIASES = {"uploading": JobState.AWAITING_UPLOAD}
_STATES = [*JobState, *STATE_ALIASES]
_CANCELLED = (
    Answer[Job],
    "The cancelled job, without `processedData`.",
    ErrorCode.JOB_NOT_CANCELLABLE,
)

_INCLUDED = re.compile("(none|(scenes|transcript)(,(scenes|transcript))*)")
_INCLUDED_WORDS = "list of scenes and transcript, or none"

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Jobs"])


@router.get(
    "/jobs",
    **answers(
        JobPage,
        "A page of jobs.",
        headers=headers(sometimes=["Link"]),
        links=links({"cursor": "$response.body#/nextCursor"}, "listJobs")
        | links({"jobId": "$response.body#/data/0/jobId"}, "getJob"),
    ),
)
async def list_jobs(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MAX_PAGE), parameters.WHOLE_NUMBER],
        Query(description="Most jobs of a page."),
    ] = DEFAULT_PAGE,
    cursor: parameters.CursorQuery = None,
    state: Annotated[
        Annotated[str, parameters.one_of(_STATES)] | None,
        Query(
            description="Only jobs in this state; `uploading` means `awaiting_upload`. Not "
            "together with `status`.",
            json_schema_extra={"enum": [str(state) for state in _STATES]},
        ),
    ] = None,
    status: Annotated[
        Annotated[str, parameters.one_of(LEGACY_FILTERS)] | None,
        Query(
            description="Only jobs of this older status, or of the groups `COMPLETED`, "
            "`COMPLETED_NO_SCENES` and `FAILED`. Use `state`.",
            deprecated=True,
            json_schema_extra={"enum": list(LEGACY_FILTERS)},
        ),
    ] = None,
    name: Annotated[
        Annotated[str, Field(min_length=1, max_length=schemas.MAX_FILE_NAME)] | None,
        Query(
            description="Only jobs with this in the name of their file, in any case.",
            json_schema_extra={"pattern": r"^[^\u0000-\u001f]*$"},
        ),
    ] = None,
    tag: Annotated[schemas.Tag | None, Query(description="Only jobs that have this tag.")] = None,
    created_from: parameters.CreatedFrom = None,
    created_to: parameters.CreatedTo = None,
) -> Response:
    """List jobs.

    Newest first, page by page: go on while `hasMore` is true.

    A page may hold fewer jobs than `limit`."""
    if state is not None and status is not None:
        raise invalid("state and status cannot be combined.", "status")
    since, until = parameters.span_of(created_from, created_to)
    after = None if cursor is None else _read_cursor(context, account_id, cursor)
    found = await context.database.read(
        job_records.list_jobs,
        account_id,
        limit=limit + 1,
        after=None if after is None else (after.created_at, after.job_id),
        state=None if state is None else STATE_ALIASES.get(state) or JobState(state),
        legacy_status=status,
        name=name,
        tag=tag,
        created_from=since,
        created_to=until,
    )
    shown_jobs, next_cursor = found[:limit], None
    if len(found) > limit:
        last = parameters.Cursor(shown_jobs[-1].created_at, shown_jobs[-1].id)
        next_cursor = parameters.encode_cursor(
            last, secret=context.signer.secret, account_id=account_id
        )
    return page(request, [render_summary(job) for job in shown_jobs], next_cursor, path="/jobs")


def _read_cursor(context: AppContext, account_id: uuid.UUID, text: str) -> parameters.Cursor:
    try:
        return parameters.decode_cursor(text, secret=context.signer.secret, account_id=account_id)
    except parameters.BadCursorError as error:
        raise invalid("The cursor is not one that this list gave out.", "cursor") from error


@router.get("/jobs/{jobId}", **answers(Answer[Job], "The job."))
async def get_job(
    request: Request,
    context: Context,
    job: CurrentJob,
    answer: LargeResults,
    include: Annotated[
        Annotated[str, parameters.shown(_INCLUDED), parameters.matching(_INCLUDED, _INCLUDED_WORDS)]
        | None,
        Query(description="`none`, or a list of `scenes` and `transcript`; both if not given."),
    ] = None,
) -> Response:
    """Read a job.

    With its results once their stages are completed.

    To poll, use `include=none` every 5 to 15 seconds."""
    data = render_job(job, base_url(request))
    if job.state is JobState.QUEUED:
        place = await context.database.read(find_place, job.id)
        if place is not None:
            data["queuePosition"] = place.position
            data["estimatedStartSeconds"] = place.start_seconds(context.settings.jobs_at_once)
    if include == "none":
        return success(data)
    wanted = INCLUDABLE if include is None else frozenset(include.split(","))

    def shown_with_results(found: service.StoredResults) -> Response:
        processed = service.processed_data(public_url(request), context.signer, job, found)
        return success({**data, "processedData": processed}, large=True)

    seen, spoken = await context.database.read(results.stored_bytes, job.id)
    size = ("scenes" in wanted) * seen + ("transcript" in wanted) * spoken
    async with answer.turn(size):
        stored = await context.database.read(service.read_results, job, wanted)
        return await run_in_threadpool(shown_with_results, stored)


@router.patch("/jobs/{jobId}", **answers(Answer[Job], "The changed job.", ErrorCode.LEGAL_HOLD))
async def change_job(
    request: Request, context: Context, job: CurrentJob, body: schemas.JobChangesBody
) -> Response:
    """Change a job.

    Its name keeps its suffix, which is added where the new one lacks it; metadata and tags
    are replaced as a whole. A queued job of another priority goes behind those of its
    account that have it. Media that was removed does not come back by a longer retention."""
    changed = await context.database.write(service.change_job, job.id, body, context.settings)
    return success(render_job(changed, base_url(request)))


@router.post("/jobs/{jobId}/cancel", **answers(*_CANCELLED))
async def cancel_job(request: Request, context: Context, job: CurrentJob) -> Response:
    """Cancel a job.

    Allowed until the job has ended. Completed stages stay charged and readable."""
    return await _cancel(request, context, job)


@router.delete(
    "/jobs/{jobId}", deprecated=True, **answers(*_CANCELLED, headers=headers("Deprecation", "Link"))
)
async def cancel_job_deprecated(request: Request, context: Context, job: CurrentJob) -> Response:
    """Cancel a job (deprecated).

    Does what `POST /jobs/{jobId}/cancel` does.

    The verb is reserved for deleting a job and its results."""
    return await _cancel(request, context, job)


@router.post(
    "/jobs/{jobId}/erase",
    **answers(Answer[Job], "The job without its content.", ErrorCode.LEGAL_HOLD, status=202),
)
async def erase_job(request: Request, context: Context, job: CurrentJob) -> Response:
    """Erase a job's content.

    Media, results, names, metadata, search and kept answers are gone at once, files in the
    store within seconds; a job that runs is cancelled first, without its webhook.
    Endpoints that subscribe get `job.erased`.

    State, times and charges stay. Backups that were made before still have it."""
    erased = await context.database.write(service.erase_job, job.account_id, str(job.id))
    if job.completed_at is None:
        record_job_end(context.metrics, erased.state)
    return success(render_job(erased, base_url(request)), status=202)


async def _cancel(request: Request, context: AppContext, job: JobRecord) -> Response:
    ended = await context.database.write(service.cancel_job, job.account_id, str(job.id))
    record_job_end(context.metrics, ended.state)
    return success(render_job(ended, base_url(request)))
