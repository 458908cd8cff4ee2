"""Where a file's packets belong on the timeline of its content, whatever clock they carry.

Clocks are set anew (a recorder that reconnects, files joined with ``cat``), leap by hours, wrap, or
have strays. Each stream is read as *runs*, without a gap or leap; ``lay_out`` finds how far to move
each, so that all lie end to end in the order of the file, with picture and sound together. All
bounds of what is a pause, a leap or a stray are here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import Any, NamedTuple

from av.packet import Packet

from pipelines.media.files import ClockPiece

LONGEST_PAUSE_US = 10_000_000
"""A pause up to this long is part of the recording; a longer one, of all streams at once, is a
clock set anew."""
LONGEST_STILL_US = 600_000_000
"""The same of a stream that is alone: a picture that stands, a microphone that is off."""
FARTHEST_APART_US = 5_000_000
"""Streams whose packets lie side by side in the file are no farther apart in time."""
LARGEST_STEP_BACK_US = 500_000
"""Decoding times go back no farther than by a muxer's small errors."""
LARGEST_STEP_BACK_ALONE_US = 100_000
"""The same of sound that is alone: short recordings joined."""
LONGEST_REORDERING_US = 2_000_000
"""Between decoding and showing a picture, or MOST_REORDERED pictures where these take longer."""
MOST_REORDERED = 20
"""H.264 and HEVC reorder at most 16."""
MOST_STRAYS_TOGETHER = 8
"""More packets at a time that are far off are not strays, but a clock set anew."""
LONGEST_SOUND_STEP_US = 250_000
"""Between packets of sound in a transport stream: where more lies there, some are missing."""
MOST_LOSSES = 10_000
MOST_RUNS = 50_000
"""Hardly more than one in two seconds of a day."""
MOST_REPAIRED_SHARE = 0.25
"""With more leaps and strays to a packet there is no clock to go by."""

LONGEST_STEP_US = 1_000_000
"""Runs part where packets are farther apart, and than the last MOST_STRAYS_TOGETHER were; whether a
pause or a leap lies there is decided later."""
_SETTLING_PICTURES = 32


@dataclass(slots=True, eq=False)
class Run:
    """An interval of a stream without a gap or leap, with the times that the file has.

    ``start_us`` and ``last_us`` are when its first and last packets are decoded; ``first``,
    ``last`` and ``end``, in ticks, when pictures are shown.
    """

    time_base: Fraction
    file: int
    """Which of several joined files it is in."""
    packet: int
    """The number of its first in the stream."""
    order: int
    """Of that among all packets."""
    start_us: int
    last_us: int
    first: int
    last: int
    end: int
    beside: dict[int, tuple[Run, int]]
    """Where the other streams stood when it began: their runs, and times of decoding."""
    begins_with_key: bool = True
    resumes_us: int | None = None
    """When its first picture is due by the clock of the run before, where it begins in the middle
    of a group: pictures of both are shown among each other."""
    packets: int = 0
    decoded: int = 0
    """When its first packet is decoded, in ticks."""
    is_reordered: bool = False
    """Whether pictures are decoded in another order than they are shown in."""
    shortest: int = 0
    """Of the lengths of its packets, in ticks."""
    step_us: int = 0
    is_stray: bool = False
    offset_us: int = 0
    """How far it is to be moved. This and ``is_stray`` are found by ``lay_out``."""

    @property
    def offset_ms(self) -> int:
        return round(self.offset_us / 1000)

    @property
    def due_us(self) -> int:
        """When the packet after its last should be decoded."""
        return self.last_us + self.step_us

    @property
    def first_us(self) -> int:
        """When its first picture is shown."""
        return _microseconds(self.first, self.time_base)

    @property
    def end_us(self) -> int:
        """When its last picture ends; muxers let that one last until after a leap."""
        last_us = _microseconds(self.last, self.time_base)
        length_us = _microseconds(self.end, self.time_base) - last_us
        return last_us + (length_us if 0 < length_us <= LONGEST_PAUSE_US else self.step_us)

    def follows_us(self, before: Run) -> int:
        """Return how far to move it so that it begins where ``before`` ends on the timeline."""
        due_us = before.end_us
        if self.resumes_us is not None and not self.begins_with_key:
            due_us = self.resumes_us
        return due_us + before.offset_us - self.first_us

    def seconds(self, ticks: int) -> Fraction:
        """Return a time of the run on the timeline."""
        return ticks * self.time_base + Fraction(self.offset_ms, 1000)


def _microseconds(ticks: int, base: Fraction) -> int:
    return ticks * base.numerator * 1_000_000 // base.denominator


