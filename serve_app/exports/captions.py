"""The transcript: as JSON, or as a file of captions, text or a table.

Files of late are kept: a day of speech takes seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pipelines.speech.captions import to_markdown, to_srt, to_ttml, to_txt, to_vtt, with_sounds
from pipelines.speech.cues import USUAL, CaptionLimits
from pipelines.types import Speaker, TranscriptSegment
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.downloads import FilePlace
from serve_app.api.envelope import success
from serve_app.api.openapi import errors, headers
from serve_app.api.queries import WHOLE_NUMBER
from serve_app.api.schemas import Answer
from serve_app.context import AppContext
from serve_app.errors import ErrorCode
from serve_app.exports.spreadsheets import csv_table
from serve_app.results import transcripts
from serve_app.results.availability import require_stage
from serve_app.results.routes import RESULT_ERRORS, TrackQuery
from serve_app.results.transcripts import Transcript, transcript_of
from storage.job_records import JobRecord
from storage.results import TrackTranscript, transcript_versions
from storage.types import StageName

_MEDIA_TYPES = {
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "ttml": "application/ttml+xml",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
}
_COLUMNS = ("index", "startTime", "endTime", "speaker", "text", "confidence")


_FILES = {
    "application/x-subrip": (
        "SubRip captions.",
        "1\n00:00:01,200 --> 00:00:02,060\nGood morning.\n",
    ),
    "text/vtt": (
        "WebVTT captions.",
        "WEBVTT\n\n00:00:01.200 --> 00:00:02.060\n<v Speaker 1>Good morning.\n",
    ),
    "application/ttml+xml": ("TTML captions (IMSC 1.1 Text).", '<tt xml:lang="en"/>'),
    "text/plain": ("A paragraph for each turn of a speaker.", "Speaker 1: Good morning.\n"),
    "text/markdown": (
        "The same as Markdown, with the time of each turn.",
        "**Speaker 1** `00:00:01` Good morning.\n",
    ),
    "text/csv": (
        "A line for each segment.",
        '"index","startTime","endTime","speaker","text","confidence"\r\n',
    ),
}
_KEPT_CHARACTERS = 16 * 2**20
_kept: OrderedDict[tuple[object, ...], str] = OrderedDict()
"""The files that were read last, by all that they depend on; the oldest goes first."""

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])


@router.get(
    "/jobs/{jobId}/transcript",
    operation_id="getTranscript",
    summary="Read the transcript",
    response_model=Answer[Transcript],
    response_description="The transcript.",
    responses=errors(ErrorCode.INVALID_REQUEST, *RESULT_ERRORS)
    | {
        200: {
            "headers": headers(sometimes=["Content-Disposition"]),
            "content": {
                media_type: {
                    "schema": {"type": "string", "description": description},
                    "example": example,
                }
                for media_type, (description, example) in _FILES.items()
            },
        }
    },
)
async def get_transcript(
    request: Request,
    context: Context,
    job: CurrentJob,
    place: FilePlace,
    format: Annotated[  # noqa: A002
        Literal["json", "srt", "vtt", "ttml", "txt", "md", "csv"],
        Query(description="The form of the answer."),
    ] = "json",
    track: TrackQuery = None,
    maxLineLength: Annotated[  # noqa: N803 - the API's name
        Annotated[int, Field(ge=12, le=120), WHOLE_NUMBER],
        Query(
            description="Most columns of a line of captions (`srt`, `vtt`, `ttml`). Wide and"
            " full-width characters, as those of Chinese and Japanese, take two."
        ),
    ] = USUAL.line_columns,
    maxLines: Annotated[  # noqa: N803
        Annotated[int, Field(ge=1, le=4), WHOLE_NUMBER],
        Query(description="Most lines of a caption."),
    ] = USUAL.lines,
    maxCharactersPerSecond: Annotated[  # noqa: N803
        Annotated[int, Field(ge=5, le=60), WHOLE_NUMBER],
        Query(
            description="How fast captions are to be read: they are cut, and stay on the screen "
            "into pauses, for that. Speech that is faster still makes captions that are."
        ),
    ] = USUAL.columns_per_second,
    sounds: Annotated[
        bool,
        Query(description="Captions have `[music]` and `[singing]` where nothing is spoken."),
    ] = False,
) -> Response:
    """As JSON, or as a file of captions, text or a table."""
    async with place.turn(request):
        if format != "json":
            limits = CaptionLimits(maxLineLength, maxLines, maxCharactersPerSecond)
            return await _file_response(context, job, track, format, limits, sounds=sounds)
        async with context.database.statement() as connection:
            tracks = await transcripts.read_tracks(connection, job)
        if track is None and len(tracks) > 1:
            return success(request, transcripts.combined_transcript_json(job, tracks))
        chosen = transcripts.choose_track(job, tracks, track)
        return success(
            request,
            transcripts.transcript_json(job, chosen, transcript_of(chosen), multi=len(tracks) > 1),
        )


async def _file_response(
    context: AppContext,
    job: JobRecord,
    index: int | None,
    extension: str,
    limits: CaptionLimits,
    *,
    sounds: bool,
) -> Response:
    """A track as an attachment named after the media; ``extension`` is one of _MEDIA_TYPES."""
    require_stage(job, StageName.TRANSCRIPT)
    asked, timed = (job.id, index, extension, limits, sounds), extension in ("srt", "vtt", "ttml")
    async with context.database.statement() as connection:
        key = (*asked, *await transcript_versions(connection, job.id))
        text = _kept.get(key)
        if text is None:
            tracks = await transcripts.read_tracks(connection, job, words=timed)
    if text is None:
        track = transcripts.choose_track(job, tracks, index)
        text = await run_in_threadpool(_text, track, extension, limits, sounds and timed)
        key = (*asked, *((each.track_index, each.version) for each in tracks))
    _kept[key] = text
    _kept.move_to_end(key)
    while sum(map(len, _kept.values())) > _KEPT_CHARACTERS:
        _kept.popitem(last=False)
    return Response(
        text.encode(),
        media_type=_MEDIA_TYPES[extension],
        headers={"Content-Disposition": attachment(job.file_name, extension)},
    )


def _text(track: TrackTranscript, extension: str, limits: CaptionLimits, with_sound: bool) -> str:
    found = transcript_of(track)
    segments: Sequence[TranscriptSegment] = found.segments
    speakers = found.speakers
    if with_sound:
        segments = with_sounds(segments, found.sounds)
    match extension:
        case "srt":
            return to_srt(segments, limits)
        case "vtt":
            return to_vtt(segments, speakers, limits)
        case "ttml":
            return to_ttml(segments, speakers, track.language, limits)
        case "md":
            return to_markdown(segments, speakers)
        case "csv":
            return csv_table(_COLUMNS, _rows(segments, speakers))
    return to_txt(segments, speakers)


def _rows(
    segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]
) -> Iterator[tuple[object, ...]]:
    labels = {speaker.id: speaker.label for speaker in speakers}
    for each in segments:
        start, end = each.start_ms / 1000, each.end_ms / 1000
        label = labels.get(each.speaker or "", "")
        yield each.index, f"{start:.3f}", f"{end:.3f}", label, each.text, round(each.confidence, 4)


def attachment(file_name: str, extension: str) -> str:
    """``Content-Disposition`` of a file named after the media."""
    stem = PurePosixPath(file_name).stem or "transcript"
    name = f"{stem}.{extension}"
    # Some clients read %xx here as an escape (RFC 6266, appendix D).
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in name)
    header = f'attachment; filename="{plain}"'
    if plain != name:
        header += f"; filename*=UTF-8''{quote(name, safe='')}"
    return header
