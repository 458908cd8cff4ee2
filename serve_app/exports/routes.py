"""Scenes and chapters as files of editing programs and players."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app.api.authentication import CurrentAccount, CurrentJob, KeyedRoute
from serve_app.api.downloads import FilePlace, LargeResults
from serve_app.api.envelope import API_PREFIX, Context, public_url, success
from serve_app.api.openapi import OF_RESULTS, answers, errors, headers
from serve_app.api.schemas import Answer, Body, Uuid, doc
from serve_app.api.urls import parse_job_id
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.exports import comparisons
from serve_app.exports import timeline as timeline_files
from serve_app.exports.captions import attachment
from serve_app.exports.timeline import FrameTimeline, Section, find_sources, frame_timeline
from serve_app.results.availability import no_result
from serve_app.results.chapters import find_chapters_of
from serve_app.results.scenes import list_scene_spans
from storage import comparisons as stored
from storage import jobs
from storage.job_records import JobRecord
from storage.jobs import find_ingest_result
from storage.types import StageName


class ExportFormat(StrEnum):
    """The file types of an export."""

    EDL = "edl"
    OTIO = "otio"
    FCPXML = "fcpxml"
    CSV = "csv"
    FFMETADATA = "ffmetadata"
    YOUTUBE = "youtube"
    WEBVTT_CHAPTERS = "webvtt-chapters"


_EDL = """\
TITLE: interview
FCM: NON-DROP FRAME

001  INTERVIE V     C        10:00:00:00 10:00:12:12 10:00:00:00 10:00:12:12
* FROM CLIP NAME: interview.mp4
* COMMENT: Scene 1: A woman speaks to the camera in a bright kitchen.
"""
_FILES = {
    ExportFormat.EDL: ("text/plain", "edl", _EDL),
    ExportFormat.OTIO: (
        "application/vnd.pixar.opentimelineio+json",
        "otio",
        '{"OTIO_SCHEMA": "Timeline.1"}',
    ),
    ExportFormat.FCPXML: ("application/xml", "fcpxml", '<fcpxml version="1.8"/>'),
    ExportFormat.CSV: (
        "text/csv",
        "csv",
        '"index","startTime","endTime","startTimecode","endTimecode","name","note"\r\n',
    ),
    ExportFormat.FFMETADATA: ("text/plain", "ffmetadata.txt", ""),
    ExportFormat.YOUTUBE: ("text/plain", "chapters.txt", ""),
    ExportFormat.WEBVTT_CHAPTERS: (
        "text/vtt",
        "chapters.vtt",
        "WEBVTT\n\n00:00:00.000 --> 00:00:12.480\nScene 1\n",
    ),
}
"""The media type of each, its ending, and an example."""
_TIMELINES: dict[ExportFormat, Callable[[FrameTimeline], str]] = {
    ExportFormat.EDL: timeline_files.to_edl,
    ExportFormat.OTIO: timeline_files.to_otio,
    ExportFormat.FCPXML: timeline_files.to_fcpxml,
}
_LISTS: dict[ExportFormat, Callable[[Sequence[Section]], str]] = {
    ExportFormat.FFMETADATA: timeline_files.to_ffmetadata,
    ExportFormat.YOUTUBE: timeline_files.to_youtube,
    ExportFormat.WEBVTT_CHAPTERS: timeline_files.to_webvtt_chapters,
}

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/export",
    response_description="The file.",
    response_class=Response,
    responses=errors(*OF_RESULTS)
    | {
        200: {
            "headers": headers("Content-Disposition"),
            "content": {
                media_type: {"schema": {"type": "string"}, "example": example}
                for media_type, _, example in reversed(_FILES.values())
            },
        }
    },
)
async def export_job(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: FilePlace,
    format: Annotated[  # noqa: A002
        ExportFormat,
        Query(
            description="`edl` (CMX 3600), `otio` (OpenTimelineIO) and `fcpxml` (1.8) count frames "
            "from the file's start timecode and need a picture; an `edl` has one frame rate. "
            "`csv` is a table; `ffmetadata`, `youtube`, `webvtt-chapters` are lists of chapters; "
            "YouTube shows no list of fewer than three, so such a one is refused.",
            examples=["edl"],
        ),
    ],
    content: Annotated[
        Literal["scenes", "chapters"] | None,
        Query(
            description="What the parts are. If not given, `chapters` for `ffmetadata`, `youtube` "
            "and `webvtt-chapters`, else `scenes`."
        ),
    ] = None,
) -> Response:
    """Export scenes or chapters.

    A timeline whose clips are the scenes, or the chapters.

    A video without cuts is one scene. The clips of a continuous programme are sources of one
    timeline that begins at 01:00:00:00; that of a single file begins at the file's own timecode,
    or at 00:00:00:00. Frame rates that no editing program has become 30, or a multiple.
    OpenTimelineIO's own adapter for FCPXML (1.0) cuts fractional rates off, 29.97 to 29, and times
    with them; the file itself has them exact. Convert the `otio` there: its rates are kept, in
    Final Cut Pro 7's XML too."""
    if content is None:
        content = "chapters" if format in _LISTS else "scenes"
    async with place.turn(request):
        if content == "scenes":
            spans = await context.database.read(list_scene_spans, job)
            sections = [
                Section(each.start_ms, each.end_ms, f"Scene {each.index + 1}", each.description)
                for each in spans
            ]
        else:
            chapters = await find_chapters_of(context, job)
            sections = [Section(each.start_ms, each.end_ms, each.title) for each in chapters]
        if not sections:  # no cuts, or no speech: the whole media is one
            name = "Scene 1" if content == "scenes" else "Chapter 1"
            sections = [Section(0, max(1, job.duration_ms or 0), name)]
        ingested = await context.database.read(find_ingest_result, job.id)
        text = await run_in_threadpool(_written, format, job, ingested, sections)
    media_type, extension, _ = _FILES[format]
    named = {"Content-Disposition": attachment(job.file_name, extension)}
    return Response(text.encode(), media_type=media_type, headers=named)


