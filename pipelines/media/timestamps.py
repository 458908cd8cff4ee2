"""Ticks of a time base as whole milliseconds, the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from av.packet import Packet


def rounded_ms(ticks: int, time_base: Fraction) -> int:
    """``ticks`` of ``time_base`` seconds in whole milliseconds, halves away from zero.

    Matroska muxers round the same way, so a time survives being cut into a segment.
    """
    numerator = abs(ticks) * time_base.numerator * 1000
    denominator = time_base.denominator
    magnitude = (2 * numerator + denominator) // (2 * denominator)
    return magnitude if ticks >= 0 else -magnitude


def packet_time_ms(packet: Packet[Any], origin_ms: int) -> int | None:
    """The time of the packet's picture; None where it has none."""
    if packet.pts is None or packet.time_base is None:
        return None
    return rounded_ms(packet.pts, packet.time_base) - origin_ms


LONGEST_PAUSE_SECONDS = 10
"""A pause up to this long is part of the recording; a longer one is a clock set anew."""

LARGEST_STEP_BACK_SECONDS = Fraction(1, 2)
"""Decoding times never go back but by a muxer's small errors."""


@dataclass(slots=True)
class _Lane:
    """One stream: its latest packet's time as it stands in the file, and how it was moved."""

    epoch: int
    last: Fraction | None = None
    step: Fraction = Fraction(0)

    @property
    def due(self) -> Fraction:
        """When the next packet is expected, as times stand in the file."""
        return (self.last or Fraction(0)) + self.step

    def go_to(self, seconds: Fraction) -> None:
        if self.last is not None and 0 < seconds - self.last <= 1:
            self.step = seconds - self.last
        self.last = seconds

    def leaps_to(self, seconds: Fraction) -> bool:
        if self.last is None:
            return False
        return not -LARGEST_STEP_BACK_SECONDS <= seconds - self.last <= LONGEST_PAUSE_SECONDS


@dataclass(slots=True)
class ContinuousTimes:
    """Moves packets' times, in file order, so that no stream leaps."""

    _offsets: list[Fraction] = field(default_factory=lambda: [Fraction(0)])
    """By epoch: what is added to the times between one leap and the next."""
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    _reached: Fraction | None = None

    @property
    def leaps(self) -> int:
        """How often a clock was found to be set anew."""
        return len(self._offsets) - 1

    def apply(self, packet: Packet[Any]) -> None:
        """Move the packet's times; packets without any are left alone."""
        ticks = packet.dts if packet.dts is not None else packet.pts
        base = packet.time_base
        if ticks is None or base is None:
            return
        seconds = ticks * base
        offset = self._offset(packet.stream.index, seconds)
        self._reached = seconds + offset
        if offset:
            moved = round(offset / base)
            packet.pts = None if packet.pts is None else packet.pts + moved
            packet.dts = None if packet.dts is None else packet.dts + moved

    def _offset(self, index: int, seconds: Fraction) -> Fraction:
        lane = self._lanes.get(index)
        if lane is None:
            lane = self._lanes[index] = _Lane(self.leaps)
            if not self._fits(seconds + self._offsets[lane.epoch]):
                lane.epoch = self._epoch_for(lane.epoch, seconds, self._reached)
        elif lane.leaps_to(seconds):
            due = lane.due + self._offsets[lane.epoch]
            lane.epoch = self._epoch_for(lane.epoch, seconds, due)
        lane.go_to(seconds)
        return self._offsets[lane.epoch]

    def _fits(self, moved: Fraction) -> bool:
        """Whether a packet there would lie beside those that came before it."""
        return self._reached is None or abs(moved - self._reached) <= LONGEST_PAUSE_SECONDS

    def _epoch_for(self, current: int, seconds: Fraction, due: Fraction | None) -> int:
        """The latest epoch, if another stream opened it by the same leap; else a new one."""
        latest = self.leaps
        if latest > current and self._fits(seconds + self._offsets[latest]):
            return latest
        self._offsets.append((due or Fraction(0)) - seconds)
        return latest + 1
