"""Transcripts as files to download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import quote

from starlette.responses import Response

from pipelines.speech.captions import (
    CaptionLimits,
    to_markdown,
    to_srt,
    to_ttml,
    to_txt,
    to_vtt,
)
from pipelines.types import Speaker, TranscriptSegment
from serve_app.api.spreadsheets import csv_table
from serve_app.jobs.documents import transcript_of
from storage.job_records import JobRecord
from storage.results import TrackTranscript

_MEDIA_TYPES = {
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "ttml": "application/ttml+xml",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
}
_COLUMNS = ("index", "startTime", "endTime", "speaker", "text", "confidence")


def file_response(
    job: JobRecord, track: TrackTranscript, extension: str, limits: CaptionLimits
) -> Response:
    """``track`` as an attachment named after the media; ``extension`` is one of _MEDIA_TYPES."""
    return Response(
        _text(track, extension, limits).encode("utf-8"),
        media_type=_MEDIA_TYPES[extension],
        headers={"Content-Disposition": attachment(job.file_name, extension)},
    )


def _text(track: TrackTranscript, extension: str, limits: CaptionLimits) -> str:
    segments, speakers = transcript_of(track)
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
        yield each.index, f"{start:.3f}", f"{end:.3f}", label, each.text, each.confidence


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
