"""Processor seconds that analyses are expected to take, from the media's shape alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pipelines.types import AudioTrack, VideoSource

_FRAME_SECONDS, _PIXEL_SECONDS = 0.0001, 1.3e-9
_CUTS_FRAME_SECONDS = 0.0002
_DESCRIBED_SECOND_SECONDS = 0.057
"""Decoding and measuring a frame, beside its pixels; searching it for cuts; describing the scenes
of a second of video. Of one core, by ``tests.benchmarks.vision_speed --shares`` on five minutes
of 640 x 360 (2.7, 1.4 and 15.3 s) and one of 1080p (4.1, 0.9 and 3.8 s)."""
_POLICY_SHARE, _OBJECTS_SHARE, _TEXT_SHARE = 1 / 6, 1 / 3, 1 / 4
"""Of what is left after the cuts, and each time of what is left then."""
_TRANSCRIBED_SECOND_SECONDS = 0.14
"""A second of speech with the packaged models, of one core, by ``tests.benchmarks.transcript``."""


def vision_work(
    video: VideoSource, *, policy: bool = False, objects: bool = False
) -> tuple[float, ...]:
    """Of reading, cutting, checking, detecting, reading text and describing, with the packaged
    models.

    Reading follows frames and pixels, all after the cuts the length.
    """
    reading = cutting = rest = 0.0
    for part in video.all_parts:
        seconds = (part.end_ms - part.start_ms) / 1000
        frames = seconds * part.stream.frame_rate
        pixels = part.stream.width * part.stream.height
        reading += frames * (_FRAME_SECONDS + pixels * _PIXEL_SECONDS)
        cutting += frames * _CUTS_FRAME_SECONDS
        rest += seconds * _DESCRIBED_SECOND_SECONDS
    checking = rest * _POLICY_SHARE if policy else 0.0
    detecting = (rest - checking) * _OBJECTS_SHARE if objects else 0.0
    written = (rest - checking - detecting) * _TEXT_SHARE
    describing = rest - checking - detecting - written
    return reading, cutting, checking, detecting, written, describing


def transcript_work(tracks: Iterable[AudioTrack]) -> float:
    """Of transcribing with the packaged models, if all of it is speech."""
    return sum(track.duration_seconds for track in tracks) * _TRANSCRIBED_SECOND_SECONDS
