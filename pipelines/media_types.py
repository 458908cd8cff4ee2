"""What a file holds, how its pictures stand, and what there is to warn of.

Confined child processes import this, so it imports neither numpy nor PyAV.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeVar

from storage.types import StageName

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Sample = TypeVar("Sample", bound=np.generic)


class ChannelUse(StrEnum):
    """How the channels of a stream are transcribed: one by one, each a speaker, or mixed."""

    AUTO = "auto"
    """One by one where each is a voice, as call recorders write them."""
    SEPARATE = "separate"
    MIXED = "mixed"


class Problem(StrEnum):
    """A stable identifier with its sentence for people."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Self:
        made = str.__new__(cls, code)
        made._value_, made.sentence = code, sentence
        return made


class WarningCode(Problem):
    """What a client should know of although the work went on."""

    TIMELINE_REPAIRED = (
        "TIMELINE_REPAIRED",
        "The file's clock leaps, restarts or has strays; times are those of the content.",
    )
    TIMESTAMPS_NOT_IN_ORDER = (
        "TIMESTAMPS_NOT_IN_ORDER",
        "The picture's times go back where it should be cut; it was analysed in one piece.",
    )
    STREAM_IGNORED = ("STREAM_IGNORED", "A stream of the file was not analysed.")
    PROGRAM_CHOSEN = (
        "PROGRAM_CHOSEN",
        "The file holds several programs; picture and sound of one were analysed.",
    )
    PICTURE_STARTS_LATE = (
        "PICTURE_STARTS_LATE",
        "The picture begins after the sound: what comes before cannot be decoded, or is not there.",
    )
    PICTURE_DAMAGED = (
        "PICTURE_DAMAGED",
        "Pictures could not be decoded, or only with errors, within the times given.",
    )
    PICTURE_TRANSPARENT = (
        "PICTURE_TRANSPARENT",
        "The picture is transparent in places; it was analysed, and is shown, on white.",
    )
    MEDIA_TRUNCATED = ("MEDIA_TRUNCATED", "The file is not all there, or not all of it was read.")
    AUDIO_DAMAGED = ("AUDIO_DAMAGED", "Parts of the sound could not be decoded.")
    AUDIO_UNREADABLE = ("AUDIO_UNREADABLE", "Nothing of a sound stream could be decoded.")
    AUDIO_SILENT = (
        "AUDIO_SILENT",
        "There is no sound in a sound stream; its track is not charged.",
    )
    AUDIO_REPEATED = (
        "AUDIO_REPEATED",
        "A track sounds the same as one before it; it is not charged.",
    )
    AUDIO_QUIET = (
        "AUDIO_QUIET",
        "The sound is very low. It was raised, unless there is steady noise only.",
    )
    AUDIO_CHANNELS_CANCEL = (
        "AUDIO_CHANNELS_CANCEL",
        "The channels cancel each other when they are mixed; they were mixed in another way.",
    )
    AUDIO_CHANNEL_IGNORED = (
        "AUDIO_CHANNEL_IGNORED",
        "A channel of steady noise, which drowned the others, was left out of the mix.",
    )
    AUDIO_SYNC_UNCERTAIN = (
        "AUDIO_SYNC_UNCERTAIN",
        "Where external audio belongs was not certain; it was placed at the video's start.",
    )
    AUDIO_DRIFT = ("AUDIO_DRIFT", "The clock of external audio runs slower or faster.")
    AUDIO_OUTSIDE_VIDEO = ("AUDIO_OUTSIDE_VIDEO", "External audio does not touch the video.")
    EXTERNAL_AUDIO_FAILED = (
        "EXTERNAL_AUDIO_FAILED",
        "One of several external audio files could not be processed.",
    )
    LANGUAGE_UNCERTAIN = (
        "LANGUAGE_UNCERTAIN",
        "In which language something is said is uncertain; it is written in the most probable one.",
    )
    SPEECH_WITHOUT_WORDS = (
        "SPEECH_WITHOUT_WORDS",
        "Somebody seems to speak, but no words could be made out.",
    )
    SUMMARY_FAILED = ("SUMMARY_FAILED", "The transcript could not be summed up.")
    UPLOAD_LENGTH_MISSING = (
        "UPLOAD_LENGTH_MISSING",
        "Bytes of a resumable upload came, and nobody stated its length: it cannot be complete.",
    )
    UNKNOWN_FIELD = (
        "UNKNOWN_FIELD",
        "The request that created the job had a field that there is none of; it was ignored.",
    )


@dataclass(frozen=True, slots=True)
class PipelineWarning:
    """Something a client should know of although the stage completed.

    What it is about, where it is not the whole media: a track, a stretch of the timeline.
    """

    code: WarningCode
    message: str
    stage: StageName | None = None
    track_index: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None


_SAME_ASPECT = 1e-3
_REVERSED = {0: (1, 1), 90: (1, -1), 180: (-1, -1), 270: (-1, 1)}
"""Steps through rows and columns, sides swapped before where they are, by the clockwise turn."""


