"""Scenes and chapters as files of editing programs and players."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pipelines.across.chapters import Chapter
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.downloads import FilePlace
from serve_app.api.envelope import API_PREFIX, Context
from serve_app.api.openapi import OF_RESULTS, errors, headers
from serve_app.errors import invalid
from serve_app.exports import timeline as timeline_files
from serve_app.exports.captions import attachment
from serve_app.exports.timeline import FrameTimeline, Section, find_sources, frame_timeline
from serve_app.results.chapters import find_chapters_of
from serve_app.results.scenes import list_scene_spans
from storage.job_records import JobRecord
from storage.jobs import find_ingest_result
from storage.results import SceneSpan


class ExportFormat(StrEnum):
    """The file types of an export."""

    EDL = "edl"
    OTIO = "otio"
    FCPXML = "fcpxml"
    CSV = "csv"
    FFMETADATA = "ffmetadata"
    YOUTUBE = "youtube"
    WEBVTT_CHAPTERS = "webvtt-chapters"


@dataclass(frozen=True, slots=True)
class _FileType:
    media_type: str
    extension: str
    example: str


_EDL = """\
TITLE: interview
FCM: NON-DROP FRAME

001  INTERVIE V     C        10:00:00:00 10:00:12:12 10:00:00:00 10:00:12:12
* FROM CLIP NAME: interview.mp4
* COMMENT: Scene 1: A woman speaks to the camera in a bright kitchen.
"""
_FILES = {
    ExportFormat.EDL: _FileType("text/plain", "edl", _EDL),
    ExportFormat.OTIO: _FileType(
        "application/vnd.pixar.opentimelineio+json", "otio", '{"OTIO_SCHEMA": "Timeline.1"}'
    ),
    ExportFormat.FCPXML: _FileType("application/xml", "fcpxml", '<fcpxml version="1.8"/>'),
    ExportFormat.CSV: _FileType(
        "text/csv",
        "csv",
        '"index","startTime","endTime","startTimecode","endTimecode","name","note"\r\n',
    ),
    ExportFormat.FFMETADATA: _FileType("text/plain", "ffmetadata.txt", ""),
    ExportFormat.YOUTUBE: _FileType("text/plain", "chapters.txt", ""),
    ExportFormat.WEBVTT_CHAPTERS: _FileType(
        "text/vtt", "chapters.vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:12.480\nScene 1\n"
    ),
}
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
                file.media_type: {"schema": {"type": "string"}, "example": file.example}
                for file in reversed(_FILES.values())
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
            "`csv` is a table; `ffmetadata`, `youtube`, `webvtt-chapters` are lists of chapters.",
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
            async with context.database.statement() as connection:
                sections = scene_sections(job, await list_scene_spans(connection, job))
        else:
            sections = chapter_sections(job, await find_chapters_of(context, job))
        async with context.database.statement() as connection:
            ingested = await find_ingest_result(connection, job.id)
        text = await run_in_threadpool(_written, format, job, ingested, sections)
    file = _FILES[format]
    return Response(
        text.encode(),
        media_type=file.media_type,
        headers={"Content-Disposition": attachment(job.file_name, file.extension)},
    )


def scene_sections(job: JobRecord, scenes: list[SceneSpan]) -> list[Section]:
    """The scenes; the whole video where it has no cuts."""
    if not scenes:
        return [Section(0, max(1, job.duration_ms or 0), "Scene 1")]
    return [
        Section(
            scene.start_ms,
            scene.end_ms,
            f"Scene {scene.index + 1}",
            scene.description,
        )
        for scene in scenes
    ]


def chapter_sections(job: JobRecord, chapters: list[Chapter]) -> list[Section]:
    """The chapters; one for the whole media without speech."""
    if not chapters:
        return [Section(0, max(1, job.duration_ms or 0), "Chapter 1")]
    return [Section(each.start_ms, each.end_ms, each.title) for each in chapters]


def _written(
    kind: ExportFormat,
    job: JobRecord,
    ingested: dict[str, Any] | None,
    sections: list[Section],
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
