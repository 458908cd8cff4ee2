"""Endpoints that list, read and cancel jobs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.authentication import KeyedRoute, account_of, job_of
from serve_app.api.context import API_PREFIX, base_url, context_of
from serve_app.api.envelope import ExactJSONResponse, success
from serve_app.api.pagination import BadCursorError, Cursor, decode_cursor, encode_cursor
from serve_app.api.queries import one_of, read_integer, single
from serve_app.errors import invalid
from serve_app.jobs import results, service
from serve_app.jobs.rendering import render_job, render_summary
from serve_app.jobs.thumbnails import with_thumbnails
from serve_app.observability.metrics import record_job_end
from storage.job_lists import LEGACY_FILTERS, list_jobs
from storage.job_records import JobRecord
from storage.types import JobState

INCLUDABLE = frozenset({"scenes", "transcript"})
DEFAULT_PAGE = 20
MAX_PAGE = 100
STATE_ALIASES = {"uploading": JobState.AWAITING_UPLOAD}

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute)


@router.get("/jobs", operation_id="listJobs")
async def list_jobs_of_account(request: Request) -> Response:
    """The account's jobs, newest first."""
    limit = read_integer(request, "limit", low=1, high=MAX_PAGE) or DEFAULT_PAGE
    state = _state_filter(request)
    legacy = one_of(request, "status", LEGACY_FILTERS)
    if state is not None and legacy is not None:
        raise invalid("state and status cannot be combined.", "status")
    cursor = _read_cursor(request)
    async with context_of(request).database.statement() as connection:
        found = await list_jobs(
            connection,
            account_of(request),
            limit=limit + 1,
            after=None if cursor is None else (cursor.created_at, cursor.job_id),
            state=state,
            legacy_status=legacy,
        )
    return _page(request, found[:limit], more=len(found) > limit)


def _state_filter(request: Request) -> JobState | None:
    name = one_of(request, "state", [*JobState, *STATE_ALIASES])
    if name is None:
        return None
    return STATE_ALIASES.get(name) or JobState(name)


def _read_cursor(request: Request) -> Cursor | None:
    text = single(request, "cursor")
    if text is None:
        return None
    try:
        return decode_cursor(
            text, secret=context_of(request).signer.secret, account_id=account_of(request)
        )
    except BadCursorError as error:
        raise invalid("The cursor is not one that this list gave out.", "cursor") from error


def _page(request: Request, jobs: list[JobRecord], *, more: bool) -> Response:
    next_cursor = None
    headers = {}
    if more:
        last = Cursor(jobs[-1].created_at, jobs[-1].id)
        secret = context_of(request).signer.secret
        next_cursor = encode_cursor(last, secret=secret, account_id=account_of(request))
        query = {**dict(request.query_params), "cursor": next_cursor}
        headers["Link"] = f'<{base_url(request)}/jobs?{urlencode(query)}>; rel="next"'
    body = {
        "data": [render_summary(job) for job in jobs],
        "hasMore": more,
        "nextCursor": next_cursor,
        "requestId": request.scope["vas_request_id"],
    }
    return ExactJSONResponse(body, headers=headers)


@router.get("/jobs/{jobId}", operation_id="getJob")
async def get_job(request: Request) -> Response:
    """A job, by default with the results of its completed stages."""
    wanted = _parse_include(single(request, "include"))
    job = job_of(request)
    data = render_job(job, base_url(request))
    if wanted:
        async with context_of(request).database.statement() as connection:
            processed = await results.processed_data(connection, job, wanted)
        if "scenes" in processed:
            processed["scenes"] = with_thumbnails(request, job.id, processed["scenes"])
        data["processedData"] = processed
    return success(request, data)


def _parse_include(include: str | None) -> frozenset[str]:
    if include is None:
        return INCLUDABLE
    if include == "none":
        return frozenset()
    wanted = frozenset(include.split(","))
    if not wanted <= INCLUDABLE:
        raise invalid("include must be `none` or a list of `scenes` and `transcript`.", "include")
    return wanted


@router.post("/jobs/{jobId}/cancel", operation_id="cancelJob")
async def cancel_job(request: Request, jobId: str) -> Response:  # noqa: N803
    """Cancel a job that has not ended; completed stages stay charged and readable."""
    return success(request, await _cancel(request, jobId))


@router.delete("/jobs/{jobId}", operation_id="cancelJobDeprecated", deprecated=True)
async def cancel_job_deprecated(request: Request, jobId: str) -> Response:  # noqa: N803
    """Deprecated alias of cancelJob; the verb is reserved for deleting a job."""
    return success(request, await _cancel(request, jobId))


async def _cancel(request: Request, job_id: str) -> dict[str, Any]:
    async with context_of(request).database.transaction() as connection:
        job = await service.cancel_job(connection, account_of(request), job_id)
    record_job_end(context_of(request).metrics, job.state)
    return render_job(job, base_url(request))