class Loss(NamedTuple):
    """Where packets are missing: behind ``end`` of one run, before ``first`` of it or the next."""

    before: Run
    end: int
    run: Run
    first: int


class _Stray(NamedTuple):
    """A picture that is shown far from where it is decoded, until its place is known."""

    shown_us: int
    shown: int
    number: int
    is_key: bool
    due_us: int
    """Where it goes if no place is free."""


@dataclass(slots=True)
class Lane:
    """Reads the runs of one stream, packet by packet.

    ``places`` is where all streams stand, shared by the lanes of a file.
    """

    stream: int
    is_picture: bool
    is_alone: bool
    places: dict[int, tuple[Run, int]]
    runs: list[Run] = field(default_factory=list)
    strays: list[ClockPiece] = field(default_factory=list)
    """Pictures that are shown far from where they are decoded."""
    is_transport: bool = False
    """Whether packets of the container are counted, so that some may be known to be missing."""
    losses: list[Loss] = field(default_factory=list)
    packets: int = 0
    last_order: int = 0
    _since_corrupt: int = 1 << 40
    """Packets since FFmpeg found something missing; parsers mark the one before or that one."""
    _ended_us: int = 0
    """Length of all runs before the latest."""
    _reordering_us: int = 0
    _strayed: list[_Stray] = field(default_factory=list)
    _shown_us: deque[int] = field(default_factory=lambda: deque(maxlen=3 * _SETTLING_PICTURES))
    _settle_in: int = 0

    def add(self, packet: Packet[Any], base: Fraction, file: int, order: int) -> None:
        """Count the next packet, the ``order``-th of all."""
        number, self.packets = self.packets, self.packets + 1
        shown, decoded = packet.pts, packet.dts
        ticks = shown if decoded is None else decoded
        if ticks is None or packet.is_discard:
            return
        at_us = ticks * base.numerator * 1_000_000 // base.denominator
        run = before = self.runs[-1] if self.runs else None
        lost_after = None if before is None else self._lost_after(before, at_us)
        self._since_corrupt = 0 if packet.is_corrupt else self._since_corrupt + 1
        if run is None or run.file != file or self._leaps(run, at_us, decoded is None):
            self._ended_us = self.length_us
            first = ticks if shown is None else shown
            beside = {key: place for key, place in self.places.items() if key != self.stream}
            run = Run(base, file, number, order, at_us, at_us, first, first, first, beside)
            run.begins_with_key, run.decoded = packet.is_keyframe, ticks
            if file and packet.has_sidedata("skip_samples"):
                # Encoders of sound begin with samples that are not played.
                skipped = int.from_bytes(bytes(packet.get_sidedata("skip_samples"))[:4], "little")
                rate_hz = packet.stream.codec_context.sample_rate or 1
                run.first += round(skipped / rate_hz / base)
            if self._shown_us:
                recent = sorted(self._shown_us)[-MOST_REORDERED:]
                run.resumes_us = min(_free_places(recent), default=None)
                self._shown_us.clear()
            self.runs.append(run)
        elif at_us > run.last_us:
            run.step_us = at_us - run.last_us
        run.packets += 1
        run.last_us, self.last_order = at_us, order
        self.places[self.stream] = (run, at_us)
        duration = packet.duration or 0
        if before is not None and lost_after is not None and before.file == file:
            self.losses.append(Loss(before, lost_after, run, ticks if shown is None else shown))
        if shown is None:
            shown = ticks
        elif self.is_picture and self._is_shown_far_off(run, number, at_us, packet):
            return
        if run.packets > 1:
            run.is_reordered |= shown < run.last
            run.first, run.last = min(run.first, shown), max(run.last, shown)
        run.end = max(run.end, shown + duration)
        if self.is_picture and run.is_reordered and duration:
            # Lengths are then steps between times of decoding; all of them together are as long
            # as what is shown, or nearly so where a run begins within a group.
            run.shortest = min(run.shortest or duration, duration)
            together = max(run.last + 1, run.first + ticks + duration - run.decoded)
            if run.end - together > run.shortest:
                run.end = together

    @property
    def length_us(self) -> int:
        """Of all its runs together."""
        latest = self.runs[-1] if self.runs else None
        return self._ended_us + (latest.last_us - latest.start_us if latest else 0)

    def _lost_after(self, run: Run, at_us: int) -> int | None:
        """When what is missing before the packet decoded then begins, in ticks; None if nothing.
        FFmpeg marks pictures of transport streams, but no sounds: these may only have paused."""
        if not self.is_transport or len(self.losses) >= MOST_LOSSES:
            return None
        least_us = 2 * run.step_us if self.is_picture else LONGEST_SOUND_STEP_US
        is_marked = self._since_corrupt <= 1 or not self.is_picture
        if not is_marked or not run.step_us or at_us - run.last_us < least_us:
            return None
        return max(run.end, run.last)

    def _leaps(self, run: Run, at_us: int, is_reordered: bool) -> bool:
        jump_us = at_us - run.last_us
        if 0 <= jump_us <= LONGEST_STEP_US:
            return False
        back_us = LARGEST_STEP_BACK_US
        if self.is_picture:
            # Demuxers derive decoding times; where pictures stand long, their errors are large.
            back_us = max(back_us, (MOST_REORDERED if is_reordered else 4) * run.step_us)
        elif self.is_alone:
            back_us = LARGEST_STEP_BACK_ALONE_US
        most_us = max(LONGEST_STEP_US, MOST_STRAYS_TOGETHER * run.step_us)
        return not -back_us <= jump_us <= most_us

    def _is_shown_far_off(self, run: Run, number: int, at_us: int, packet: Packet[Any]) -> bool:
        shown, duration, is_key = packet.pts or 0, packet.duration or 0, packet.is_keyframe
        shown_us = _microseconds(shown, run.time_base)
        reordering_us = shown_us - at_us
        is_off = abs(reordering_us - self._reordering_us) > LONGEST_REORDERING_US
        if is_off and len(self._strayed) < MOST_STRAYS_TOGETHER:
            step_us = max(run.step_us, _microseconds(duration, run.time_base))
            if abs(reordering_us - self._reordering_us) > MOST_REORDERED * step_us:
                due_us = at_us + self._reordering_us
                self._strayed.append(_Stray(shown_us, shown, number, is_key, due_us))
                self._settle_in = _SETTLING_PICTURES
                return True
        self._reordering_us = reordering_us
        self._shown_us.append(shown_us)
        if self._strayed:
            self._settle_in -= 1
            if not self._settle_in:
                self.settle()
        return False

    def settle(self) -> None:
        """Move pictures that are shown far off to the times free among those around them."""
        known = list(self._shown_us)
        since = known[len(known) + self._settle_in - _SETTLING_PICTURES :]
        strayed = []
        for each in sorted(self._strayed):
            if any(abs(each.shown_us - later) <= LONGEST_REORDERING_US for later in since):
                # It does not stray: FFmpeg's times of decoding (Matroska has none) leapt later than
                # it.
                run = self.runs[-1]
                run.first, run.last = min(run.first, each.shown), max(run.last, each.shown)
                if each.number < run.packet:
                    run.packet, run.begins_with_key = each.number, each.is_key
            else:
                strayed.append(each)
        middle_us = median([each.due_us for each in strayed] or [0])
        free = _free_places(sorted(known))
        free.sort(key=lambda free_us: abs(free_us - middle_us))
        places = iter(sorted(free[: len(strayed)]))
        for each in strayed:
            offset_ms = round((next(places, each.due_us) - each.shown_us) / 1000)
            self.strays.append(ClockPiece(self.stream, each.number, offset_ms, shown_only=True))
        self._strayed.clear()


