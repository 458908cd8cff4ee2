"""Endpoints that list, read and cancel jobs."""

from __future__ import annotations

import re
import uuid
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from serve_app.api.authentication import CurrentAccount, CurrentJob, KeyedRoute
from serve_app.api.context import API_PREFIX, Context, base_url
from serve_app.api.envelope import ExactJSONResponse, success
from serve_app.api.openapi import errors, headers, links
from serve_app.api.pagination import BadCursorError, Cursor, decode_cursor, encode_cursor
from serve_app.api.queries import WHOLE_NUMBER, matching, one_of, shown
from serve_app.api.schemas import Answer
from serve_app.context import AppContext
from serve_app.errors import ErrorCode, invalid
from serve_app.jobs import service
from serve_app.jobs.answers import Job, JobPage
from serve_app.jobs.rendering import render_job, render_summary
from serve_app.observability.metrics import record_job_end
from storage.job_records import LEGACY_FILTERS, JobRecord, list_jobs
from storage.types import JobState

INCLUDABLE = frozenset({"scenes", "transcript"})
DEFAULT_PAGE = 20
MAX_PAGE = 100
STATE_ALIASES = {"uploading": JobState.AWAITING_UPLOAD}
_STATES = [*JobState, *STATE_ALIASES]
_CANCEL_ERRORS = errors(ErrorCode.NOT_FOUND, ErrorCode.JOB_NOT_CANCELLABLE)

_INCLUDED = re.compile("(none|(scenes|transcript)(,(scenes|transcript))*)")
_INCLUDED_WORDS = "list of scenes and transcript, or none"

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Jobs"])


@router.get(
    "/jobs",
    operation_id="listJobs",
    summary="List jobs",
    response_model=JobPage,
    response_description="A page of jobs.",
    responses=errors(ErrorCode.INVALID_REQUEST)
    | {
        200: {
            "headers": headers(sometimes=["Link"]),
            "links": links({"cursor": "$response.body#/nextCursor"}, "listJobs")
            | links({"jobId": "$response.body#/data/0/jobId"}, "getJob"),
        }
    },
)
async def list_jobs_of_account(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MAX_PAGE), WHOLE_NUMBER],
        Query(description="Most jobs of a page."),
    ] = DEFAULT_PAGE,
    cursor: Annotated[str | None, Query(description="`nextCursor` of the page before.")] = None,
    state: Annotated[
        Annotated[str, one_of(_STATES)] | None,
        Query(
            description="Only jobs in this state; `uploading` means `awaiting_upload`. Not "
            "together with `status`.",
            json_schema_extra={"enum": [str(state) for state in _STATES]},
        ),
    ] = None,
    status: Annotated[
        Annotated[str, one_of(LEGACY_FILTERS)] | None,
        Query(
            description="Only jobs of this older status, or of the groups `COMPLETED`, "
            "`COMPLETED_NO_SCENES` and `FAILED`. Use `state`.",
            deprecated=True,
            json_schema_extra={"enum": list(LEGACY_FILTERS)},
        ),
    ] = None,
) -> Response:
    """Newest first, page by page: go on while `hasMore` is true.

    A page may hold fewer jobs than `limit`.
    """
    if state is not None and status is not None:
        raise invalid("state and status cannot be combined.", "status")
    after = None if cursor is None else _read_cursor(context, account_id, cursor)
    async with context.database.statement() as connection:
        found = await list_jobs(
            connection,
            account_id,
            limit=limit + 1,
            after=None if after is None else (after.created_at, after.job_id),
            state=None if state is None else STATE_ALIASES.get(state) or JobState(state),
            legacy_status=status,
        )
    shown_jobs, next_cursor = found[:limit], None
    link = {}
    if len(found) > limit:
        last = Cursor(shown_jobs[-1].created_at, shown_jobs[-1].id)
        next_cursor = encode_cursor(last, secret=context.signer.secret, account_id=account_id)
        query = {**dict(request.query_params), "cursor": next_cursor}
        link["Link"] = f'<{base_url(request)}/jobs?{urlencode(query)}>; rel="next"'
    body = {
        "data": [render_summary(job) for job in shown_jobs],
        "hasMore": next_cursor is not None,
        "nextCursor": next_cursor,
        "requestId": request.scope["vas_request_id"],
    }
    return ExactJSONResponse(body, headers=link)


def _read_cursor(context: AppContext, account_id: uuid.UUID, text: str) -> Cursor:
    try:
        return decode_cursor(text, secret=context.signer.secret, account_id=account_id)
    except BadCursorError as error:
        raise invalid("The cursor is not one that this list gave out.", "cursor") from error


@router.get(
    "/jobs/{jobId}",
    operation_id="getJob",
    summary="Read a job",
    response_model=Answer[Job],
    response_description="The job.",
    responses=errors(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
)
async def get_job(
    request: Request,
    context: Context,
    job: CurrentJob,
    include: Annotated[
        Annotated[str, shown(_INCLUDED), matching(_INCLUDED, _INCLUDED_WORDS)] | None,
        Query(description="`none`, or a list of `scenes` and `transcript`; both if not given."),
    ] = None,
) -> Response:
    """With its results once their stages are completed.

    To poll, use `include=none` every 5 to 15 seconds.
    """
    data = render_job(job, base_url(request))
    if include != "none":
        wanted = INCLUDABLE if include is None else frozenset(include.split(","))
        async with context.database.statement() as connection:
            data["processedData"] = await service.processed_data(request, connection, job, wanted)
    return success(request, data)


@router.post(
    "/jobs/{jobId}/cancel",
    operation_id="cancelJob",
    summary="Cancel a job",
    response_model=Answer[Job],
    response_description="The cancelled job, without `processedData`.",
    responses=_CANCEL_ERRORS,
)
async def cancel_job(request: Request, context: Context, job: CurrentJob) -> Response:
    """Allowed until the job has ended. Completed stages stay charged and readable."""
    return await _cancel(request, context, job)


@router.delete(
    "/jobs/{jobId}",
    operation_id="cancelJobDeprecated",
    summary="Cancel a job (deprecated)",
    response_model=Answer[Job],
    response_description="The cancelled job, without `processedData`.",
    responses=_CANCEL_ERRORS | {200: {"headers": headers("Deprecation", "Link")}},
    deprecated=True,
)
async def cancel_job_deprecated(request: Request, context: Context, job: CurrentJob) -> Response:
    """Does what `POST /jobs/{jobId}/cancel` does.

    The verb is reserved for deleting a job and its results.
    """
    return await _cancel(request, context, job)


async def _cancel(request: Request, context: AppContext, job: JobRecord) -> Response:
    async with context.database.transaction() as connection:
        ended = await service.cancel_job(connection, job.account_id, str(job.id))
    record_job_end(context.metrics, ended.state)
    return success(request, render_job(ended, base_url(request)))
