"""Ticks of a time base as whole milliseconds, the same way everywhere."""

from __future__ import annotations

from fractions import Fraction


def rounded_ms(ticks: int, time_base: Fraction) -> int:
    """``ticks`` of ``time_base`` seconds in whole milliseconds, halves away from zero.

    Matroska muxers round the same way, so a time survives being cut into a segment.
    """
    numerator = abs(ticks) * time_base.numerator * 1000
    denominator = time_base.denominator
    magnitude = (2 * numerator + denominator) // (2 * denominator)
    return magnitude if ticks >= 0 else -magnitude
