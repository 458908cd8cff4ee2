"""Packets' times laid out on one timeline, in cases small enough to write down."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from pipelines.media.files import Clock
from pipelines.media.timeline import Lane, NoClockError, lay_out
from tests.tables import every

MS = Fraction(1, 1000)
Timed = tuple[int, float | None]
"""A stream's number, and a time in seconds."""


class FakePacket:
    """As much of a packet as has to do with time."""

    def __init__(self, seconds: float | None, shown: float | None = None) -> None:
        self.time_base, self.size, self.duration = MS, 1, None
        self.dts = None if seconds is None else round(seconds * 1000)
        self.pts = self.dts if shown is None else round(shown * 1000)
        self.is_discard, self.is_corrupt, self.is_keyframe = False, False, True

    def has_sidedata(self, _: str) -> bool:
        return False


def laid_out(*packets: Timed, files: tuple[int, ...] = ()) -> list[float | None]:
    """The times after the layout; ``files`` says in which of several joined files each is."""
    numbers = sorted({number for number, _ in packets})
    places: dict[int, Any] = {}
    lanes = {
        n: Lane(n, is_picture=True, is_alone=len(numbers) == 1, places=places) for n in numbers
    }
    found: list[tuple[int, Any]] = [(number, FakePacket(at)) for number, at in packets]
    for order, (number, packet) in enumerate(found):
        lanes[number].add(packet, MS, files[order] if files else 0, order)
    clock = Clock(lay_out(list(lanes.values())).pieces)
    for number, packet in found:
        clock.apply(number, packet)
    return [None if packet.pts is None else packet.pts / 1000 for _, packet in found]


CASES: dict[str, tuple[list[Timed], list[float | None]]] = {
    "no leap": ([(0, 0), (1, 0.1), (0, 1), (1, 1.1)], [0, 0.1, 1, 1.1]),
    "a pause of ten seconds": ([(0, 0), (1, 0), (0, 10), (1, 10)], [0, 0, 10, 10]),
    "a stream alone pauses for minutes": ([(0, 0), (0, 1), (0, 500)], [0, 1, 500]),
    "a stream alone leaps": ([(0, 0), (0, 1), (0, 5_000), (0, 5_001)], [0, 1, 2, 3]),
    "back": ([(0, 50), (0, 51), (0, 0), (0, 1)], [50, 51, 52, 53]),
    "a little back": ([(0, 1), (0, 0.7), (0, 2)], [1, 0.7, 2]),
    "both streams, by the same amount": (
        [(0, 0), (1, 0), (0, 1), (1, 1), (0, 500), (1, 500.25), (0, 501), (1, 501.25)],
        [0, 0, 1, 1, 2, 2.25, 3, 3.25],
    ),
    "one stream is late to leap": (
        [(0, 0), (1, 0), (0, 1), (0, 500), (1, 1), (0, 501), (1, 500), (1, 501)],
        [0, 0, 1, 2, 1, 3, 2, 3],
    ),
    "the longer of two streams is waited for": (
        [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (1, 3), (0, 900), (1, 900), (0, 901)],
        [0, 0, 1, 1, 2, 3, 4, 4, 5],
    ),
    "one stream pauses while the other goes on": (
        [(0, 0), (1, 0), *((1, at) for at in range(1, 40)), (0, 39), (1, 40)],
        [0, 0, *range(1, 40), 39, 40],
    ),
    "twice": ([(0, 0), (0, 1), (0, 5_000), (0, 5_001), (0, 0), (0, 1)], [0, 1, 2, 3, 4, 5]),
    "a stray": ([(0, 0), (0, 1), (0, 7_000), (0, 3)], [0, 1, 2, 3]),
    "strays to several places": (
        [(0, 0), (0, 1), (0, 7_000), (0, 900), (0, 4), (0, 5)],
        [0, 1, 2, 3, 4, 5],
    ),
    "a stream that begins elsewhere": ([(0, 0), (0, 1), (1, 900), (1, 901)], [0, 1, 1, 2]),
    "streams one after the other": (
        [*((0, at) for at in range(40)), *((1, at) for at in range(40))],
        [*range(40), *range(40)],
    ),
    "no times": ([(0, 0), (0, None), (0, 1)], [0, None, 1]),
}


@every(("packets", "expected"), CASES.values(), ids=CASES.keys())
def test_times_are_those_of_one_timeline(
    packets: list[Timed], expected: list[float | None]
) -> None:
    assert laid_out(*packets) == expected


def test_files_joined_lie_end_to_end_whatever_their_clocks_say() -> None:
    packets: list[Timed] = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 5), (1, 5), (0, 6)]

    assert laid_out(*packets, files=(0, 0, 0, 0, 0, 1, 1, 1)) == [0, 0, 1, 1, 2, 3, 3, 4]


def test_times_that_are_all_over_the_place_make_no_timeline() -> None:
    with pytest.raises(NoClockError):
        laid_out(*((0, number * 7_919 % 100_000) for number in range(100)))
