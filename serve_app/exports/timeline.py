"""Scenes on a timeline of frames: what editing programs are given.

Results have times in milliseconds. A frame of a constant rate is found again from its rounded time
exactly, as long as a frame lasts longer than a millisecond. Sources keep the rate and the start
timecode of the file; a rate that no editing program has is put on one that has all its frames
(12.5 on 25), and a variable one on the nearest, by time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

from pipelines.ingest.timecode import parse_timecode, rate_near, timecode_at

Values = Mapping[str, Any]

_NTSC = Fraction(1000, 1001)
RATES = tuple(
    sorted([*map(Fraction, (24, 25, 30, 48, 50, 60)), *(n * _NTSC for n in (24, 30, 60))])
)
"""Frames a second that editing programs count in."""
_DROP_RATES = (30 * _NTSC, 60 * _NTSC)
_DROP_MARK = re.compile("[;.,]")
_VARIABLE_RATE = Fraction(30)
_SAME_RATE = Fraction(1, 10_000)
_SHORTEST_GAP_MS = 500
"""Sound that outlasts the pictures of a clip by less leaves no hole between it and the next."""
_REEL_LENGTH = 8
_SEVERAL_START = "01:00:00"
"""Where a timeline of several files begins, as editors do."""


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of the media with a name: a scene or a chapter."""

    start_ms: int
    end_ms: int
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A file of the timeline. ``start_frame`` is its start timecode in frames after midnight."""

    name: str
    reel: str
    rate: Fraction
    start_frame: int
    frames: int
    drop_frame: bool
    width: int
    height: int
    start_ms: int
    """Of its first frame, on the media's timeline."""
    end_ms: int
    """Where the next file begins there."""

    def frame_at(self, time_ms: int) -> int:
        """The number of the frame that begins nearest to a time, within the file."""
        frame = round((time_ms - self.start_ms) * self.rate / 1000)
        return min(max(0, frame), self.frames)

    def timecode(self, frame: int) -> str:
        return timecode_at(self.start_frame + frame, self.rate, drop_frame=self.drop_frame)


@dataclass(frozen=True, slots=True)
class Shot:
    """``frames`` frames of a source from the ``first``, which counts from 0: a section's."""

    source: ExportSource
    section: Section
    first: int
    frames: int

    @property
    def title(self) -> str:
        return ": ".join(filter(None, (self.section.name, self.section.note)))


@dataclass(frozen=True, slots=True)
class Event:
    """A shot, or nothing, at a place of the timeline; ``at`` and ``length`` in its frames."""

    shot: Shot | None
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class FrameTimeline:
    """Events laid end to end; the first source's rate is that of the timeline."""

    name: str
    sources: tuple[ExportSource, ...]
    events: tuple[Event, ...]
    start_frame: int
    has_audio: bool

    @property
    def rate(self) -> Fraction:
        return self.sources[0].rate

    @property
    def drop_frame(self) -> bool:
        return self.sources[0].drop_frame

    @property
    def frames(self) -> int:
        return self.events[-1].at + self.events[-1].length

    def timecode(self, frame: int) -> str:
        return timecode_at(self.start_frame + frame, self.rate, drop_frame=self.drop_frame)


def find_sources(file_name: str, ingested: Values | None) -> tuple[ExportSource, ...]:
    """The files of a job's picture by its ``IngestResult`` as stored, which an earlier version may
    have written; empty where nothing is known of a picture and its rate."""
    video = (ingested or {}).get("video")
    media = (ingested or {}).get("media") or {}
    clips = (ingested or {}).get("clips") or []
    if not clips:
        stream = video["stream"] if video else media.get("video")
        if not stream or not stream["frame_rate"]:
            return ()
        end_ms = round(media["duration_seconds"] * 1000)
        return (_source(file_name, stream, media.get("timecode"), 0, end_ms),)
    parts = (video or {}).get("parts") or []
    names = {clip["start_ms"]: clip for clip in clips}
    found = [
        _source(
            names[part["start_ms"]]["name"],
            part["stream"],
            names[part["start_ms"]].get("timecode"),
            part["start_ms"],
            part["end_ms"],
        )
        for part in parts
        if part["stream"]["frame_rate"]
    ]
    return tuple(_with_own_reels(found))


