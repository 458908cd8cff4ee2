"""What goes into the pipelines and what comes out. Frozen values with units; no Ray.

Time: every ``*_ms`` is an integer number of milliseconds of presentation time from the media's own
start (the smallest start of its chosen streams), rounded half away from zero as Matroska does, so
that a time is the same whether it was read from the source or from a segment cut out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from models.contracts import Box, CameraMotion, ShotAngle, ShotType, SoundKind

# Part of these types, and light enough for confined child processes.
from pipelines.media_types import AudioStream as AudioStream  # noqa: PLC0414
from pipelines.media_types import ChannelUse as ChannelUse  # noqa: PLC0414
from pipelines.media_types import MediaInfo as MediaInfo  # noqa: PLC0414
from pipelines.media_types import PipelineWarning as PipelineWarning  # noqa: PLC0414
from pipelines.media_types import Timeline as Timeline  # noqa: PLC0414
from pipelines.media_types import VideoStream as VideoStream  # noqa: PLC0414
from pipelines.media_types import WarningCode as WarningCode  # noqa: PLC0414
from storage.types import SkipReason, StageName, StageStatus


class StageCode(StrEnum):
    """Why a stage failed (error codes of the API)."""

    VALIDATION_FAILED = "VALIDATION_FAILED"
    INSUFFICIENT_CREDITS = "INSUFFICIENT_CREDITS"
    FETCH_FAILED = "FETCH_FAILED"
    INGEST_FAILED = "INGEST_FAILED"
    EXTERNAL_AUDIO_FAILED = "EXTERNAL_AUDIO_FAILED"
    VISION_FAILED = "VISION_FAILED"
    CONTENT_BLOCKED = "CONTENT_BLOCKED"
    TRANSCRIPT_FAILED = "TRANSCRIPT_FAILED"
    PROCESSING_FAILED = "PROCESSING_FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class StageError(Exception):
    """A stage failed; ``code`` is what the client sees, the message is the reason."""

    def __init__(self, code: StageCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class StageStoppedError(Exception):
    """The work was stopped by its caller; nothing is published."""


class CutsBy(StrEnum):
    """Who finds the cuts: measures, and a network in doubt or always."""

    JUDGED = "judged"
    THOROUGH = "thorough"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Segment:
    """An interval of the video that one task decodes.

    ``key`` is the object to open: the source itself, or a file cut out of it by stream copy that
    carries the source's timestamps. Frames with ``start_ms <= time < end_ms`` belong to the
    segment; the file may hold more on both sides (references that the first and last frames need).
    """

    index: int
    key: str
    start_ms: int
    end_ms: int
    part: int = 0
    """Which part of the video it belongs to (``VideoSource.parts``)."""


@dataclass(frozen=True, slots=True)
class VideoPart:
    """The interval of a video that comes from one stream; all times on the video's timeline."""

    stream: VideoStream
    origin_ms: int
    """Time of the video's start in the part's own timestamps; subtract it from theirs."""
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class VideoSource:
    """The video as the vision pipeline sees it: one or more segments, in order of time.

    They come from one stream, or, where ``parts`` is not empty, from several laid
    end to end; ``stream`` and ``origin_ms`` are then those of the first part.
    """

    stream: VideoStream
    duration_ms: int
    origin_ms: int
    """Time of the media's start in the files' own timestamps; subtract it from theirs."""
    segments: tuple[Segment, ...]
    parts: tuple[VideoPart, ...] = ()

    def part_of(self, segment: Segment) -> VideoPart:
        """Return the stream that ``segment`` comes from, and how its times are to be read."""
        return self.all_parts[segment.part]

    @property
    def all_parts(self) -> tuple[VideoPart, ...]:
        """``parts``, or the one part that a single stream is."""
        return self.parts or (VideoPart(self.stream, self.origin_ms, 0, self.duration_ms),)


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """A track to transcribe: 16 kHz mono FLAC in the object store.

    Its first sample is ``offset_seconds`` after the start of the video
    (negative: before). ``duration_seconds`` is the length of the samples.
    """

    index: int
    name: str
    key: str
    duration_seconds: float
    offset_seconds: float = 0.0
    channels: tuple[str, ...] = ()
    """Its channels where these are voices apart, in files of their own, as long as it."""
    are_channels_asked: bool = False
    """Whether the request states that they are; else it follows from the sound."""


