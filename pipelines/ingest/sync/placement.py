"""Where a separate sound file goes by its offset or its clock; what is left is for the ear."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipelines.ingest.sync.timecode import DayTime, seconds_after


class SyncMode(StrEnum):
    """How a separate audio file is lined up with the video."""

    AUTO = "auto"
    TIMECODE = "timecode"
    OFFSET = "offset"


class CannotPlaceError(Exception):
    """The file cannot be lined up as was asked; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What both sides say of themselves: start by their clocks, if any, and length."""

    sound_start: DayTime | None
    sound_seconds: float
    picture_start: DayTime | None
    picture_seconds: float


def start_by_rule(mode: SyncMode, offset_ms: int | None, clocks: Clocks) -> float | None:
    """Seconds from the video's start to the file's; None where only listening can tell.

    ``auto`` believes two timecodes only if they let the recordings overlap: one that
    was never set says nothing. Raises CannotPlaceError in mode ``timecode``.
    """
    if mode is SyncMode.OFFSET:
        return (offset_ms or 0) / 1000
    start = _by_clock(clocks)
    if mode is SyncMode.AUTO:
        return start if start is not None and _overlaps(start, clocks) else None
    if start is None:
        raise CannotPlaceError(_who_lacks(clocks))
    if not _overlaps(start, clocks):
        raise CannotPlaceError(
            f"By its timecode it starts {start:.3f} s after the video and does not overlap with it."
        )
    return start


def _by_clock(clocks: Clocks) -> float | None:
    if clocks.sound_start is None or clocks.picture_start is None:
        return None
    return seconds_after(clocks.sound_start, clocks.picture_start)


def _overlaps(start_seconds: float, clocks: Clocks) -> bool:
    return -clocks.sound_seconds < start_seconds < clocks.picture_seconds


def _who_lacks(clocks: Clocks) -> str:
    if clocks.sound_start is None and clocks.picture_start is None:
        return "Neither it nor the video has a start timecode."
    return f"{'It' if clocks.sound_start is None else 'The video'} has no start timecode."