def _written(
    kind: ExportFormat, job: JobRecord, ingested: dict[str, Any] | None, sections: list[Section]
) -> str:
    if kind in _LISTS:
        return _LISTS[kind](sections)
    sources = find_sources(job.file_name, ingested)
    if not sources and kind is ExportFormat.CSV:
        return timeline_files.to_table(sections, None)
    if not sources:
        raise invalid("The job has no picture whose frames could be counted.", "format")
    # Separate audio replaces the file's own.
    has_audio = bool(((ingested or {}).get("media") or {}).get("audio")) and not job.source.audio
    timeline = frame_timeline(job.file_name, sources, sections, has_audio=has_audio)
    if kind is ExportFormat.CSV:
        return timeline_files.to_table(sections, timeline)
    return _TIMELINES[kind](timeline)


class ComparisonFormat(StrEnum):
    """The file types of a comparison."""

    JSON = "json"
    OTIO = "otio"
    EDL = "edl"


class ComparisonBody(Body):
    """Body of ``POST /comparisons``."""

    before: Annotated[str, Field(alias="from"), doc("The job of the first cut.")]
    after: Annotated[str, Field(alias="to"), doc("The job of the second cut.")]


_COMPARISON_EDL = """\
TITLE: second-cut
FCM: NON-DROP FRAME

001  SECONDCU V     C        00:00:00:00 00:00:04:12 00:00:00:00 00:00:04:12
* FROM CLIP NAME: second-cut.mp4
* COMMENT: moved: from 00:00:21.480 to 00:00:26.000
"""

_COMPARISON_FILES = {
    ComparisonFormat.OTIO: ("application/vnd.pixar.opentimelineio+json", timeline_files.to_otio),
    ComparisonFormat.EDL: ("text/plain", timeline_files.to_edl),
}