@dataclass(frozen=True, slots=True)
class ClipSpan:
    """Where a clip lies on the timeline of several."""

    index: int
    name: str
    start_ms: int
    duration_ms: int
    timecode: str | None = None
    """The clip's own start timecode, as in ``MediaInfo``."""
    timeline: Timeline = Timeline()  # noqa: RUF009 - frozen
    """Of its file."""
    timecode_rate: str | None = None


@dataclass(frozen=True, slots=True)
class IngestResult:
    """All that the analysis stages need."""

    media: MediaInfo
    """Of the whole; ``audio`` lists what becomes tracks, wherever they come from."""
    video: VideoSource | None
    tracks: tuple[AudioTrack, ...]
    warnings: tuple[PipelineWarning, ...] = ()
    failed_tracks: tuple[TrackOutcome, ...] = ()
    """There is nothing to transcribe of; their indices and those of ``tracks`` count together."""
    clips: tuple[ClipSpan, ...] = ()
    """Of a timeline of several clips."""


@dataclass(frozen=True, slots=True)
class SeenBox:
    """Where an object is in a frame that the detector looked at."""

    time_ms: int
    box: Box


@dataclass(frozen=True, slots=True)
class ObjectTrack:
    """Objects of a class that a detector finds in an interval of a scene; confidence 0 to 1."""

    label: str
    start_ms: int
    end_ms: int
    confidence: float
    boxes: tuple[SeenBox, ...] | None = None
    """By time, then from the left; None in an overview, and in results of before there were any."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a scene's still probably shows: a tag of the operator's bank, its probability."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class ScreenText:
    """A line of writing on the screen, and when it is there; None in results of before 0.2.0."""

    text: str
    confidence: float
    box: Box
    """Where it was read; lines that roll are elsewhere before and after."""
    start_ms: int | None = None
    end_ms: int | None = None
    rolls: bool = False
    """Whether it moved through the picture when it was read."""


@dataclass(frozen=True, slots=True)
class StillFrame:
    """A frame that stands for a scene; ``key`` is the object of its picture."""

    time_ms: int
    key: str
    explicit: float | None = None
    """Probability that it is sexually explicit; None where no model of that runs."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene; scenes are contiguous and cover the whole video."""

    index: int
    start_ms: int
    end_ms: int
    description: str
    objects: tuple[str, ...]
    color_palette: tuple[str, ...]
    """1 to 5 ``#rrggbb``, most of the picture first."""
    shot_type: ShotType
    shot_angle: ShotAngle
    camera_motion: CameraMotion
    confidence: float
    """Of the cut that opens the scene, 0 to 1; 1 for the first."""
    thumbnail_key: str
    """The first still's."""
    object_tracks: tuple[ObjectTrack, ...] = ()
    """By start and label; none where the profile has no detector of objects."""
    active_picture: Box = Box(0.0, 0.0, 1.0, 1.0)  # noqa: RUF009 - frozen
    """The picture between black bars, as displayed; all of it where there are none."""
    on_screen_text: tuple[ScreenText, ...] = ()
    """Writing that is there at any time of it, by start, then top to bottom."""
    tags: tuple[Tag, ...] = ()
    """The most probable first; none where the model of pictures is not installed."""
    stills: tuple[StillFrame, ...] = ()
    """What shows most of it; of a long scene a second one, from elsewhere in it. None in results of
    before there were any."""

    def at_keys(self, keys: Mapping[str, str]) -> Scene:
        """Return the scene with its stills' objects elsewhere."""
        stills = tuple(replace(still, key=keys[still.key]) for still in self.stills)
        return replace(self, thumbnail_key=keys[self.thumbnail_key], stills=stills)

    def still_names(self, name: str) -> dict[str, str]:
        """Return each still's key and a file's name for it, made of the scene's."""
        keys = dict.fromkeys((self.thumbnail_key, *(still.key for still in self.stills)))
        return {key: f"{name}-{n}.jpg" if n > 1 else f"{name}.jpg" for n, key in enumerate(keys, 1)}


