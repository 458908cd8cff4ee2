"""Start times on a clock of the day (SMPTE ST 12-1, sample counts since midnight), and placement.

A timecode counts frames; the time it stands for follows from the true frame rate. At 29.97
frames a second the non-drop count is slow by 3.6 s an hour, and the drop-frame count leaves out
two numbers a minute, except every tenth. A day of timecode ends at its own midnight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

_TIMECODE = re.compile(r"^(\d{2}):(\d{2}):(\d{2})([:;.,])(\d{2,3})$")
_RATE = re.compile(r"[0-9]{1,9}(?:/[0-9]{1,9}|\.[0-9]{1,9})?")
"""Not all that Fraction reads: 1e999999999 would keep it busy for days."""
_DROP_MARKS = ";,."
_SECONDS_A_DAY = 86_400
_NOMINAL_RATES = (24, 25, 30, 48, 50, 60, 100, 120)
_NTSC_RATES = (24, 30, 48, 60, 120)
_DROPPED_A_MINUTE = {30: 2, 60: 4, 120: 8}
_TOLERATED_SHARE = 0.02
"""Measured rates of uneven streams are this far off the rate that their timecode counts in."""

_NTSC = Fraction(1000, 1001)


@dataclass(frozen=True, slots=True)
class WavLabels:
    """Labels of a WAV file; all absent for any other."""

    time_reference: int | None = None
    """Samples from midnight to the first one, at ``sample_rate_hz``."""
    sample_rate_hz: int | None = None
    timecode_rate: str | None = None
    """Frames a second of the timecode that ran beside, as ``30000/1001`` or ``25``."""
    drop_frame: bool = False
    channel_names: tuple[tuple[int, str], ...] = ()
    """(channel of the file from 0, name)."""


@dataclass(frozen=True, slots=True)
class DayTime:
    """A moment on a clock that starts again after ``day_seconds``."""

    seconds: Fraction
    day_seconds: Fraction = Fraction(_SECONDS_A_DAY)


def rate_near(frames_per_second: float, *, drop_frame: bool = False) -> Fraction | None:
    """Return the exact standard rate nearest to a measured one; None where none is near."""
    rates = [Fraction(rate) * _NTSC for rate in _NTSC_RATES]
    if not drop_frame:
        rates += [Fraction(rate) for rate in _NOMINAL_RATES]
    else:
        rates = [rate for rate in rates if round(rate) in _DROPPED_A_MINUTE]
    nearest = min(rates, key=lambda rate: abs(float(rate) - frames_per_second))
    off = abs(float(nearest) - frames_per_second)
    return nearest if off <= _TOLERATED_SHARE * float(nearest) else None


def parse_rate(text: str | None) -> Fraction | None:
    """``30000/1001``, ``25`` or ``29.97`` as an exact rate; None for anything else."""
    written = (text or "").strip()
    if not _RATE.fullmatch(written):
        return None
    try:
        value = Fraction(written)
    except ZeroDivisionError:
        return None
    return rate_near(float(value)) if value > 0 else None


def parse_timecode(text: str | None, frames_per_second: float) -> DayTime | None:
    """Return the moment that a timecode names, counted at about this rate; None if it names
    none."""
    match = _TIMECODE.match((text or "").strip())
    if match is None:
        return None
    hours, minutes, seconds, frames = (int(match[index]) for index in (1, 2, 3, 5))
    drop = match[4] in _DROP_MARKS
    rate = rate_near(frames_per_second, drop_frame=drop)
    if rate is None or hours > 23 or minutes > 59 or seconds > 59 or frames >= round(rate):
        return None
    whole = ((hours * 60 + minutes) * 60 + seconds) * round(rate) + frames
    count = whole - _dropped(hours * 60 + minutes, rate, drop)
    return DayTime(count / rate, _day(rate, drop))


def start_of(timecode: str | None, own_rate: str | None, picture_rate: float) -> DayTime | None:
    """Return the moment of a file's start timecode: a count at the rate of its own track, where it
    has one, else at the picture's."""
    own = parse_rate(own_rate)
    return parse_timecode(timecode, picture_rate if own is None else float(own))


