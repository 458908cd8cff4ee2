"""The search over an account's results as a page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import Response

from models.profiles import how_to_add
from models.tasks import EMBED_PICTURES
from serve_app.api.authentication import parse_job_id
from serve_app.api.context import Context
from serve_app.api.urls import OVERVIEW_STILL, still_path
from serve_app.crypto import Signer
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError
from serve_app.search.schemas import SearchHitJson, Snippet
from serve_app.search.service import find_page, parse_query
from storage.search import Filters
from storage.types import SearchKind

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
        adding=None
        if context.pictures
        else how_to_add(
            context.settings.model_profile, EMBED_PICTURES, context.settings.models_dir
        ),
        problem=problem,
        hits=[(hit, _still(context.signer, hit), marked(hit["snippet"])) for hit in hits],
    )


def _still(signer: Signer, hit: SearchHitJson) -> str | None:
    if "sceneIndex" not in hit and hit["kind"] not in _SEEN:
        return None
    job_id = parse_job_id(hit["jobId"])
    return still_path(signer, job_id, hit.get("sceneIndex", OVERVIEW_STILL))


_SEEN = {SearchKind.SCENE, SearchKind.TEXT, SearchKind.OBJECT}
"""What is found in a scene, or in a video without any."""


def marked(snippet: Snippet) -> Markup:
    """The text with what matches in ``<mark>``, all else as text."""
    text, parts, at = snippet["text"], list[Markup](), 0
    for found in snippet["ranges"]:
        parts.append(escape(text[at : found["start"]]))
        parts.append(Markup("<mark>{}</mark>").format(text[found["start"] : found["end"]]))
        at = found["end"]
    return Markup("").join([*parts, escape(text[at:])])
