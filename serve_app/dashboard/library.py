"""Pages over many jobs: the search over an account's results, and its archives."""

# ruff: noqa: A002  (names of paths)
from __future__ import annotations

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from markupsafe import Markup, escape
from starlette.responses import RedirectResponse, Response

from serve_app.api.envelope import Context
from serve_app.api.urls import OVERVIEW_STILL, parse_job_id, still_path
from serve_app.crypto import Signer
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import days, page
from serve_app.errors import ApiError, ErrorCode
from serve_app.search.routes import Scene, likeness
from serve_app.search.service import SearchHitJson, Snippet, find_alike_page, find_page, parse_query
from storage import archives
from storage.duplicates import list_groups
from storage.search import Filters, find_scenes_at
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
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    q: str = "",
    kind: str = "",
    job: str = "",
    first: Annotated[str, Query(alias="from")] = "",
    last: Annotated[str, Query(alias="to")] = "",
    zone: str = "",
    speaker: str = "",
    like: Scene = None,
) -> Response:
    """The best hits for the words, of one kind or of all; or scenes that look like one."""
    kinds = (SearchKind(kind),) if kind in set(SearchKind) else tuple(SearchKind)
    hits: list[SearchHitJson] = []
    since = until = problem = None
    database, account_id, pictures = context.database, viewer.account.id, context.pictures
    try:
        since, until = days(first, last, zone)
        only = Filters(
            kinds, None, parse_job_id(job) if job else None, since, until, speaker=speaker or None
        )
        if like:
            alike, model = likeness(like, Filters()), None if pictures is None else pictures.model
            hits, _, _ = await find_alike_page(
                database, account_id, alike, only, limit=HITS_SHOWN, model=model
            )
        elif q.strip():
            words, encoder = parse_query(q.strip()), context.encoder
            found, _, _ = await find_page(
                database, account_id, words, only, limit=HITS_SHOWN, encoder=encoder,
                pictures=pictures)  # fmt: skip
            for hit in found:
                if not any(_is_same(hit, other) for other in hits):
                    hits.append(hit)
    except ApiError as error:
        problem = error
    seen = await find_scenes_at(database, [_place(hit) for hit in hits]) if hits else {}
    asked = {"q": q, "like": like, "kind": kind, "job": job, "from": first, "to": last}
    asked |= {"speaker": speaker, "zone": zone if since or until else ""}
    return await page(
        request,
        "search.html",
        status=200 if problem is None else problem.status,
        asked={name: value for name, value in asked.items() if value},
        kinds=KINDS,
        most=HITS_SHOWN,
        problem=problem,
        hits=[(hit, _still(context.signer, hit, seen), marked(hit["snippet"])) for hit in hits],
    )


def _is_same(hit: SearchHitJson, other: SearchHitJson) -> bool:
    """Return whether both are the same sentence, as another track or another line has it."""
    if hit["jobId"] != other["jobId"] or {hit["kind"], other["kind"]} != {SearchKind.TRANSCRIPT}:
        return False
    return hit["startTime"] < other["endTime"] and other["startTime"] < hit["endTime"]


_Place = tuple[uuid.UUID, float]


def _place(hit: SearchHitJson) -> _Place:
    return parse_job_id(hit["jobId"]), hit["startTime"]


def _still(signer: Signer, hit: SearchHitJson, seen: dict[_Place, int | None]) -> str | None:
    place = _place(hit)
    if place not in seen:
        return None
    index = hit.get("sceneIndex", seen[place])
    return still_path(signer, place[0], OVERVIEW_STILL if index is None else index)


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
