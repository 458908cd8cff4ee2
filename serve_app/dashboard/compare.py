"""Two cuts side by side as a page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.context import Context
from serve_app.api.downloads import Download, downloads_of
from serve_app.api.urls import still_path
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError
from serve_app.exports.comparisons import ComparisonJson, compared, comparison_json, read_cuts
from storage.job_records import list_jobs

_JOBS_SHOWN = 100

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(f"{PATH}/compare")
async def get_compare(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    before: Annotated[str, Query(alias="from")] = "",
    after: Annotated[str, Query(alias="to")] = "",
) -> Response:
    """What became of a cut in another, with stills; a form of the latest jobs above."""
    problem: ApiError | None = None
    found: ComparisonJson | None = None
    if before and after:
        try:
            with downloads_of(request, Download.COMPARISON).place(viewer.account.id) as place:
                async with place.turn(request):
                    cuts = await read_cuts(context, viewer.account.id, before, after)
                    changes = await run_in_threadpool(compared, *cuts)
            found = comparison_json(
                changes, lambda job, name: still_path(context.signer, job, name)
            )
        except ApiError as error:
            problem = error
    async with context.database.statement() as connection:
        listed = await list_jobs(connection, viewer.account.id, limit=_JOBS_SHOWN)
    return await page(
        request,
        "compare.html",
        status=200 if problem is None else problem.status,
        jobs=listed,
        chosen={"from": before, "to": after},
        problem=problem,
        found=found,
    )