def _source(
    name: str, stream: Values, timecode: str | None, begin_ms: int, end_ms: int
) -> ExportSource:
    rate, timecode = timeline_rate(stream), timecode or ""
    # Only 29.97 and 59.94 have numbers to drop; other rates marked so count every frame.
    drops = rate in _DROP_RATES and bool(_DROP_MARK.search(timecode))
    start_frame = _frame_of(timecode if drops else _DROP_MARK.sub(":", timecode), rate)
    first_ms = stream.get("start_ms", 0)
    last_ms = stream.get("end_ms") or end_ms - begin_ms
    letters = re.sub(r"[^A-Z0-9_]", "", PurePosixPath(name).stem.upper())
    return ExportSource(
        name=name,
        reel=letters[:_REEL_LENGTH] or "AX",
        rate=rate,
        start_frame=start_frame,
        frames=max(1, round((last_ms - first_ms) * rate / 1000)),
        drop_frame=drops,
        width=stream["width"],
        height=stream["height"],
        start_ms=begin_ms + first_ms,
        end_ms=end_ms,
    )


def _frame_of(timecode: str, rate: Fraction) -> int:
    """Frames after midnight; 0 for what is no timecode of that rate."""
    start = parse_timecode(timecode, float(rate))
    return 0 if start is None else round(start.seconds * rate)


def timeline_rate(stream: Values) -> Fraction:
    """One of RATES for a stream as ingest describes it."""
    named = stream.get("exact_rate")
    rate = Fraction(named) if named else Fraction(stream["frame_rate"]).limit_denominator(100_000)
    for same in RATES:
        if abs(same - rate) <= same * _SAME_RATE:
            return same
    near = rate_near(float(rate))
    if near in RATES:
        return near
    for factor in (2, 3, 4, 5, 6, 10, Fraction(1, 2), Fraction(1, 4)):
        for whole in RATES:
            if abs(whole - rate * factor) <= whole * _SAME_RATE:
                return whole
    return _VARIABLE_RATE


def _with_own_reels(sources: Sequence[ExportSource]) -> Iterator[ExportSource]:
    """The sources; one whose reel an earlier one has gets a number."""
    taken: set[str] = set()
    for source in sources:
        reel, number = source.reel, 1
        while reel in taken:
            number += 1
            reel = f"{source.reel[: _REEL_LENGTH - len(str(number))]}{number}"
        taken.add(reel)
        yield replace(source, reel=reel)


def frame_timeline(
    file_name: str, sources: Sequence[ExportSource], sections: Sequence[Section], *, has_audio: bool
) -> FrameTimeline:
    """The sections, which follow each other, as events on one or more sources."""
    first, start = sources[0], sources[0].start_frame
    if len(sources) > 1:
        start = _frame_of(f"{_SEVERAL_START}{';' if first.drop_frame else ':'}00", first.rate)
    events: list[Event] = []
    seconds = Fraction(0)
    for piece in _pieces(sources, sections):
        at = round(seconds * first.rate)
        seconds += piece if isinstance(piece, Fraction) else piece.frames / piece.source.rate
        length = round(seconds * first.rate) - at
        if length:
            events.append(Event(None if isinstance(piece, Fraction) else piece, at, length))
    name = PurePosixPath(file_name).stem or "timeline"
    return FrameTimeline(name, tuple(sources), tuple(events), start, has_audio)


def _pieces(
    sources: Sequence[ExportSource], sections: Sequence[Section]
) -> Iterator[Shot | Fraction]:
    """The sections' shots of every source from its first frame to its last; seconds of nothing."""
    until_ms = 0
    for source in sources:
        gap_ms = source.start_ms - until_ms
        if len(sources) > 1 and gap_ms >= _SHORTEST_GAP_MS:
            yield Fraction(gap_ms, 1000)
        frame = 0
        # Those of a timeline's many clips are found by bisection: each looks at its own only.
        after = bisect_left(sections, source.end_ms, key=lambda each: each.start_ms)
        begun = bisect_right(sections, source.start_ms, key=lambda each: each.end_ms)
        for section in sections[min(begun, after - 1) : after]:
            is_last = section is sections[after - 1]
            end = source.frames if is_last else source.frame_at(section.end_ms)
            if end > frame:
                yield Shot(source, section, frame, end - frame)
                frame = end
        until_ms = source.start_ms + round(source.frames * 1000 / source.rate)
