"""Streams read as *runs*, stretches without a gap or leap, for ``timeline`` to lay out.

All bounds of what is a pause, a leap or a stray are here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import Any, NamedTuple

from av.packet import Packet

from pipelines.media.timestamps import ClockPiece

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
    """A stretch of a stream without a gap or leap, with times as they stand in the file.

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
        """How far to move it so that it begins where ``before`` ends on the timeline."""
        due_us = before.end_us
        if self.resumes_us is not None and not self.begins_with_key:
            due_us = self.resumes_us
        return due_us + before.offset_us - self.first_us

    def seconds(self, ticks: int) -> Fraction:
        """A time of the run on the timeline."""
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
            run.begins_with_key = packet.is_keyframe
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
            run.first, run.last = min(run.first, shown), max(run.last, shown)
        run.end = max(run.end, shown + duration)

    @property
    def length_us(self) -> int:
        """Of all its runs together."""
        latest = self.runs[-1] if self.runs else None
        return self._ended_us + (latest.last_us - latest.start_us if latest else 0)

    def _lost_after(self, run: Run, at_us: int) -> int | None:
        """When what is missing before the packet decoded then begins, in ticks; None if nothing.

        FFmpeg marks pictures of transport streams, but no sounds: these may only have paused.
        """
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
    """Times at which pictures are missing among those at ``known`` times."""
    steps = [after - before for before, after in itertools.pairwise(known)]
    step_us = max(1, round(median(steps or [0])))
    return [
        before + step_us * place
        for before, step in zip(known, steps, strict=False)
        for place in range(1, min(round(step / step_us), MOST_STRAYS_TOGETHER + 1))
    ]
