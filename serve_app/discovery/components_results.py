"""Schemas of results: scenes, transcripts, audio tracks, the older rendering of both."""

from __future__ import annotations

from models.contracts import CameraMotion, ShotAngle, ShotType
from serve_app.discovery.components_forms import (
    Schema,
    address,
    choice,
    extended,
    identifier,
    integer,
    list_of,
    nullable,
    number,
    record,
    reference,
    text,
)


def _seconds(description: str) -> Schema:
    return number(f"{description} Seconds from the start of the media.", minimum=0)


def _confidence() -> Schema:
    return number("0 to 1.", minimum=0, maximum=1)


def _scene() -> Schema:
    return record(
        "A stretch between two cuts.",
        {
            "index": integer("From 0.", minimum=0),
            "startTime": _seconds("Where it begins."),
            "endTime": _seconds("Where it ends: the next scene's start."),
            "description": text("What is seen, in one or two sentences."),
            "objects": list_of(text(), "What is in it: lower-case nouns, sorted."),
            "colorPalette": list_of(
                text(pattern="^#[0-9a-f]{6}$"),
                "Its colours, most of the picture first.",
                minItems=1,
                maxItems=5,
            ),
            "shotType": choice("How much of the subject is in the frame.", ShotType),
            "shotAngle": choice("From where the camera looks.", ShotAngle),
        },
        {
            "cameraMotion": choice("What the camera does.", CameraMotion),
            "confidence": {**_confidence(), "description": "Of the cut that opens it, 0 to 1."},
            "thumbnailUrl": address("A still; signed, needs no key, expires."),
            "objectTracks": list_of(
                reference("ObjectTrack"),
                "When things of known classes are in the picture, sampled once a second, by start; "
                "empty where no detector of objects serves.",
            ),
            "onScreenText": list_of(
                reference("TextLine"),
                "Writing read in one of its stills, top to bottom. Absent from scenes that were "
                "analysed before writing was read.",
            ),
        },
    )


def _object_track() -> Schema:
    return record(
        "A thing in a stretch of a scene.",
        {
            "label": text("A lower-case noun."),
            "start": _seconds("Where it begins."),
            "end": _seconds("Where it ends."),
            "confidence": _confidence(),
        },
    )


def _text_line() -> Schema:
    return record(
        "A line of writing on the screen.",
        {"text": text("As read."), "confidence": _confidence(), "box": reference("Box")},
    )


def _box() -> Schema:
    share = {"minimum": 0, "maximum": 1}
    return record(
        "A rectangle in the picture, in shares of its width and height.",
        {
            "left": number("Of its left edge.", **share),
            "top": number("Of its upper edge.", **share),
            "width": number("How wide it is.", **share),
            "height": number("How high it is.", **share),
        },
    )


def _word() -> Schema:
    return record(
        "A word and when it is spoken.",
        {
            "text": text("As written."),
            "startTime": _seconds("Where it begins."),
            "endTime": _seconds("Where it ends."),
            "confidence": _confidence(),
            "speaker": nullable(text("A speaker's `id`.")),
        },
    )


def _segment() -> Schema:
    return record(
        "A sentence-like run of words by one speaker.",
        {
            "index": integer("From 0.", minimum=0),
            "startTime": _seconds("Where it begins."),
            "endTime": _seconds("Where it ends."),
            "text": text("Its words, joined."),
            "speaker": nullable(text("A speaker's `id`.")),
            "confidence": _confidence(),
            "words": list_of(reference("Word")),
        },
    )


def _transcript() -> Schema:
    return record(
        "What is said, by whom and when.",
        {
            "jobId": identifier("The job."),
            "language": nullable(text("BCP 47.")),
            "speakers": list_of(reference("Speaker"), "In order of first appearance."),
            "text": text("The segments, a line each."),
            "segments": list_of(reference("TranscriptSegment"), "In order of time."),
        },
        {
            "trackIndex": integer("On multi-track jobs.", minimum=0),
            "trackName": text("On multi-track jobs."),
            "tracks": list_of(
                reference("AudioTrack"), "On multi-track jobs, unless one track was asked for."
            ),
        },
    )


def _entry() -> Schema:
    return record(
        "A transcript segment as older clients read it.",
        {
            "StartTime": _seconds("Where it begins."),
            "EndTime": _seconds("Where it ends."),
            "Text": text("What is said."),
            "Speaker": nullable(text("Who says it.")),
        },
    )


def _audio_track() -> Schema:
    return record(
        "One audio track of a multi-track job.",
        {
            "trackIndex": integer("From 0.", minimum=0),
            "trackName": text("Its label, or the name of its file."),
            "status": reference("StageStatus"),
            "transcript": list_of(reference("TranscriptEntry"), "Empty until it is transcribed."),
            "speakers": list_of(text(), "In order of first appearance."),
            "language": nullable(text("BCP 47.")),
        },
        {"errorCode": reference("JobErrorCode")},
    )


def result_schemas() -> dict[str, Schema]:
    """Components of results, by name."""
    return {
        "Scene": _scene(),
        "ObjectTrack": _object_track(),
        "SceneList": record(
            "The scenes of a job.",
            {
                "jobId": identifier("The job."),
                "scenes": list_of(
                    reference("Scene"), "Cover the whole video; empty when it has no cuts."
                ),
            },
        ),
        "TextLine": _text_line(),
        "Box": _box(),
        "Word": _word(),
        "Speaker": record(
            "Somebody who is heard.",
            {
                "id": text("`speaker_0`, `speaker_1`…"),
                "label": text("A name to show."),
                "speakingSeconds": number("How long they speak in all.", minimum=0),
            },
        ),
        "TranscriptSegment": _segment(),
        "Transcript": _transcript(),
        "TranscriptEntry": _entry(),
        "AudioTrack": _audio_track(),
        "AudioTrackList": record(
            "The audio tracks of a job.",
            {
                "jobId": identifier("The job."),
                "tracks": list_of(reference("AudioTrack"), "By `trackIndex`.", minItems=2),
            },
        ),
        "ProcessedScene": extended(
            "A scene with the field that older clients read.",
            "Scene",
            record("", {"endTs": _seconds("The same as `endTime`.")}),
        ),
        "ProcessedData": record(
            "The results of a job, each only once its stage is completed.",
            {"length": nullable(number("Of the media, in seconds; null until it is known."))},
            {
                "scenes": list_of(reference("ProcessedScene")),
                "transcript": list_of(reference("TranscriptEntry")),
            },
        ),
    }
