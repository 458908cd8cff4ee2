"""The endpoint that searches all of an account's results."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from serve_app.api import parameters
from serve_app.api.authentication import CurrentAccount, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, page
from serve_app.api.openapi import OF_RESULTS, answers, headers, links
from serve_app.api.parameters import WHOLE_NUMBER, CursorQuery, Cursors, matching, shown
from serve_app.api.urls import parse_job_id
from serve_app.errors import ErrorCode, invalid
from serve_app.search import service
from storage.search import Filters
from storage.types import SearchKind

DEFAULT_PAGE = 20
MAX_PAGE = 100
_KINDS = re.compile("({0})(,({0}))*".format("|".join(SearchKind)))

_Words = Annotated[
    str | None,
    Query(
        description='Words that must be there, `"a phrase"`, `-without`, `beginning*`, at most '
        f"{service.MAX_ALTERNATIVES} alternatives with `OR` between them. Either `q` or `like` is "
        "needed.",
        min_length=1,
        max_length=service.MAX_QUERY_CHARACTERS,
        examples=["good morning"],
    ),
]
_SCENE = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:[0-9]{1,9}")
Scene = Annotated[
    Annotated[str, shown(_SCENE), matching(_SCENE, "scene: a job's id, a colon, a number")] | None,
    Query(
        description="A scene, `jobId:index`: the scenes whose stills look like it, 200 at "
        "most, without it. Not together with `language`, `speaker`, or other `kinds` than `scene`.",
        examples=["0b5c1f3e-6f0a-4c58-9d0e-6a1d2a7f4b11:3"],
    ),
]
_Kinds = Annotated[
    Annotated[str, shown(_KINDS), matching(_KINDS, f"list of {', '.join(SearchKind)}")] | None,
    Query(
        description=f"A list of {', '.join(f'`{kind}`' for kind in SearchKind)}; all if not given."
    ),
]
_Language = Annotated[
    Annotated[str, shown(service.LANGUAGE), matching(service.LANGUAGE, "language as en or pt-BR")]
    | None,
    Query(
        description="Only what is said in this language (BCP 47).", max_length=35, examples=["en"]
    ),
]
_Job = Annotated[
    str | None,
    Query(
        alias="jobId",
        description="Only this job; nothing is found if there is no such job.",
        json_schema_extra={"pattern": r"^[^\u0000-\u001f]*$"},
    ),
]
_Speaker = Annotated[
    str | None,
    Query(
        description="Only what this speaker says: a name that was given, or an id as "
        "`speaker_0`. Not together with `like`.",
        min_length=1,
        max_length=100,
        examples=["Anna"],
        json_schema_extra={"pattern": r"^[^\u0000-\u001f]*$"},
    ),
]
_Limit = Annotated[
    Annotated[int, Field(ge=1, le=MAX_PAGE), WHOLE_NUMBER],
    Query(description="Most hits of a page."),
]

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/search",
    **answers(
        service.SearchPage,
        "A page of what was found.",
        ErrorCode.NOT_FOUND,
        *OF_RESULTS,
        headers=headers(sometimes=["Link"]),
        links=links({"jobId": "$response.body#/data/0/jobId"}, "getJob"),
    ),
)
async def search(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    q: _Words = None,
    like: Scene = None,
    kinds: _Kinds = None,
    language: _Language = None,
    created_from: parameters.CreatedFrom = None,
    created_to: parameters.CreatedTo = None,
    job_id: _Job = None,
    speaker: _Speaker = None,
    limit: _Limit = DEFAULT_PAGE,
    cursor: CursorQuery = None,
) -> Response:
    """Search all results.

    Speech, scene descriptions, writing on the screen, objects and file names, best first.

    A hit has all words, or, where few do, most of them. Of more than 300 matches the newest are
    ranked. Results are found as soon as their stage is completed. With `mode` `hybrid` what means
    the same is found too, some seconds later, and 200 hits at most; phrases and `-without` hold
    for it. Where the service has a model of pictures, scenes are found whose stills show what is
    sought: `foundBy` of such a hit has `picture`.

    With `like` scenes that look alike are found, where the service has a model that compares
    pictures (`RESULTS_UNAVAILABLE` else), some seconds after they are completed
    (`RESULTS_NOT_READY` before); `score` is the cosine of their vectors."""
    since, until = parameters.span_of(created_from, created_to)
    filters = Filters(
        kinds=tuple(SearchKind if kinds is None else map(SearchKind, kinds.split(","))),
        language=language,
        job_id=None if job_id is None else parse_job_id(job_id),
        created_from=since,
        created_to=until,
        speaker=speaker,
    )
    cursors = Cursors(context.signer.secret, account_id, _purpose(request))
    after = None if cursor is None else service.end_of(cursors.read(cursor, of="search"))
    if q is None:
        found = await service.find_alike_page(
            context.database,
            account_id,
            likeness(like, filters),
            filters,
            limit=limit,
            after=after,
            model=None if context.pictures is None else context.pictures.model,
        )
    elif like is not None:
        raise invalid("Either q or like is given, not both.", "like")
    else:
        found = await service.find_page(
            context.database,
            account_id,
            service.parse_query(q),
            filters,
            limit=limit,
            after=after,
            encoder=context.encoder,
            pictures=context.pictures,
        )
    next_cursor = None if found.end is None else cursors.write(service.end_bytes(found.end))
    return page(request, found.hits, next_cursor, path="/search", mode=found.mode)


def likeness(like: str | None, filters: Filters) -> service.Likeness:
    """Return the scene that is named. Raises INVALID_REQUEST."""
    if like is None:
        raise invalid("Either q or like is needed.", "q")
    is_of_scenes = filters.kinds in (tuple(SearchKind), (SearchKind.SCENE,))
    if (filters.language, filters.speaker) != (None, None) or not is_of_scenes:
        raise invalid("like finds scenes alone, which have no language and no speaker.", "like")
    job_id, _, index = like.partition(":")
    return service.Likeness(parse_job_id(job_id), int(index))


def _purpose(request: Request) -> bytes:
    """A cursor is good for the search that it was given for."""
    asked = sorted(
        (name, value)
        for name, value in request.query_params.items()
        if name not in {"cursor", "limit"}
    )
    return b"search " + hashlib.sha256(repr(asked).encode()).digest()
