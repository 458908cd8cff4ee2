"""Transcripts as files to download."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from pipelines.speech.captions import to_srt, to_txt, to_vtt
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord
from storage.job_records import JobRecord
from storage.results import TrackTranscript

_MEDIA_TYPES = {"srt": "application/x-subrip", "vtt": "text/vtt", "txt": "text/plain"}


def file_response(job: JobRecord, track: TrackTranscript, extension: str) -> Response:
    """``track`` as an ``srt``, ``vtt`` or ``txt`` attachment named after the media."""
    segments, speakers = _from_document(track.document or {})
    if extension == "srt":
        text = to_srt(segments)
    elif extension == "vtt":
        text = to_vtt(segments, speakers)
    else:
        text = to_txt(segments, speakers)
    return Response(
        text.encode("utf-8"),
        media_type=_MEDIA_TYPES[extension],
        headers={"Content-Disposition": attachment(job.file_name, extension)},
    )


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


def _from_document(document: dict[str, Any]) -> tuple[list[TranscriptSegment], list[Speaker]]:
    segments = [_segment(raw) for raw in document.get("segments", [])]
    speakers = [
        Speaker(raw["id"], raw["label"], raw["speakingSeconds"])
        for raw in document.get("speakers", [])
    ]
    return segments, speakers


def _segment(raw: dict[str, Any]) -> TranscriptSegment:
    return TranscriptSegment(
        index=raw["index"],
        start_ms=round(raw["startTime"] * 1000),
        end_ms=round(raw["endTime"] * 1000),
        text=raw["text"],
        speaker=raw["speaker"],
        confidence=raw["confidence"],
        words=tuple(_word(word) for word in raw["words"]),
    )


def _word(raw: dict[str, Any]) -> TranscriptWord:
    return TranscriptWord(
        text=raw["text"],
        start_ms=round(raw["startTime"] * 1000),
        end_ms=round(raw["endTime"] * 1000),
        confidence=raw["confidence"],
        speaker=raw["speaker"],
    )
