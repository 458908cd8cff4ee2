"""Endpoints that create jobs. Validate, then create once: see ``api/idempotency``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import Response

from serve_app.api.authentication import CreationRoute, CurrentAccount
from serve_app.api.context import API_PREFIX, Context, base_url
from serve_app.api.envelope import public_url, success
from serve_app.api.idempotency import create_once
from serve_app.api.openapi import errors, headers, links
from serve_app.api.schemas import Answer
from serve_app.errors import ErrorCode
from serve_app.jobs.answers import BatchResult, CreatedUploadJob, Job
from serve_app.jobs.plans import Planner, plan_batch, plan_from_url, plan_upload
from serve_app.jobs.rendering import render_job
from serve_app.jobs.schemas import CreateBatchBody, CreateJobBody, CreateJobFromUrlBody
from serve_app.jobs.service import create_jobs
from serve_app.uploads.urls import direct_urls, upload_fields
from storage.database import Connection

_CREATION_ERRORS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_CALLBACK_URL,
    ErrorCode.INSUFFICIENT_CREDITS,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS,
    ErrorCode.UNSUPPORTED_FORMAT,
    ErrorCode.IDEMPOTENCY_BODY_MISMATCH,
    ErrorCode.TOO_MANY_ACTIVE_JOBS,
    ErrorCode.THROTTLED,
)
_URL_ERRORS = (ErrorCode.INVALID_URL, ErrorCode.URL_NOT_ALLOWED)
_CREATED: dict[int | str, dict[str, Any]] = {
    201: {
        "headers": headers("Location", sometimes=["Idempotent-Replayed"]),
        "links": links(
            {"jobId": "$response.body#/data/jobId"},
            "getJob",
            "cancelJob",
            "getScenes",
            "getTranscript",
        ),
    }
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

router = APIRouter(prefix=API_PREFIX, route_class=CreationRoute, tags=["Jobs"])


async def _planner(request: Request, context: Context, account_id: CurrentAccount) -> Planner:
    return Planner(context.settings, context.encrypter, account_id, base_url(request))


CurrentPlanner = Annotated[Planner, Depends(_planner)]


@router.post(
    "/jobs",
    operation_id="createJob",
    summary="Create a job and upload its media",
    status_code=201,
    response_model=Answer[CreatedUploadJob],
    response_description="The job waits for its upload.",
    responses=errors(*_CREATION_ERRORS, *_URL_ERRORS, ErrorCode.FILE_TOO_LARGE) | _CREATED,
)
async def create_job(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateJobBody,
    key: IdempotencyKey = None,
) -> Response:
    """The answer has signed URLs.

    `PUT` the media to `uploadUrl` within `expiresInSeconds`, or send it to `resumableUploadUrl`
    with any client of tus 1.0.0. The job is queued as soon as every declared file has arrived.
    """
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
        return _created(request, data)

    return await create_once(request, "createJob", key, create)


@router.post(
    "/jobs/from-url",
    operation_id="createJobFromUrl",
    summary="Create a job from a URL",
    status_code=201,
    response_model=Answer[Job],
    response_description="The job is queued.",
    responses=errors(*_CREATION_ERRORS, *_URL_ERRORS) | _CREATED,
)
async def create_job_from_url(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateJobFromUrlBody,
    key: IdempotencyKey = None,
) -> Response:
    """The service fetches the media itself.

    Addresses that are not on the public internet are refused.
    """
    plan = plan_from_url(planner, body)

    async def create(connection: Connection) -> Response:
        [job] = await create_jobs(connection, account_id, [plan], context)
        return _created(request, render_job(job, base_url(request)))

    return await create_once(request, "createJobFromUrl", key, create)


@router.post(
    "/jobs/batch",
    operation_id="createBatch",
    summary="Create a batch of up to 100 clips",
    status_code=201,
    response_model=Answer[BatchResult],
    response_description="The jobs are queued.",
    responses=errors(*_CREATION_ERRORS, *_URL_ERRORS)
    | {
        201: {
            "headers": headers(sometimes=["Idempotent-Replayed"]),
            "links": links({"jobId": "$response.body#/data/jobs/0/jobId"}, "getJob"),
        }
    },
)
async def create_batch(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    planner: CurrentPlanner,
    body: CreateBatchBody,
    key: IdempotencyKey = None,
) -> Response:
    """`independent`: a job a clip. `continuous`: one job whose timeline is the clips end to end.

    One bad clip fails the request before any job is made.
    """
    plans = plan_batch(planner, body)

    async def create(connection: Connection) -> Response:
        jobs = await create_jobs(connection, account_id, plans, context)
        data = {
            "batchId": str(plans[0].job.batch_id),
            "mode": body.mode,
            "jobs": [render_job(job, base_url(request)) for job in jobs],
        }
        return success(request, data, status=201)

    return await create_once(request, "createBatch", key, create)


def _created(request: Request, data: Mapping[str, Any]) -> Response:
    return success(request, data, status=201, headers={"Location": data["links"]["self"]})