def timecode_at(frame: int, rate: Fraction, *, drop_frame: bool) -> str:
    """Return the timecode of the frame so many after midnight: ``HH:MM:SS:FF``, or ``;FF`` with
    drops."""
    whole = round(rate)
    if drop_frame:
        skipped = _DROPPED_A_MINUTE[whole]
        minute_frames = 60 * whole - skipped
        tens, rest = divmod(frame, 10 * minute_frames + skipped)
        frame += 9 * skipped * tens + skipped * max(0, (rest - skipped) // minute_frames)
    seconds, frames = divmod(frame, whole)
    minutes, second = divmod(seconds, 60)
    mark = ";" if drop_frame else ":"
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}:{second:02d}{mark}{frames:02d}"


def _dropped(minutes: int, rate: Fraction, drop: bool) -> int:
    """Frame numbers left out in the first ``minutes`` of the day."""
    return _DROPPED_A_MINUTE[round(rate)] * (minutes - minutes // 10) if drop else 0


def _day(rate: Fraction, drop: bool) -> Fraction:
    return (_SECONDS_A_DAY * round(rate) - _dropped(24 * 60, rate, drop)) / rate


def from_labels(labels: WavLabels) -> DayTime | None:
    """Return the moment of a WAV file's first sample; None where it has none.

    A count of 0 without a timecode rate beside it is what programs write that
    know no time: it counts as none.
    """
    if labels.time_reference is None or not labels.sample_rate_hz:
        return None
    rate = parse_rate(labels.timecode_rate)
    if labels.time_reference == 0 and rate is None:
        return None
    day = Fraction(_SECONDS_A_DAY)
    if rate is not None:
        day = _day(rate, labels.drop_frame and round(rate) in _DROPPED_A_MINUTE)
    seconds = Fraction(labels.time_reference, labels.sample_rate_hz)
    return DayTime(seconds, day) if seconds < 2 * day else None


def seconds_after(moment: DayTime, start: DayTime) -> float:
    """Return how long after ``start`` it is, by the shorter way around midnight; negative: before.

    The day is that of ``start`` (the video): recorders that chase a timecode wrap with it.
    """
    day = start.day_seconds
    difference = (moment.seconds - start.seconds) % day
    return float(difference - day if difference > day / 2 else difference)


class SyncMode(StrEnum):
    """How an external audio file is placed on the video's timeline."""

    AUTO = "auto"
    TIMECODE = "timecode"
    OFFSET = "offset"


class CannotPlaceError(Exception):
    """The file cannot be placed as requested; the message is a sentence with the reason."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Start times by their clocks, if any, and lengths of the external audio and the video."""

    audio_start: DayTime | None
    audio_seconds: float
    video_start: DayTime | None
    video_seconds: float


def start_by_rule(mode: SyncMode, offset_ms: int | None, clocks: Clocks) -> float | None:
    """Return seconds from the video's start to the file's; None where only alignment can decide.

    ``auto`` accepts two timecodes only if the recordings overlap by them: one may never have been
    set. Raises CannotPlaceError in mode ``timecode``.
    """
    if mode is SyncMode.OFFSET:
        return (offset_ms or 0) / 1000
    audio, video = clocks.audio_start, clocks.video_start
    if audio is not None and video is not None:
        start = seconds_after(audio, video)
        if -clocks.audio_seconds < start < clocks.video_seconds:
            return start
        when = f"{start:.3f} s after the video"
        problem = f"By its timecode it starts {when} and does not overlap with it."
    elif audio is None and video is None:
        problem = "Neither it nor the video has a start timecode."
    else:
        problem = f"{'It' if audio is None else 'The video'} has no start timecode."
    if mode is SyncMode.AUTO:
        return None
    raise CannotPlaceError(problem)
