"""Where else in an account's jobs a job's media is, whole or in part."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.across.duplicates import DuplicateKind
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, page
from serve_app.api.openapi import answers
from serve_app.api.parameters import WHOLE_NUMBER, CursorQuery, Cursors, one_of
from serve_app.api.schemas import PAGE, Count, Seconds, Share, Uuid, doc, list_of, rendered
from serve_app.errors import ApiError, ErrorCode
from serve_app.results.availability import no_result
from storage import duplicates
from storage.duplicates import StoredDuplicate
from storage.types import StageName

MAX_PAGE = 1000
_PURPOSE = b"duplicates"


class DuplicateSpanJson(TypedDict):
    """An interval of a job's media."""

    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.", 3.04)]
    endTime: Annotated[Seconds, doc("Where it ends.", 29.5)]
    track: Annotated[Count | None, doc("Of sound, the audio track; else null.")]


class DuplicateJson(TypedDict):
    """What is in another job too."""

    kind: Annotated[
        DuplicateKind,
        doc("`file`: most of the shorter one of the two; else what they show, or how they sound."),
    ]
    jobId: Annotated[Uuid, doc("The other job.")]
    fileName: Annotated[str, doc("Of the other job.", "interview-final.mp4")]
    here: Annotated[DuplicateSpanJson, doc("In this job's media.")]
    there: Annotated[DuplicateSpanJson, doc("In the other one's.")]
    score: Annotated[Share, doc("How alike; of a `file`, how much of it.", 0.97)]
    speed: Annotated[float, doc("How much faster the other one runs.", 1.04, ge=0)]


_DUPLICATES = list_of(
    "Duplicates",
    list[DuplicateJson],
    "A page of duplicates, by the other job; a job's `file` comes first.",
    **PAGE,
)
router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/duplicates",
    **answers(_DUPLICATES, "A page of duplicates.", ErrorCode.RESULTS_NOT_READY),
)
async def list_duplicates(
    request: Request,
    context: Context,
    job: CurrentJob,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MAX_PAGE), WHOLE_NUMBER],
        Query(description="Most duplicates of a page."),
    ] = 100,
    cursor: CursorQuery = None,
    kind: Annotated[
        Annotated[str, one_of(DuplicateKind)] | None,
        Query(
            description="Only of this kind.",
            json_schema_extra={"enum": [str(each) for each in DuplicateKind]},
        ),
    ] = None,
) -> Response:
    """List where it is again.

    Files, shots and sounds of other jobs of the account that are the same: encoded again,
    between bars, trimmed, or up to 6 % faster or slower. A job is compared within seconds of its
    end; until then the answer is `RESULTS_NOT_READY`. What was analysed before there were such
    fingerprints is found once it is analysed again, by a rerun."""
    if job.erased_at is not None:
        raise ApiError(ErrorCode.NOT_FOUND, "The job was erased.")
    cursors = Cursors(context.signer.secret, job.account_id, _PURPOSE)
    payload = cursors.read(cursor)
    after = (uuid.UUID(bytes=payload[:16]), int.from_bytes(payload[16:])) if payload else None
    async with context.database.statement() as connection:
        if job.completed_at is None or not await duplicates.is_compared(connection, job.id):
            raise no_result(job, StageName.VISION, "The job is not compared yet.")
        found = await duplicates.list_duplicates(
            connection, job.id, kind=kind, after=after, limit=limit + 1
        )
    shown, next_cursor = found[:limit], None
    if len(found) > limit:
        last = shown[-1][0]
        next_cursor = cursors.write(last.other_id.bytes + last.number.to_bytes(4))
    return page(request, [duplicate_json(*each) for each in shown], next_cursor)


def duplicate_json(found: StoredDuplicate, file_name: str) -> DuplicateJson:
    """Return a duplicate as answers have it."""
    here: DuplicateSpanJson = rendered(DuplicateSpanJson, found)
    there: DuplicateSpanJson = {
        "startTime": found.other_start_ms / 1000,
        "endTime": found.other_end_ms / 1000,
        "track": found.other_track,
    }
    return rendered(
        DuplicateJson,
        found,
        jobId=str(found.other_id),
        fileName=file_name,
        here=here,
        there=there,
        speed=round(found.speed, 3),
    )
