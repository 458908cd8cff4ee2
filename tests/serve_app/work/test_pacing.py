"""Progress between the ends of tasks: it moves, never goes back, and keeps to the pace."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.execution.chain import ControlSpan, FreeRun, Pace, collected, parts_of
from serve_app.work.stage_work import ingest_parts
from tests.tables import every

SHOWN_STEP = 1e-6
"""The API shows six decimals."""


def fractions_of(
    row_seconds: list[float], tick_seconds: float = 1.0, concurrency: int = 1
) -> list[tuple[float, float]]:
    """(time, fraction) at every tick and every end of rows that end one after the other."""
    pace = Pace(len(row_seconds), 100.0, concurrency)
    seen: list[tuple[float, float]] = []
    now = 100.0
    for seconds in row_seconds:
        ticks = [now + tick * tick_seconds for tick in range(1, int(seconds / tick_seconds) + 1)]
        seen.extend((tick, pace.fraction(tick)) for tick in ticks)
        now += seconds
        pace.row_ended(now)
        seen.append((now, pace.fraction(now)))
    return seen


@given(st.lists(st.floats(0.1, 60.0), min_size=1, max_size=30), st.integers(1, 8))
def test_it_never_goes_back_and_ends_at_one(row_seconds: list[float], concurrency: int) -> None:
    fractions = [fraction for _, fraction in fractions_of(row_seconds, concurrency=concurrency)]
    assert fractions == sorted(fractions)
    assert all(0 <= fraction < 1 for fraction in fractions[:-1])
    assert fractions[-1] == 1.0


@every(
    "row_seconds",
    [
        pytest.param([8.0] * 30, id="ten minutes in shards of 20 s"),
        pytest.param([60.0], id="one row of a minute"),
        pytest.param([4.0] * 10 + [40.0], id="a row ten times as long as the others"),
        pytest.param([4.3] * 1500, id="twelve hours"),
    ],
)
def test_what_is_shown_moves_at_least_every_five_seconds(row_seconds: list[float]) -> None:
    since, last = 100.0, 0.0
    for now, fraction in fractions_of(row_seconds):
        if fraction - last >= SHOWN_STEP:
            since, last = now, fraction
        assert now - since < 5.0, f"{fraction} has stood still for {now - since} s"


def test_rows_that_share_a_model_and_end_all_at_once_are_credited_before() -> None:
    """Four of 40 rows, whose model takes a chunk of each in turn: none ends before 34 s."""
    first = [8.0 + 26.0, 0.2, 0.2, 0.2]
    seen = fractions_of(first * 10, concurrency=4)
    waiting = [fraction for now, fraction in seen if 120 <= now <= 133]
    assert waiting == sorted(set(waiting)), "it stands still"
    assert 0.03 < waiting[-1] < 0.1
    whole = sum(first * 10)
    for now, fraction in seen:
        if now - 100 >= 0.2 * whole:
            assert (now - 100) / fraction == pytest.approx(whole, rel=0.25)


@every("concurrency", [1, 2, 4], ids=["one by one", "two by two", "four by four"])
def test_after_a_tenth_the_rest_can_be_told_from_it(concurrency: int) -> None:
    pace, total, row_seconds = Pace(60, 0.0, concurrency), 60, 8.0
    for end in range(concurrency, total, concurrency):
        for tick in range(8):
            now = (end / concurrency - 1) * row_seconds + tick
            whole = total / concurrency * row_seconds
            if now >= whole / 10:
                expected_whole = now / pace.fraction(now)
                assert expected_whole == pytest.approx(whole, rel=0.25)
        for _ in range(concurrency):
            pace.row_ended(end / concurrency * row_seconds)


def test_moments_without_an_item_move_the_progress_too() -> None:
    whole = FreeRun()

    def done() -> Iterator[tuple[int, str] | None]:
        yield None
        time.sleep(0.01)
        yield None
        yield 1, "second"
        yield 0, "first"

    assert collected(done(), ControlSpan(whole, 0.2, 0.7), count=2) == ["first", "second"]
    assert len(set(whole.fractions)) == 4
    assert whole.fractions == sorted(whole.fractions)
    assert whole.fractions[0] >= 0.2
    assert whole.fractions[-1] == pytest.approx(0.7)


@every("fetches", [False, True])
def test_the_parts_of_ingest_follow_on_each_other_and_end_at_one(fetches: bool) -> None:
    fetch, probe, cut = ingest_parts(FreeRun(), fetches=fetches)
    assert fetch.start == 0
    assert fetch.end == probe.start < probe.end == cut.start < cut.end == pytest.approx(1.0)
    assert (fetch.end > 0) is fetches


def test_parts_of_a_part_move_the_whole_from_its_start_to_its_end() -> None:
    whole = FreeRun()
    for piece in parts_of(ControlSpan(whole, 0.2, 0.6), (1.0, 1.0)):
        for fraction in (0.0, 0.5, 1.0):
            piece.progress(fraction)
    assert whole.fractions == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.5, 0.6])
