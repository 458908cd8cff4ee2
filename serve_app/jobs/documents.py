"""Pipeline results as the JSON documents that are stored and shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from models.contracts import Box, TextLine
from pipelines.types import Scene, TrackOutcome, TranscriptResult, TranscriptSegment, TranscriptWord
from storage.results import TrackTranscript
from storage.types import StageStatus


def scene_document(scene: Scene) -> dict[str, Any]:
    """A Scene with ``thumbnailKey``, which the API turns into an address."""
    return {
        "index": scene.index,
        "startTime": scene.start_ms / 1000,
        "endTime": scene.end_ms / 1000,
        "description": scene.description,
        "objects": list(scene.objects),
        "colorPalette": list(scene.color_palette),
        "shotType": str(scene.shot_type),
        "shotAngle": str(scene.shot_angle),
        "cameraMotion": str(scene.camera_motion),
        "confidence": round(scene.confidence, 4),
        "thumbnailKey": scene.thumbnail_key,
        "objectTracks": [
            {
                "label": track.label,
                "start": track.start_ms / 1000,
                "end": track.end_ms / 1000,
                "confidence": round(track.confidence, 4),
            }
            for track in scene.object_tracks
        ],
        "onScreenText": [_text_line(line) for line in scene.on_screen_text],
    }


def _text_line(line: TextLine) -> dict[str, Any]:
    return {
        "text": line.text,
        "confidence": round(line.confidence, 4),
        "box": box_document(line.box),
    }


def box_document(box: Box) -> dict[str, float]:
    """A rectangle in shares of the picture's width and height."""
    return {name: round(value, 4) for name, value in asdict(box).items()}


def track_transcript(track: TrackOutcome) -> TrackTranscript:
    """A track as it is stored with its job."""
    found = track.transcript
    return TrackTranscript(
        track_index=track.index,
        track_name=track.name,
        status=StageStatus.FAILED if found is None else StageStatus.COMPLETED,
        error_code=track.code,
        language=None if found is None else found.language,
        document=None if found is None else transcript_document(found),
    )


def transcript_document(result: TranscriptResult) -> dict[str, Any]:
    """Speakers, text and segments of one track."""
    return {
        "speakers": [
            {
                "id": speaker.id,
                "label": speaker.label,
                "speakingSeconds": round(speaker.speaking_seconds, 3),
            }
            for speaker in result.speakers
        ],
        "text": "\n".join(segment.text for segment in result.segments),
        "segments": [_segment(segment) for segment in result.segments],
    }


def _segment(segment: TranscriptSegment) -> dict[str, Any]:
    return {
        "index": segment.index,
        "startTime": segment.start_ms / 1000,
        "endTime": segment.end_ms / 1000,
        "text": segment.text,
        "speaker": segment.speaker,
        "confidence": round(segment.confidence, 4),
        "words": [_word(word) for word in segment.words],
    }


def _word(word: TranscriptWord) -> dict[str, Any]:
    return {
        "text": word.text,
        "startTime": word.start_ms / 1000,
        "endTime": word.end_ms / 1000,
        "confidence": round(word.confidence, 4),
        "speaker": word.speaker,
    }
