"""Pipeline results as the JSON documents that are stored and shown, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, cast

from typing_extensions import TypedDict

from models.contracts import Box, TextLine
from pipelines.types import (
    Scene,
    Speaker,
    TimedSentence,
    TrackOutcome,
    TranscriptResult,
    TranscriptSegment,
    TranscriptWord,
)
from serve_app.results import answers
from storage.results import TrackTranscript
from storage.types import StageStatus


class StoredOverview(answers.OverviewJson):
    """An overview before the API turns the key of its still into an address."""

    thumbnailKey: NotRequired[str]  # noqa: N815


class StoredScene(answers.SceneJson):
    """A scene before the API turns the key of its still into an address."""

    thumbnailKey: NotRequired[str]  # noqa: N815


class SceneSpan(TypedDict):
    """When a scene is, in seconds, and what it shows."""

    index: int
    startTime: float
    endTime: float
    description: str


class StoredTranscript(TypedDict):
    """The transcript of one track, without its track."""

    speakers: list[answers.SpeakerJson]
    text: str
    segments: list[answers.TranscriptSegmentJson]


def scene_document(scene: Scene) -> StoredScene:
    """A scene as it is stored."""
    shown = overview_document(scene)
    return {**shown, "index": scene.index, "confidence": round(scene.confidence, 4)}


def overview_document(scene: Scene) -> StoredOverview:
    """What is seen, of a whole video too, as it is stored."""
    return {
        "startTime": scene.start_ms / 1000,
        "endTime": scene.end_ms / 1000,
        "description": scene.description,
        "objects": list(scene.objects),
        "colorPalette": list(scene.color_palette),
        "shotType": scene.shot_type,
        "shotAngle": scene.shot_angle,
        "cameraMotion": scene.camera_motion,
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


def _text_line(line: TextLine) -> answers.TextLineJson:
    return {
        "text": line.text,
        "confidence": round(line.confidence, 4),
        "box": box_document(line.box),
    }


def box_document(box: Box) -> answers.BoxJson:
    """A rectangle in shares of the picture's width and height."""
    return {
        "left": round(box.left, 4),
        "top": round(box.top, 4),
        "width": round(box.width, 4),
        "height": round(box.height, 4),
    }


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


def transcript_document(result: TranscriptResult) -> StoredTranscript:
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


"""Code of the warning of a job whose transcript should have been summed up, and was not."""


def summary_document(sentences: Sequence[TimedSentence]) -> list[answers.SummarySentenceJson]:
    """A summary as it is stored."""
    return [
        {"text": each.text, "startTime": each.start_ms / 1000, "endTime": each.end_ms / 1000}
        for each in sentences
    ]


def _segment(segment: TranscriptSegment) -> answers.TranscriptSegmentJson:
    document: answers.TranscriptSegmentJson = {
        "index": segment.index,
        "startTime": segment.start_ms / 1000,
        "endTime": segment.end_ms / 1000,
        "text": segment.text,
        "speaker": segment.speaker,
        "confidence": round(segment.confidence, 4),
        "words": [_word(word) for word in segment.words],
    }
    if segment.language is not None:
        document["language"] = segment.language
    return document


def _word(word: TranscriptWord) -> answers.WordJson:
    return {
        "text": word.text,
        "startTime": word.start_ms / 1000,
        "endTime": word.end_ms / 1000,
        "confidence": round(word.confidence, 4),
        "speaker": word.speaker,
    }


def stored_transcript(track: TrackTranscript) -> StoredTranscript:
    """As stored; empty for a track that could not be transcribed."""
    if track.document is None:
        return {"speakers": [], "text": "", "segments": []}
    return cast("StoredTranscript", track.document)


def transcript_of(track: TrackTranscript) -> tuple[list[TranscriptSegment], list[Speaker]]:
    """Segments and speakers of a stored transcript."""
    document = stored_transcript(track)
    segments = [
        TranscriptSegment(
            index=raw["index"],
            start_ms=round(raw["startTime"] * 1000),
            end_ms=round(raw["endTime"] * 1000),
            text=raw["text"],
            speaker=raw["speaker"],
            confidence=raw["confidence"],
            words=tuple(
                TranscriptWord(
                    text=word["text"],
                    start_ms=round(word["startTime"] * 1000),
                    end_ms=round(word["endTime"] * 1000),
                    confidence=word["confidence"],
                    speaker=word["speaker"],
                    language=raw.get("language"),
                )
                for word in raw.get("words", ())
            ),
            language=raw.get("language"),
        )
        for raw in document["segments"]
    ]
    speakers = [
        Speaker(raw["id"], raw["label"], raw["speakingSeconds"]) for raw in document["speakers"]
    ]
    return segments, speakers
