"""Processor seconds that analyses are expected to take, from the media's shape alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.types import AudioTrack, VideoSource

_FRAME_SECONDS, _PIXEL_SECONDS = 0.0001, 1.3e-9
_CUTS_FRAME_SECONDS = 0.0002
_DESCRIBED_SECOND_SECONDS = 0.057
"""Decoding and measuring a frame, beside its pixels; searching it for cuts; describing the scenes
of a second of video. Of one core, by ``tests.benchmarks.vision_speed --shares`` on five minutes
of 640 x 360 (2.7, 1.4 and 15.3 s) and one of 1080p (4.1, 0.9 and 3.8 s)."""
_TRANSCRIBED_SECOND_SECONDS = 0.14
"""A second of speech with the packaged models, of one core, by ``tests.benchmarks.transcript``."""


@dataclass(frozen=True, slots=True)
class VisionWork:
    """Processor seconds of the parts of the vision stage with the packaged models."""

    reading: float
    cutting: float
    describing: float

    @property
    def whole(self) -> float:
        return self.reading + self.cutting + self.describing


def vision_work(video: VideoSource) -> VisionWork:
    """Reading follows frames and pixels, describing the length."""
    reading = cutting = describing = 0.0
    for part in video.all_parts:
        seconds = (part.end_ms - part.start_ms) / 1000
        frames = seconds * part.stream.frame_rate
        pixels = part.stream.width * part.stream.height
        reading += frames * (_FRAME_SECONDS + pixels * _PIXEL_SECONDS)
        cutting += frames * _CUTS_FRAME_SECONDS
        describing += seconds * _DESCRIBED_SECOND_SECONDS
    return VisionWork(reading, cutting, describing)


def transcript_work(tracks: Iterable[AudioTrack]) -> float:
    """Processor seconds of the packaged transcriber, if all of it is speech."""
    return sum(track.duration_seconds for track in tracks) * _TRANSCRIBED_SECOND_SECONDS
