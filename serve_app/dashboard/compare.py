"""Two cuts side by side as a page."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from serve_app.api.context import Context
from serve_app.api.downloads import LargeResults
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError
from serve_app.exports.comparisons import (
    ComparisonJson,
    ComparisonStatus,
    request_comparison,
    result_json,
    status_json,
)
from storage.comparisons import get_document
from storage.job_records import list_jobs
from storage.types import ComparisonState

_JOBS_SHOWN = 100
_REFRESH_SECONDS = "3"

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(f"{PATH}/compare")
async def get_compare(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    answer: LargeResults,
    before: Annotated[str, Query(alias="from")] = "",
    after: Annotated[str, Query(alias="to")] = "",
) -> Response:
    """What became of a cut in another, with stills; a form of the latest jobs above. It is loaded
    again until the comparison is made."""
    problem: ApiError | None = None
    status: ComparisonStatus | None = None
    found: ComparisonJson | None = None
    if before and after:
        try:
            asked = await request_comparison(context, viewer.account.id, before, after)
            status = status_json(asked)
        except ApiError as error:
            problem = error
        else:
            async with context.database.statement() as connection:
                document = await get_document(connection, asked.id)
            if document is not None:
                make = partial(result_json, asked, document, context, "")
                found = await answer.prepared(request, len(document), make)
    async with context.database.statement() as connection:
        listed = await list_jobs(connection, viewer.account.id, limit=_JOBS_SHOWN)
    shown = await page(
        request,
        "compare.html",
        status=200 if problem is None else problem.status,
        jobs=listed,
        chosen={"from": before, "to": after},
        problem=problem,
        comparison=status,
        found=found,
    )
    if status is not None and status["state"] == ComparisonState.PENDING:
        shown.headers["Refresh"] = _REFRESH_SECONDS
    return shown