@dataclass(frozen=True, slots=True)
class Appearance:
    """Somebody's face in a still of a scene; of none where the video has no cuts."""

    time_ms: int
    box: Box
    scene_index: int | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whose face is seen in two stills at least."""

    id: str
    appearances: tuple[Appearance, ...]
    """By time."""
    still_key: str
    """A picture of the face."""


@dataclass(frozen=True, slots=True)
class VisionResult:
    """Scenes of the whole video; empty when it has no cuts."""

    scenes: tuple[Scene, ...]
    overview: Scene
    """The whole video as if it were one scene, whether it has cuts or none."""
    people: tuple[Person, ...] | None = None
    """By first appearance; None where they were not looked for."""
    warnings: tuple[PipelineWarning, ...] = ()
    fingerprints: bytes | None = field(default=None, compare=False)
    """Of its shots, as ``pipelines.vision.fingerprints`` writes them."""
    shards_computed: int = field(default=0, compare=False)
    shards_reused: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TranscriptWord:
    """A word on the video's timeline."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float
    speaker: str | None
    language: str | None = None
    """BCP 47 where it is not its track's."""


@dataclass(frozen=True, slots=True)
class TranscriptSegment:
    """A sentence-like run of words by one speaker; its text is the words joined by spaces."""

    index: int
    start_ms: int
    end_ms: int
    text: str
    speaker: str | None
    confidence: float
    words: tuple[TranscriptWord, ...]
    language: str | None = None
    """BCP 47 where it is not its track's; all its words are in it."""
    estimated_words: tuple[int, ...] = ()
    """Words of a correction whose times are spread over the text, not measured; from 0."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Somebody who speaks on a track; ids in order of first appearance."""

    id: str
    label: str
    speaking_seconds: float


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """Somebody speaks, words or not; turns of different speakers may overlap."""

    speaker: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class TimedSound:
    """Speech, singing or music; sounds of different kinds may overlap."""

    kind: SoundKind
    start_ms: int
    end_ms: int
    confidence: float
    """Mean probability, 0 to 1."""


@dataclass(frozen=True, slots=True)
class SpeakerVoice:
    """What a speaker of one track sounds like."""

    speaker: str
    vector: tuple[float, ...]
    """Of unit length, of the task embed_voice: near to those of the same voice elsewhere."""


@dataclass(frozen=True, slots=True)
class TranscriptResult:
    """The transcript of one track."""

    language: str | None
    speakers: tuple[Speaker, ...]
    segments: tuple[TranscriptSegment, ...]
    shards_computed: int = field(default=0, compare=False)
    shards_reused: int = field(default=0, compare=False)
    language_probability: float | None = None
    """Mean over the words of that language; None where no backend estimates it."""
    warnings: tuple[PipelineWarning, ...] = ()
    turns: tuple[SpeakerTurn, ...] = ()
    """By start."""
    sounds: tuple[TimedSound, ...] = ()
    """By start."""
    voices: tuple[SpeakerVoice, ...] = ()
    """Of speakers with turns; never stored with the transcript."""
    calibrated: bool = False
    """Whether confidences are shares of what is right, measured for the model; else they are its
    own probabilities."""
    sound_print: bytes | None = field(default=None, compare=False)
    """As ``pipelines.media.audio`` writes it; never stored with the transcript."""


@dataclass(frozen=True, slots=True)
class TimedSentence:
    """A spoken sentence, or one of a summary and the time of what it rests on."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class TrackOutcome:
    """An audio track's transcript, or the code of its failure."""

    index: int
    name: str
    transcript: TranscriptResult | None = None
    code: StageCode | None = None


def transcript_warnings(tracks: Iterable[TrackOutcome]) -> list[PipelineWarning]:
    """Return those of all tracks that were transcribed, in order."""
    found = (track.transcript for track in tracks)
    return [each for result in found if result is not None for each in result.warnings]


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended: ``reason`` why it was skipped, ``code`` and ``message`` why it failed."""

    stage: StageName
    status: StageStatus
    reason: SkipReason | None = None
    code: StageCode | None = None
    message: str | None = None
