"""Ticks of a time base as whole milliseconds, and the one map from a file's clock to media time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from av.packet import Packet


def rounded_ms(ticks: int, time_base: Fraction) -> int:
    """``ticks`` of ``time_base`` seconds in whole milliseconds, halves away from zero.

    Matroska muxers round the same way, so a time survives being cut into a segment.
    """
    numerator = abs(ticks) * time_base.numerator * 1000
    denominator = time_base.denominator
    magnitude = (2 * numerator + denominator) // (2 * denominator)
    return magnitude if ticks >= 0 else -magnitude


def seconds_ms(seconds: Fraction) -> int:
    """The same of seconds."""
    return rounded_ms(seconds.numerator, Fraction(1, seconds.denominator))


def packet_time_ms(packet: Packet[Any], origin_ms: int) -> int | None:
    """The time of the packet's picture; None where it has none."""
    if packet.pts is None or packet.time_base is None:
        return None
    return rounded_ms(packet.pts, packet.time_base) - origin_ms


class ClockPiece(NamedTuple):
    """From its ``packet`` on (counted from 0) the stream's times are ``offset_ms`` later.

    ``shown_only``: of that packet only, and only the time at which it is shown.
    """

    stream: int
    packet: int
    offset_ms: int
    shown_only: bool = False


class Clock:
    """Moves packets' times by the pieces; every packet of a stream must pass, in order."""

    def __init__(self, pieces: Iterable[tuple[int, int, int, bool]]) -> None:
        """``pieces`` are ClockPieces, or their plain values."""
        self._due: dict[int, deque[ClockPiece]] = {}
        for piece in sorted(ClockPiece(*values) for values in pieces):
            self._due.setdefault(piece.stream, deque()).append(piece)
        self._passed = dict.fromkeys(self._due, 0)
        self._offsets_ms = dict.fromkeys(self._due, 0)

    def apply(self, stream: int, packet: Packet[Any]) -> None:
        """Move the times of the stream's next packet."""
        if stream not in self._due or not packet.size:
            return
        due, number, extra_ms = self._due[stream], self._passed[stream], 0
        self._passed[stream] += 1
        while due and due[0].packet == number:
            piece = due.popleft()
            if piece.shown_only:
                extra_ms = piece.offset_ms
            else:
                self._offsets_ms[stream] = piece.offset_ms
        offset_ms, tick_ms = self._offsets_ms[stream], 1000 * packet.time_base
        if packet.pts is not None:
            packet.pts += round((offset_ms + extra_ms) / tick_ms)
        if packet.dts is not None:
            packet.dts += round(offset_ms / tick_ms)