@dataclass(frozen=True, slots=True)
class Orientation:
    """What makes a stored picture upright: mirrored left to right or not, and then turned."""

    degrees: int = 0
    """Clockwise: 0, 90, 180 or 270."""
    mirrored: bool = False

    @property
    def swaps_sides(self) -> bool:
        """Whether the height of the stored picture is the width of the upright one."""
        return self.degrees % 180 != 0

    @property
    def filters(self) -> list[tuple[str, str | None]]:
        """FFmpeg's filters that make a picture upright, with their arguments."""
        turns = {0: (), 90: ("clock",), 180: ("clock", "clock"), 270: ("cclock",)}[self.degrees]
        mirror: list[tuple[str, str | None]] = [("hflip", None)] if self.mirrored else []
        return mirror + [("transpose", turn) for turn in turns]

    def upright(self, picture: npt.NDArray[Sample]) -> npt.NDArray[Sample]:
        """Return a stored picture (rows, columns, ...) as it is to be shown; a view of it."""
        if self.mirrored:
            picture = picture[:, ::-1]
        if self.swaps_sides:
            picture = picture.swapaxes(0, 1)
        rows, columns = _REVERSED[self.degrees]
        return picture[::rows, ::columns]

    def turned(self, across: float, down: float) -> tuple[float, float]:
        """Return a movement in the stored picture as it is in the upright one."""
        across = -across if self.mirrored else across
        for _ in range(self.degrees // 90):
            across, down = -down, across
        return across, down


@dataclass(frozen=True, slots=True)
class PixelShape:
    """Width over height of the stored pixels of a stream, as players take them."""

    sample_aspect: float = 1.0
    decoder_aspect: float = 1.0
    """What the first frame itself states, 1 where it states nothing."""

    def picture_aspect(self, width: int, height: int, decoder_aspect: float) -> float:
        """Width over height with square pixels, before it is turned, of a stored frame.

        What the container states of pixels holds for frames that state the same as the first.
        """
        is_as_first = abs(decoder_aspect - self.decoder_aspect) < _SAME_ASPECT
        return width * (self.sample_aspect if is_as_first else decoder_aspect) / height


@dataclass(frozen=True, slots=True)
class VideoStream:
    """The picture of a file. Width and height as displayed: upright, square pixels.

    They are of its first frame. Size and shape may change from one frame to another.
    """

    index: int
    codec: str
    width: int
    height: int
    orientation: Orientation
    sample_aspect: float
    """Pixel width over pixel height as stored."""
    frame_rate: float
    """Mean frames a second (measured from packets); 0 where there is one frame only."""
    frame_count: int
    """Packets counted, which is frames for every codec here but for damaged files."""
    interlaced: bool = False
    hdr: bool = False
    keyframe_count: int = 0
    end_ms: int = 0
    """End of the last frame, from the media's start."""
    start_ms: int = 0
    """Start of the first frame, from the media's start."""
    exact_rate: str | None = None
    """``frame_rate`` as a fraction, ``30000/1001``; None where the container names none near it."""
    pixel_format: str | None = None
    """FFmpeg's name of how decoded pixels lie in memory, ``yuv420p``."""
    decoder_aspect: float = 1.0
    """``sample_aspect`` as the first frame itself states it, 1 where it does not."""
    transparent: bool = False
    """Whether the first frame is, anywhere."""

    @property
    def pixels(self) -> PixelShape:
        """The shape of its pixels."""
        return PixelShape(self.sample_aspect, self.decoder_aspect)


@dataclass(frozen=True, slots=True)
class AudioStream:
    """One audio stream of a file."""

    index: int
    codec: str
    sample_rate_hz: int
    channels: int
    language: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """How the times in a file become those of its content; see ``pipelines.media.timeline``."""

    pieces: tuple[tuple[int, int, int, bool], ...] = ()
    """The values of ClockPieces."""
    joined_at: tuple[int, ...] = ()
    """Where further files begin in it, in bytes."""
    begins_at: int = 0
    """Where the first begins; what is before it is no media."""

    @property
    def repairs(self) -> bool:
        """Whether the file's own times are not those of its content."""
        return bool(self.pieces or self.joined_at or self.begins_at)

    @property
    def layout(self) -> tuple[tuple[tuple[int, int, int, bool], ...], tuple[int, ...], int]:
        """What ``pipelines.media.files.Source`` takes beside the path."""
        return self.pieces, self.joined_at, self.begins_at


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """What probing found out, from the packets themselves, not from header claims."""

    container: str
    size_bytes: int
    duration_seconds: float
    video: VideoStream | None
    audio: tuple[AudioStream, ...]
    timecode: str | None = None
    """Start timecode (``HH:MM:SS:FF`` or with ``;``) where the container has one."""
    timecode_rate: str | None = None
    """Frames a second that its own track counts, as ``30000/1001``; None: those of the picture."""
    origin_ms: int = 0
    """The media's start in the file's own timestamps; what ``*_ms`` count from."""
    warnings: tuple[PipelineWarning, ...] = ()
    timeline: Timeline = Timeline()
    """Where it repairs anything, only segments cut out of the file have times that count."""
