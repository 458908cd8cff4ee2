"""Answers about results, as ``service`` and ``routes`` make them."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from models.contracts import CameraMotion, ShotAngle, ShotType, SoundKind
from pipelines.types import StageCode
from serve_app.api.schemas import Count, Seconds, Share, Url, Uuid, doc
from storage.types import StageStatus


class ObjectTrackJson(TypedDict):
    """A thing in a stretch of a scene."""

    label: Annotated[str, doc("A lower-case noun.", "woman")]
    start: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    end: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share


class BoxJson(TypedDict):
    """A rectangle in the picture, in shares of its width and height."""

    left: Annotated[Share, doc("Of its left edge.")]
    top: Annotated[Share, doc("Of its upper edge.")]
    width: Annotated[Share, doc("How wide it is.")]
    height: Annotated[Share, doc("How high it is.")]


class TextLineJson(TypedDict):
    """A line of writing on the screen."""

    text: Annotated[str, doc("As read.", "Anna Weber, baker")]
    confidence: Share
    box: BoxJson
    startTime: NotRequired[Annotated[Seconds, doc("From when it is there, in seconds.")]]
    endTime: NotRequired[Annotated[Seconds, doc("Until when it is there; both to half a second.")]]


class OverviewJson(TypedDict):
    """What is seen of a whole video, as of a scene."""

    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next scene's start.")]
    description: Annotated[
        str,
        doc(
            "What is seen, in one or two sentences.",
            "A woman speaks to the camera in a bright kitchen.",
        ),
    ]
    objects: Annotated[
        list[str], doc("What is in it: lower-case nouns, sorted.", ["kettle", "woman"])
    ]
    colorPalette: Annotated[
        list[Annotated[str, Field(pattern="^#[0-9a-f]{6}$")]],
        doc(
            "Its colours, most of the picture first.",
            ["#e8e2d6", "#6b4f3a", "#2f3a40"],
            min_length=1,
            max_length=5,
        ),
    ]
    shotType: Annotated[ShotType, doc("How much of the subject is in the frame.")]
    shotAngle: Annotated[ShotAngle, doc("From where the camera looks.")]
    cameraMotion: NotRequired[Annotated[CameraMotion, doc("What the camera does.", "static")]]
    confidence: NotRequired[Annotated[Share, doc("Of the cut that opens it, 0 to 1.")]]
    thumbnailUrl: NotRequired[Annotated[Url, doc("A still; signed, needs no key, expires.")]]
    objectTracks: NotRequired[
        Annotated[
            list[ObjectTrackJson],
            doc(
                "When things of known classes are in the picture, sampled every two "
                "seconds and twice a scene at least, by start."
            ),
        ]
    ]
    activePicture: NotRequired[
        Annotated[
            BoxJson,
            doc(
                "The picture between black bars (letterbox, pillarbox), found over the whole "
                "video; colours, light, shot and faces are measured inside it. The whole picture "
                "where there are none, and of scenes that were analysed before."
            ),
        ]
    ]
    onScreenText: NotRequired[
        Annotated[
            list[TextLineJson],
            doc(
                "Writing that is there at any time of it, each line once, by start; at most "
                "200 lines. None of scenes that were analysed before writing was read."
            ),
        ]
    ]


_OVERVIEW = (
    "The whole video as if it were one scene, with cuts or without. Absent from jobs that were "
    "analysed before there were overviews."
)


class SceneJson(OverviewJson):
    """A stretch between two cuts."""

    index: Annotated[Count, doc("From 0.")]


class Seen(TypedDict):
    """What is seen in a video."""

    scenes: Annotated[list[SceneJson], doc("Cover the whole video; empty when it has no cuts.")]
    overview: NotRequired[Annotated[OverviewJson, doc(_OVERVIEW)]]


class SceneList(Seen):
    """The scenes of a job."""

    jobId: Annotated[Uuid, doc("The job.")]


class ProcessedScene(SceneJson):
    """A scene with the field that older clients read."""

    endTs: Annotated[Seconds, doc("The same as `endTime`.")]


class TranscriptEntry(TypedDict):
    """A transcript segment as older clients read it."""

    StartTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    EndTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    Text: Annotated[str, doc("What is said.", "Good morning.")]
    Speaker: Annotated[str | None, doc("Who says it.", "Speaker 1")]


class ProcessedData(TypedDict):
    """The results of a job, each only once its stage is completed."""

    length: Annotated[float | None, doc("Of the media, in seconds; null until it is known.")]
    scenes: NotRequired[list[ProcessedScene]]
    overview: NotRequired[Annotated[OverviewJson, doc(_OVERVIEW)]]
    transcript: NotRequired[list[TranscriptEntry]]


class WordJson(TypedDict):
    """A word and when it is spoken."""

    text: Annotated[str, doc("As written.", "Good")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]


class TranscriptSegmentJson(TypedDict):
    """A sentence-like run of words by one speaker."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    text: Annotated[str, doc("Its words, joined.", "Good morning.")]
    speaker: Annotated[str | None, doc("A speaker's `id`.", "speaker_0")]
    confidence: Share
    words: list[WordJson]
    language: NotRequired[Annotated[str, doc("BCP 47, where it is not its track's.", "fr")]]


