"""Archives of an account: their progress and errors; pausing and resuming them."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from serve_app.api.authentication import parse_job_id
from serve_app.api.context import Context
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError, ErrorCode
from storage import archives
from storage.duplicates import list_groups
from storage.types import ObjectState

ARCHIVES_PATH = f"{PATH}/archives"
ERRORS_SHOWN = 50
"""Of each archive, of each of its two states with errors."""
GROUPS_SHOWN = 20

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(ARCHIVES_PATH)
async def get_archives(request: Request, context: Context, viewer: CurrentViewer) -> Response:
    """All of them, with the first objects that failed or were refused."""
    async with context.database.statement() as connection:
        found = await archives.list_archives(connection, viewer.account.id)
        errors = {
            each.id: [
                failed
                for state in (ObjectState.FAILED, ObjectState.REFUSED)
                if each.counts[state]
                for failed in await archives.list_objects(
                    connection, each.id, limit=ERRORS_SHOWN, state=state
                )
            ]
            for each in found
        }
        groups = {each.id: (await list_groups(connection, each.id))[0] for each in found}
    return await page(
        request, "archives.html", archives=found, errors=errors, groups=groups, most=GROUPS_SHOWN
    )


@router.post(f"{ARCHIVES_PATH}/{{id}}/{{action}}")
async def change_archive(
    context: Context,
    viewer: CurrentViewer,
    id: str,  # noqa: A002
    action: Literal["pause", "resume"],
) -> Response:
    """Pause it, or go on."""
    change = archives.pause_archive if action == "pause" else archives.resume_archive
    async with context.database.transaction() as connection:
        found = await archives.list_archives(connection, viewer.account.id, parse_job_id(id))
        if not found or await change(connection, found[0]) is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such archive.")
    return RedirectResponse(ARCHIVES_PATH, status_code=303)
