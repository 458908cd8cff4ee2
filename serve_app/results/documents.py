"""Results of the pipelines: from what is stored, and as the API shows them."""

from __future__ import annotations

from dataclasses import replace

from models.contracts import Box
from pipelines.codec import decode, encode
from pipelines.types import (
    Scene,
    ScreenText,
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


def scenes_of(stored: str | bytes) -> tuple[Scene, ...]:
    """Scenes as they are stored, of whatever version."""
    text = stored.encode() if isinstance(stored, str) else stored
    return decode(tuple[Scene, ...], text, ignore_unknown=True)


def scene_json(scene: Scene, still_url: str) -> answers.SceneJson:
    """A scene, its still at an address."""
    shown = overview_json(scene, still_url)
    return {**shown, "index": scene.index, "confidence": round(scene.confidence, 4)}


def overview_json(scene: Scene, still_url: str) -> answers.OverviewJson:
    """What is seen, of a whole video too."""
    return {
        "startTime": scene.start_ms / 1000,
        "endTime": scene.end_ms / 1000,
        "description": scene.description,
        "objects": list(scene.objects),
        "colorPalette": list(scene.color_palette),
        "shotType": scene.shot_type,
        "shotAngle": scene.shot_angle,
        "cameraMotion": scene.camera_motion,
        "thumbnailUrl": still_url,
        "objectTracks": [
            {
                "label": track.label,
                "start": track.start_ms / 1000,
                "end": track.end_ms / 1000,
                "confidence": round(track.confidence, 4),
            }
            for track in scene.object_tracks
        ],
        "activePicture": box_document(scene.active_picture),
        "onScreenText": [_text_line(line) for line in scene.on_screen_text],
    }


def _text_line(line: ScreenText) -> answers.TextLineJson:
    shown: answers.TextLineJson = {
        "text": line.text,
        "confidence": round(line.confidence, 4),
        "box": box_document(line.box),
    }
    if line.start_ms is not None and line.end_ms is not None:
        shown |= {"startTime": line.start_ms / 1000, "endTime": line.end_ms / 1000}
    return shown


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
        document=None if found is None else encode(found).decode(),
    )


def transcript_of(track: TrackTranscript) -> TranscriptResult:
    """What is stored of a track, with the names that were given to speakers; empty if it failed."""
    if track.document is None:
        return TranscriptResult(None, (), ())
    found = decode(TranscriptResult, track.document.encode(), ignore_unknown=True)
    speakers = (
        replace(each, label=track.labels.get(each.id, each.label)) for each in found.speakers
    )
    return replace(found, speakers=tuple(speakers))


def speaker_json(speaker: Speaker) -> answers.SpeakerJson:
    """Somebody who speaks on a track."""
    return {
        "id": speaker.id,
        "label": speaker.label,
        "speakingSeconds": round(speaker.speaking_seconds, 3),
    }


def sentence_json(sentence: TimedSentence) -> answers.SummarySentenceJson:
    """A sentence of a summary."""
    return {
        "text": sentence.text,
        "startTime": sentence.start_ms / 1000,
        "endTime": sentence.end_ms / 1000,
    }


def segment_json(segment: TranscriptSegment) -> answers.TranscriptSegmentJson:
    """A run of words by one speaker."""
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