def _free_places(known: Sequence[int]) -> list[int]:
    """Return times at which pictures are missing among those at ``known`` times."""
    steps = [after - before for before, after in itertools.pairwise(known)]
    step_us = max(1, round(median(steps or [0])))
    return [
        before + step_us * place
        for before, step in zip(known, steps, strict=False)
        for place in range(1, min(round(step / step_us), MOST_STRAYS_TOGETHER + 1))
    ]


class NoClockError(Exception):
    """Most times are far off each other; no timeline can be made of them."""


@dataclass(slots=True, eq=False)
class _Section:
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
    """Find where each run belongs; sets ``offset_us`` of the runs. Raises NoClockError where nearly
    all times are far off each other."""
    for lane in lanes:
        lane.settle()
    lanes = [lane for lane in lanes if lane.runs]
    sections = {lane.stream: list(_sections(lane, lanes)) for lane in lanes}
    everything = [section for own in sections.values() for section in own]
    leaps = 0
    for section in sorted(everything, key=lambda section: section.run.order):
        if not section.is_placed:
            leaps += _place(section, lanes, sections.values())
    strays = sum(run.packets for section in everything for run, _ in section.strays)
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
    """Yield those from which on the offset is another."""
    offset_ms = 0
    for run in runs:
        if run.offset_ms != offset_ms:
            offset_ms = run.offset_ms
            yield run