@router.post(
    "/comparisons",
    **answers(
        Answer[comparisons.ComparisonStatus],
        "It is made, or was already.",
        ErrorCode.NOT_FOUND,
        *OF_RESULTS,
        status=202,
    ),
)
async def compare_jobs(
    context: Context, account_id: CurrentAccount, body: ComparisonBody
) -> Response:
    """Compare two cuts.

    Two jobs of the account: shots removed, added, moved and retimed, words and titles changed.

    It is made in the background, and read at `GET /comparisons/{comparisonId}`: every few seconds,
    for one that nobody requests or reads for two minutes is not made. Those of the same results are
    the same. An account waits for at most four at once.

    Shots are found again by what their pictures show, whatever the encoding, grade or framing.
    What only one of the jobs has, scenes or a transcript, is not compared. Jobs that were analysed
    before there were fingerprints are analysed again by a rerun of `vision`."""
    found = await comparisons.request_comparison(context, account_id, body.before, body.after)
    return success(comparisons.status_json(found), status=202)


@router.get(
    "/comparisons/{comparisonId}",
    **answers(
        Answer[comparisons.ComparisonStatus],
        "What became of it, and what changed.",
        *OF_RESULTS,
        content={
            "text/plain": {"schema": {"type": "string"}, "example": _COMPARISON_EDL},
            "application/vnd.pixar.opentimelineio+json": {
                "schema": {"type": "string"},
                "example": '{"OTIO_SCHEMA": "Timeline.1"}',
            },
        },
    ),
)
async def get_comparison(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    answer: LargeResults,
    comparison_id: Annotated[Uuid, Path(alias="comparisonId", description="The comparison's id.")],
    format: Annotated[  # noqa: A002
        ComparisonFormat | None,
        Query(
            description="`json`, if not given; or, once it is completed, the second cut as `otio` "
            "or `edl` (CMX 3600): its clips are its shots, their notes what became of each, and "
            "what was removed.",
            examples=["edl"],
        ),
    ] = None,
) -> Response:
    """Read a comparison.

    `result` is there once its `state` is `completed`; it is kept for an hour, or until one of
    the jobs is erased or redacted. Files of one that is pending are not ready."""
    async with context.database.statement() as connection:
        found = await stored.find_comparison(connection, account_id, parse_job_id(comparison_id))
        if found is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such comparison, or not any more.")
        document = await stored.get_document(connection, found.id) or ""
        job = await jobs.find_job(connection, found.after_id)
        ingested = await jobs.find_ingest_result(connection, found.after_id)
    if format in _COMPARISON_FILES and found.error is not None:
        refused = dict(found.error)
        code, message = ErrorCode(refused.pop("code")), refused.pop("message")
        raise ApiError(code, message, param=refused.pop("param", None), extra=refused)
    if format in _COMPARISON_FILES and job is not None:
        if not document:
            raise no_result(job, StageName.VISION, "The comparison is being made.")
        kind, name = ComparisonFormat(format), job.file_name
        write = partial(_file, kind, name, ingested, document)
        return await answer.prepared(len(document), write)

    def shown() -> Response:
        data = comparisons.status_json(found)
        if document:
            data["result"] = comparisons.result_json(found, document, context, public_url(request))
        return success(data, large=True)

    return await answer.prepared(len(document), shown)


def _file(
    kind: ComparisonFormat, file_name: str, ingested: Mapping[str, Any] | None, document: str
) -> Response:
    """Raises INVALID_REQUEST where there are no frames to count."""
    sources = find_sources(file_name, ingested)
    sections = [Section(*each) for each in from_json(document)["sections"]]
    if not sources or not sections:
        raise invalid("The second cut has no picture whose frames could be counted.", "format")
    media_type, write = _COMPARISON_FILES[kind]
    text = write(frame_timeline(file_name, sources, sections, has_audio=False))
    name = attachment(file_name, f"changes.{kind}")
    return Response(text.encode(), media_type=media_type, headers={"Content-Disposition": name})
