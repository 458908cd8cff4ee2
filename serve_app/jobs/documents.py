"""Pipeline results as the JSON documents that are stored and shown."""

from __future__ import annotations

from typing import Any

from pipelines.types import Scene, TranscriptResult, TranscriptSegment, TranscriptWord


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
    }


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
