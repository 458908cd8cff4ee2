"""Where a file's packets belong on the timeline of its content, whatever clock they carry.

Clocks are set anew (a recorder that reconnects, files joined with ``cat``), leap by hours, wrap, or
have strays. ``runs`` reads each stream as stretches without a leap. ``lay_out`` finds how far to
move each, so that all lie end to end in the order of the file, with picture and sound together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from pipelines.media.runs import (
    FARTHEST_APART_US,
    LONGEST_PAUSE_US,
    LONGEST_STEP_US,
    LONGEST_STILL_US,
    MOST_REPAIRED_SHARE,
    MOST_STRAYS_TOGETHER,
    Lane,
    Run,
)
from pipelines.media.timestamps import ClockPiece


class NoClockError(Exception):
    """Most times are far off each other; no timeline can be made of them."""


@dataclass(slots=True, eq=False)
class _Stretch:
    """Runs of one clock, with the strays between them and when those were due by it."""

    lane: Lane
    runs: list[Run]
    strays: list[tuple[Run, int]] = field(default_factory=list)
    before: Run | None = None
    """Of the same stream; None where this is its beginning."""
    is_placed: bool = False

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def begins_file(self) -> bool:
        """Whether it is the stream's first in another of several joined files."""
        return self.run.file > (0 if self.before is None else self.before.file)

    @property
    def jump_us(self) -> int:
        """From the stream's packet before, by the clock of the file."""
        return 0 if self.before is None else self.run.start_us - self.before.last_us

    def place(self, offset_us: int) -> None:
        self.is_placed = True
        for run in self.runs:
            run.offset_us = offset_us
        for run, due_us in self.strays:
            run.offset_us = offset_us + due_us - run.start_us


@dataclass(frozen=True, slots=True)
class Layout:
    """What ``lay_out`` found: the map, and what it repairs."""

    pieces: tuple[ClockPiece, ...]
    leaps: int
    strays: int
    span: tuple[Fraction, Fraction] | None
    """From the first repair to the last, on the timeline."""


def lay_out(lanes: Sequence[Lane]) -> Layout:
    """Find where each run belongs; sets ``offset_us`` of the runs.

    Raises NoClockError where nearly all times are far off each other.
    """
    for lane in lanes:
        lane.settle()
    lanes = [lane for lane in lanes if lane.runs]
    stretches = {lane.stream: list(_stretches(lane, lanes)) for lane in lanes}
    everything = [stretch for own in stretches.values() for stretch in own]
    leaps = 0
    for stretch in sorted(everything, key=lambda stretch: stretch.run.order):
        if not stretch.is_placed:
            leaps += _place(stretch, lanes, stretches.values())
    strays = sum(run.packets for stretch in everything for run, _ in stretch.strays)
    strays += sum(len(lane.strays) for lane in lanes)
    packets = sum(lane.packets for lane in lanes)
    if leaps + strays > max(MOST_STRAYS_TOGETHER, MOST_REPAIRED_SHARE * packets):
        raise NoClockError
    moved = [(lane, run) for lane in lanes for run in _moved(lane.runs)]
    pieces = [ClockPiece(lane.stream, run.packet, run.offset_ms) for lane, run in moved]
    pieces += itertools.chain(*(lane.strays for lane in lanes))
    times = [run.seconds(run.first) for _, run in moved]
    span = (min(times), max(times)) if times else None
    return Layout(tuple(sorted(pieces)), leaps, strays, span)


def _moved(runs: Iterable[Run]) -> Iterator[Run]:
    """Those from which on the offset is another."""
    offset_ms = 0
    for run in runs:
        if run.offset_ms != offset_ms:
            offset_ms = run.offset_ms
            yield run


def _stretches(lane: Lane, lanes: Iterable[Lane]) -> Iterator[_Stretch]:
    """The lane's runs, joined where only strays part them."""
    runs, at = lane.runs, 0
    stretch: _Stretch | None = None
    if _begins_with_strays(lane, lanes):
        due_us = runs[1].start_us - runs[1].step_us * runs[0].packets
        runs[0].is_stray = True
        stretch, at = _Stretch(lane, [runs[1]], [(runs[0], due_us)]), 2
    while at < len(runs):
        last = stretch.runs[-1] if stretch else None
        back_at = None if last is None else _back_at(runs, at, last)
        if back_at is None and last is not None and _pauses(last, runs[at]):
            back_at = at
        if stretch is None or last is None or back_at is None:
            if stretch is not None:
                yield stretch
            stretch, at = _Stretch(lane, [runs[at]], before=last), at + 1
            continue
        due_us = last.due_us
        for run in runs[at:back_at]:
            run.is_stray = True
            stretch.strays.append((run, due_us))
            due_us += run.packets * last.step_us
        stretch.runs.append(runs[back_at])
        at = back_at + 1
    if stretch is not None:
        yield stretch