def _sections(lane: Lane, lanes: Iterable[Lane]) -> Iterator[_Section]:
    """Yield the lane's runs, joined where only strays part them."""
    runs, at = lane.runs, 0
    section: _Section | None = None
    if _begins_with_strays(lane, lanes):
        due_us = runs[1].start_us - runs[1].step_us * runs[0].packets
        runs[0].is_stray = True
        section, at = _Section(lane, [runs[1]], [(runs[0], due_us)]), 2
    while at < len(runs):
        last = section.runs[-1] if section else None
        back_at = None if last is None else _back_at(runs, at, last)
        if back_at is None and last is not None and last.file == runs[at].file:
            pauses = 0 <= runs[at].start_us - last.last_us <= LONGEST_PAUSE_US
            back_at = at if pauses else None
        if section is None or last is None or back_at is None:
            if section is not None:
                yield section
            section, at = _Section(lane, [runs[at]], before=last), at + 1
            continue
        due_us = last.due_us
        for run in runs[at:back_at]:
            run.is_stray = True
            section.strays.append((run, due_us))
            due_us += run.packets * last.step_us
        section.runs.append(runs[back_at])
        at = back_at + 1
    if section is not None:
        yield section


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


def _back_at(runs: Sequence[Run], at: int, last: Run) -> int | None:
    """Return where runs go on by the clock of ``last``, if only strays lie between."""
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


def _place(section: _Section, lanes: Sequence[Lane], sections: Iterable[Sequence[_Section]]) -> int:
    """Place a section and those that leap along with it; how often a clock was set anew, 0 or 1."""
    run, before = section.run, section.before
    places = (run.beside.get(lane.stream) for lane in lanes)
    known = ((it, at_us) for it, at_us in filter(None, places) if not it.is_stray)
    beside = [(other, other.offset_us + at_us) for other, at_us in known]
    kept_us = None if section.begins_file else _kept_offset(section, beside, lanes)
    if kept_us is not None:
        section.place(kept_us)
        return 0
    together = [section, *_leaping_along(section, sections)]
    offsets_us = [each.run.follows_us(each.before) for each in together if each.before]
    if not offsets_us:
        # The stream begins here: with another file, or elsewhere than all that lies beside it.
        ends = [
            other.end_us + other.offset_us if section.begins_file else at_us
            for other, at_us in beside
        ]
        offsets_us = [max(ends, default=0) - run.first_us]
    for each in together:
        each.place(max(offsets_us))
    return int(before is None or abs(run.offset_us - before.offset_us) > 1_000)


def _kept_offset(
    section: _Section, beside: Sequence[tuple[Run, int]], lanes: Iterable[Lane]
) -> int | None:
    """Return the offset of a clock that still holds; None where it was set anew."""
    run, before = section.run, section.before
    reached_us = max((at_us for _, at_us in beside), default=0)
    latest_first = sorted(beside, key=lambda place: -place[0].order)
    clocks = {other.offset_us: None for other, _ in latest_first}
    others = [lane for lane in lanes if lane is not section.lane]
    if before is None:
        if not beside:
            return 0
        apart_us = LONGEST_PAUSE_US
        clocks.setdefault(0)
    else:
        by_own_us = run.start_us + before.offset_us
        ended = all(lane.last_order < run.order for lane in others)
        stands_still = ended and section.jump_us <= LONGEST_STILL_US
        is_near = any(abs(at_us - by_own_us) <= FARTHEST_APART_US for _, at_us in beside)
        if section.jump_us > 0 and (stands_still or is_near):
            return before.offset_us
        apart_us = FARTHEST_APART_US
        clocks.pop(before.offset_us, None)
    for offset_us in clocks:
        if abs(run.start_us + offset_us - reached_us) <= apart_us:
            return offset_us
    # Some files hold one stream after the other.
    starts = [lane.runs[0].start_us for lane in others if before is None]
    return 0 if any(abs(run.start_us - at) <= LONGEST_PAUSE_US for at in starts) else None


def _leaping_along(section: _Section, sections: Iterable[Sequence[_Section]]) -> Iterator[_Section]:
    """Yield the next of each other stream that leaps as far and to the same time."""
    for own in sections:
        later = (each for each in own if not each.is_placed and each.run.order > section.run.order)
        other = next(later, None)
        if other is None or other.lane is section.lane:
            continue
        if section.begins_file and other.begins_file and other.run.file == section.run.file:
            yield other
        elif other.before is not None and not other.begins_file and not section.begins_file:
            jumps_apart_us = abs(other.jump_us - section.jump_us)
            starts_apart_us = abs(other.run.start_us - section.run.start_us)
            if max(jumps_apart_us, starts_apart_us) <= LONGEST_PAUSE_US:
                yield other