class SpeakerJson(TypedDict):
    """A voice of the media."""

    id: Annotated[str, doc("`speaker_0`, `speaker_1`…", "speaker_0")]
    label: Annotated[str, doc("A name to show.", "Speaker 1")]
    speakingSeconds: Annotated[Seconds, doc("How long they speak in all.")]


class TurnJson(TypedDict):
    """Somebody speaks, words or not."""

    speaker: Annotated[str, doc("A speaker's `id`.", "speaker_0")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]


class SoundJson(TypedDict):
    """Speech, singing or music."""

    kind: Annotated[SoundKind, doc("What.", "music")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share


class ChapterJson(TypedDict):
    """A part of the media on one subject."""

    index: Annotated[Count, doc("From 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next chapter's start.")]
    title: Annotated[str, doc("A phrase that was said and tells it from the others.", "Sourdough")]


class ChapterList(TypedDict):
    """The chapters of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    chapters: Annotated[
        list[ChapterJson], doc("Cover the whole media; empty when nothing is said.")
    ]


class SummarySentenceJson(TypedDict):
    """A sentence of a summary."""

    text: Annotated[str, doc("Written by a model.", "A baker shows how a sourdough is kept.")]
    startTime: Annotated[Seconds, doc("Where what it rests on begins to be said.")]
    endTime: Annotated[Seconds, doc("Where that ends.")]


class Summary(TypedDict):
    """What is said in a job's media, in few sentences."""

    jobId: Annotated[Uuid, doc("The job.")]
    sentences: Annotated[
        list[SummarySentenceJson], doc("To be read in order; empty without speech.")
    ]


class AudioTrackJson(TypedDict):
    """One audio track of a multi-track job."""

    trackIndex: Annotated[Count, doc("From 0.")]
    trackName: Annotated[str, doc("Its label, or the name of its file.", "Lavalier")]
    status: StageStatus
    transcript: Annotated[list[TranscriptEntry], doc("Empty until it is transcribed.")]
    speakers: Annotated[list[str], doc("In order of first appearance.")]
    language: NotRequired[Annotated[str, doc("BCP 47; left out where there is none.", "en")]]
    errorCode: NotRequired[StageCode]


class AudioTrackList(TypedDict):
    """The audio tracks of a job."""

    jobId: Annotated[Uuid, doc("The job.")]
    tracks: Annotated[list[AudioTrackJson], doc("By `trackIndex`.", min_length=2)]


class Transcript(TypedDict):
    """What is said, by whom and when."""

    jobId: Annotated[Uuid, doc("The job.")]
    language: Annotated[str | None, doc("BCP 47.", "en")]
    speakers: Annotated[list[SpeakerJson], doc("In order of first appearance.")]
    text: Annotated[str, doc("The segments, a line each.", "Good morning.")]
    segments: Annotated[list[TranscriptSegmentJson], doc("In order of time.")]
    turns: Annotated[
        list[TurnJson],
        doc("Who speaks when, by start; those of different speakers may overlap."),
    ]
    sounds: Annotated[
        list[SoundJson], doc("Speech, singing and music, by start; kinds may overlap.")
    ]
    trackIndex: NotRequired[Annotated[Count, doc("On multi-track jobs.")]]
    trackName: NotRequired[Annotated[str, doc("On multi-track jobs.")]]
    tracks: NotRequired[
        Annotated[list[AudioTrackJson], doc("On multi-track jobs, unless one track was asked for.")]
    ]