def _begins_with_strays(lane: Lane, lanes: Iterable[Lane]) -> bool:
    if len(lane.runs) < 2:
        return False
    one, other = lane.runs[:2]
    if one.packets > MOST_STRAYS_TOGETHER or other.packets <= MOST_STRAYS_TOGETHER:
        return False
    starts = [each.runs[0].start_us for each in lanes if each is not lane]
    if not starts:
        return not 0 < other.start_us - one.start_us <= LONGEST_STILL_US
    return all(abs(one.start_us - start) > LONGEST_PAUSE_US for start in starts)


def _pauses(before: Run, run: Run) -> bool:
    return 0 <= run.start_us - before.last_us <= LONGEST_PAUSE_US and run.file == before.file


def _back_at(runs: Sequence[Run], at: int, last: Run) -> int | None:
    """Where runs go on by the clock of ``last``, if only strays lie between."""
    strays = 0
    for index in range(at + 1, min(at + 1 + MOST_STRAYS_TOGETHER, len(runs))):
        strays += runs[index - 1].packets
        if strays > MOST_STRAYS_TOGETHER or runs[index].file != last.file:
            return None
        lost_us = strays * last.step_us
        latest_us = last.due_us + lost_us + max(LONGEST_STEP_US, lost_us)
        if last.last_us <= runs[index].start_us <= latest_us:
            return index
    return None


def _place(
    stretch: _Stretch, lanes: Sequence[Lane], stretches: Iterable[Sequence[_Stretch]]
) -> int:
    """Place a stretch and those that leap along with it; how often a clock was set anew, 0 or 1."""
    run, before = stretch.run, stretch.before
    places = (run.beside.get(lane.stream) for lane in lanes)
    beside = [
        (other, other.offset_us + at_us)
        for other, at_us in filter(None, places)
        if not other.is_stray
    ]
    kept_us = None if stretch.begins_file else _kept_offset(stretch, beside, lanes)
    if kept_us is not None:
        stretch.place(kept_us)
        return 0
    together = [stretch, *_leaping_along(stretch, stretches)]
    offsets_us = [each.run.follows_us(each.before) for each in together if each.before]
    if not offsets_us:
        # The stream begins here: with another file, or elsewhere than all that lies beside it.
        ends = [
            other.end_us + other.offset_us if stretch.begins_file else at_us
            for other, at_us in beside
        ]
        offsets_us = [max(ends, default=0) - run.first_us]
    for each in together:
        each.place(max(offsets_us))
    return int(before is None or abs(run.offset_us - before.offset_us) > 1_000)


def _kept_offset(
    stretch: _Stretch, beside: Sequence[tuple[Run, int]], lanes: Iterable[Lane]
) -> int | None:
    """The offset of a clock that still holds; None where it was set anew."""
    run, before = stretch.run, stretch.before
    reached_us = max((at_us for _, at_us in beside), default=0)
    latest_first = sorted(beside, key=lambda place: -place[0].order)
    clocks = {other.offset_us: None for other, _ in latest_first}
    others = [lane for lane in lanes if lane is not stretch.lane]
    if before is None:
        if not beside:
            return 0
        apart_us = LONGEST_PAUSE_US
        clocks.setdefault(0)
    else:
        by_own_us = run.start_us + before.offset_us
        ended = all(lane.last_order < run.order for lane in others)
        stands_still = ended and stretch.jump_us <= LONGEST_STILL_US
        is_near = any(abs(at_us - by_own_us) <= FARTHEST_APART_US for _, at_us in beside)
        if stretch.jump_us > 0 and (stands_still or is_near):
            return before.offset_us
        apart_us = FARTHEST_APART_US
        clocks.pop(before.offset_us, None)
    for offset_us in clocks:
        if abs(run.start_us + offset_us - reached_us) <= apart_us:
            return offset_us
    # Some files hold one stream after the other.
    starts = [lane.runs[0].start_us for lane in others if before is None]
    return 0 if any(abs(run.start_us - at) <= LONGEST_PAUSE_US for at in starts) else None


def _leaping_along(
    stretch: _Stretch, stretches: Iterable[Sequence[_Stretch]]
) -> Iterator[_Stretch]:
    """The next of each other stream that leaps as far and to the same time."""
    for own in stretches:
        later = (each for each in own if not each.is_placed and each.run.order > stretch.run.order)
        other = next(later, None)
        if other is None or other.lane is stretch.lane:
            continue
        if stretch.begins_file and other.begins_file and other.run.file == stretch.run.file:
            yield other
        elif other.before is not None and not other.begins_file and not stretch.begins_file:
            jumps_apart_us = abs(other.jump_us - stretch.jump_us)
            starts_apart_us = abs(other.run.start_us - stretch.run.start_us)
            if max(jumps_apart_us, starts_apart_us) <= LONGEST_PAUSE_US:
                yield other
