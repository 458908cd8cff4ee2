"""What may be cuts in quickly edited footage, made up; and how the best is chosen by definition."""

from __future__ import annotations

import random
from dataclasses import replace

from pipelines.vision.cuts.gradual import Gradual
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.selection import BlankRun, Found

MINUTE_MS = 60_000


def best_of_all(found: list[Gradual]) -> list[Gradual]:
    """``best_graduals`` as it is defined, each compared with each."""

    def overlap(one: Gradual, other: Gradual) -> bool:
        return one.start_ms < other.end_ms and other.start_ms < one.end_ms

    rest = sorted(found, key=lambda gradual: (-gradual.strength, gradual.start_ms))
    chosen = []
    while rest:
        same = [other for other in rest if overlap(rest[0], other)]
        nearly = [other for other in same if other.strength >= 0.9 * rest[0].strength]
        best = max(nearly, key=lambda other: (other.confidence, -other.middle_ms))
        chosen.append(best)
        rest = [other for other in rest if other not in same and not overlap(best, other)]
    return sorted(chosen, key=lambda gradual: gradual.middle_ms)


def busy_minute() -> Found:
    """As many findings as a minute of quickly edited footage has, and dips to black."""
    drawn = random.Random(6)
    found, wipes = [], []
    for middle in range(1_000, 59_000, 700):
        for _ in range(4):
            half = drawn.randrange(80, 900)
            found.append(
                Gradual(middle - half, middle, middle + half, drawn.random(), drawn.random(), None)
            )
        around = (middle - 1_000, middle + 1_000)
        wipes.append(replace(found[-1], confidence=0.9, visits_ms=(around,)))
    hard = tuple((drawn.randrange(MINUTE_MS), drawn.choice([0.6, 0.9, 0.99])) for _ in range(60))
    blanks = tuple(BlankRun(at, at + 400, Blank.BLACK) for at in range(10_000, 50_000, 10_000))
    return Found(hard, tuple(found), tuple(wipes), blanks)


def repeated(found: Found, times: int) -> Found:
    moves = [index * MINUTE_MS for index in range(times)]

    def moved(gradual: Gradual, by: int) -> Gradual:
        return replace(
            gradual,
            start_ms=gradual.start_ms + by,
            middle_ms=gradual.middle_ms + by,
            end_ms=gradual.end_ms + by,
            visits_ms=tuple((start + by, end + by) for start, end in gradual.visits_ms),
        )

    return Found(
        tuple((at + by, confidence) for by in moves for at, confidence in found.hard),
        tuple(moved(gradual, by) for by in moves for gradual in found.graduals),
        tuple(moved(wipe, by) for by in moves for wipe in found.wipes),
        tuple(
            BlankRun(r.start_ms + by, r.end_ms + by, r.blank) for by in moves for r in found.blanks
        ),
    )
