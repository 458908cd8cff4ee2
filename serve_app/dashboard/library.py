"""Pages over many jobs: the search over an account's results, and its archives."""

# ruff: noqa: A002  (names of paths)
from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import RedirectResponse, Response

from serve_app.api.envelope import Context
from serve_app.api.urls import OVERVIEW_STILL, parse_job_id, still_path
from serve_app.crypto import Signer
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError, ErrorCode
from serve_app.search.service import SearchHitJson, Snippet, find_page, parse_query
from storage import archives
from storage.duplicates import list_groups
from storage.search import Filters
from storage.types import ObjectState, SearchKind

HITS_SHOWN = 50
KINDS: dict[SearchKind, str] = {
    SearchKind.TRANSCRIPT: "Said",
    SearchKind.SCENE: "Seen",
    SearchKind.TEXT: "On screen",
    SearchKind.OBJECT: "In the picture",
    SearchKind.FILE: "File",
}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(f"{PATH}/search")
async def get_search(
    request: Request, context: Context, viewer: CurrentViewer, q: str = "", kind: str = ""
) -> Response:
    """The best hits for the words, of one kind or of all."""
    kinds = (SearchKind(kind),) if kind in set(SearchKind) else tuple(SearchKind)
    hits: list[SearchHitJson] = []
    problem = None
    if q.strip():
        try:
            alternatives = parse_query(q.strip())
            found = await find_page(
                context.database,
                viewer.account.id,
                alternatives,
                Filters(kinds=kinds),
                limit=HITS_SHOWN,
                encoder=context.encoder,
                pictures=context.pictures,
            )
            hits = found.hits
        except ApiError as error:
            problem = error
    return await page(
        request,
        "search.html",
        status=200 if problem is None else problem.status,
        q=q,
        kind=kind,
        kinds=KINDS,
        most=HITS_SHOWN,
        problem=problem,
        hits=[(hit, _still(context.signer, hit), marked(hit["snippet"])) for hit in hits],
    )


def _still(signer: Signer, hit: SearchHitJson) -> str | None:
    if "sceneIndex" not in hit and hit["kind"] not in _SEEN:
        return None
    return still_path(signer, parse_job_id(hit["jobId"]), hit.get("sceneIndex", OVERVIEW_STILL))


_SEEN = {SearchKind.SCENE, SearchKind.TEXT, SearchKind.OBJECT}
"""What is found in a scene, or in a video without any."""


def marked(snippet: Snippet) -> Markup:
    """Return the text with what matches in ``<mark>``, all else as text."""
    text, parts, at = snippet["text"], list[Markup](), 0
    for found in snippet["ranges"]:
        parts.append(escape(text[at : found["start"]]))
        parts.append(Markup("<mark>{}</mark>").format(text[found["start"] : found["end"]]))
        at = found["end"]
    return Markup("").join([*parts, escape(text[at:])])


ARCHIVES_PATH = f"{PATH}/archives"
ERRORS_SHOWN = 50
"""Of each archive, of each of its two states with errors."""
GROUPS_SHOWN = 20


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
    context: Context, viewer: CurrentViewer, id: str, action: Literal["pause", "resume"]
) -> Response:
    """Pause it, or go on."""
    change = archives.pause_archive if action == "pause" else archives.resume_archive
    async with context.database.transaction() as connection:
        found = await archives.list_archives(connection, viewer.account.id, parse_job_id(id))
        if not found or await change(connection, found[0]) is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such archive.")
    return RedirectResponse(ARCHIVES_PATH, status_code=303)
