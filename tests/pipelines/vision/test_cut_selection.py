"""Choosing among what was found: exact as by comparing all with all, at a linear price."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.vision.cuts import selection as cuts
from pipelines.vision.cuts.gradual import Gradual, IntervalIndex, best_graduals
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.selection import (
    BlankRun,
    Candidates,
    Cut,
    CutConfig,
    CutKind,
    Found,
    without_visits,
)

stretches = st.tuples(st.integers(0, 300), st.integers(0, 40)).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1])
)
shares = st.sampled_from([0.5, 0.7, 0.8, 0.9, 0.95, 0.99])


@given(st.lists(stretches, max_size=30), stretches)
def test_what_touches_a_stretch_is_found(
    spans: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    found = list(IntervalIndex(spans, lambda span: span).touching(*asked))
    touching = [span for span in spans if span[0] <= asked[1] and asked[0] <= span[1]]
    assert sorted(found) == sorted(touching)
    assert [start for start, _ in found] == sorted(start for start, _ in touching)


@st.composite
def graduals(draw: st.DrawFn) -> Gradual:
    start = draw(st.integers(0, 400))
    half = draw(st.integers(1, 20))
    visits = draw(st.lists(stretches, max_size=2))
    return Gradual(
        start, start + half, start + 2 * half, draw(shares), draw(shares), None, tuple(visits)
    )


@st.composite
def some_cuts(draw: st.DrawFn) -> Cut:
    start, end = draw(stretches)
    if draw(st.booleans()):
        return Cut(start, CutKind.HARD, draw(shares), start, start)
    return Cut((start + end) // 2, CutKind.DISSOLVE, draw(shares), start, end)


@given(st.lists(graduals(), max_size=40))
def test_the_best_gradual_of_each_transition(found: list[Gradual]) -> None:
    assert best_graduals(found) == best_of_all(found)


@given(st.lists(some_cuts(), max_size=30), st.lists(graduals(), max_size=10))
def test_what_visits_the_picture(found: list[Cut], wipes: list[Gradual]) -> None:
    sure = [cut for cut in found if cut.confidence >= (0.95 if cut.kind == "hard" else 0.8)]
    visits = [
        (start, end)
        for wipe in wipes
        for start, end in wipe.visits_ms
        if not any(start < cut.time_ms <= end for cut in sure)
    ]
    kept = [
        cut
        for cut in found
        if cut in sure or not any(start < cut.time_ms < end for start, end in visits)
    ]
    edits = [
        wipe.middle_ms
        for wipe in wipes
        if not any(wipe.start_ms < cut.time_ms < wipe.end_ms for cut in sure)
        and not any(start <= wipe.start_ms and wipe.end_ms <= end for start, end in visits)
    ]
    chosen = without_visits(found, wipes)
    assert chosen[: len(kept)] == kept
    assert [cut.time_ms for cut in chosen[len(kept) :]] == edits


@given(st.lists(some_cuts(), max_size=40))
def test_the_surest_cuts_apart(found: list[Cut]) -> None:
    config = CutConfig(min_scene_ms=40, min_edge_scene_ms=0)
    fitted = [cut for cut in found if cut.kind is not CutKind.HARD]
    rest = [
        cut
        for cut in found
        if cut in fitted or not any(one.start_ms < cut.time_ms < one.end_ms for one in fitted)
    ]
    assert list(cuts.select_cuts(found, [], 1_000, config)) == apart(apart(rest, 10), 40)


@pytest.mark.parametrize(
    ("between_ms", "confidence", "scenes"),
    [(160, 0.9, 3), (80, 0.9, 2), (160, 0.7, 2)],
    ids=["four frames", "two frames", "unsure"],
)
def test_a_scene_between_sure_cuts_may_be_short(
    between_ms: int, confidence: float, scenes: int
) -> None:
    times_ms = [5_000, 5_000 + between_ms]
    found = [Cut(at, CutKind.HARD, confidence, at, at) for at in times_ms]
    assert len(cuts.select_cuts(found, [], 10_000, CutConfig())) == scenes - 1


def test_a_short_scene_between_a_fade_and_a_cut_is_one() -> None:
    fade = Cut(5_000, CutKind.FADE_BLACK, 0.9, 4_600, 5_400)
    hard = Cut(5_600, CutKind.HARD, 0.99, 5_600, 5_600)
    near = replace(fade, time_ms=5_300)
    assert cuts.select_cuts([near, hard], [], 10_000, CutConfig()) == (near, hard)


def apart(found: list[Cut], gap_ms: int, sure_gap_ms: int = 125) -> list[Cut]:
    kept: list[Cut] = []
    for cut in sorted(found, key=lambda cut: (-cut.confidence, cut.time_ms)):
        if all(
            (cut.end_ms < other.start_ms or other.end_ms < cut.start_ms)
            and (
                abs(cut.time_ms - other.time_ms) >= gap_ms
                or (
                    min(cut.confidence, other.confidence) >= 0.85
                    and max(cut.start_ms - other.end_ms, other.start_ms - cut.end_ms) >= sure_gap_ms
                )
            )
            for other in kept
        ):
            kept.append(cut)
    return sorted(kept, key=lambda cut: cut.time_ms)


@given(st.lists(some_cuts(), max_size=20), st.lists(stretches, max_size=6))
def test_blank_stretches_become_one_cut_each(
    found: list[Cut], blanks: list[tuple[int, int]]
) -> None:
    """What lies away from every stretch stays; what is left is still apart."""
    config = CutConfig(min_scene_ms=40, min_edge_scene_ms=0)
    runs = [BlankRun(start, end, Blank.BLACK) for start, end in blanks]
    bridged = cuts.select_cuts(found, runs, 1_000, config)
    assert all(after.time_ms - before.time_ms >= 40 for before, after in pairwise(bridged))
    clear_of_blanks = [
        cut
        for cut in cuts.select_cuts(found, [], 1_000, config)
        if all(abs(cut.time_ms - at) > 200 for stretch in blanks for at in stretch)
    ]
    assert {*clear_of_blanks} <= {*bridged}


def test_hours_of_findings_are_compared_with_their_neighbours_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    touching = IntervalIndex.touching

    def counted(index: IntervalIndex[Any], start_ms: int, end_ms: int) -> list[Any]:
        nonlocal compared
        near = [*touching(index, start_ms, end_ms)]
        compared += len(near)
        return near

    monkeypatch.setattr(IntervalIndex, "touching", counted)
    taken, chosen = [], []
    for minutes in (10, 80):
        compared = 0
        found = repeated(busy_minute(), minutes)
        candidates = Candidates.among(found, minutes * MINUTE_MS)
        chosen.append(candidates.select(CutConfig()))
        taken.append(compared)
    assert taken[0] > 0
    assert taken[1] <= 8.1 * taken[0]
    minute = [cut.time_ms for cut in chosen[0] if cut.time_ms < 9 * MINUTE_MS]
    assert [cut.time_ms for cut in chosen[1]][: len(minute)] == minute


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
