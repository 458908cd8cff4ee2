"""What a backfill says of its progress, and when it thinks it will be done."""

from __future__ import annotations

import pytest

from pipelines.backfill.driver import BackfillTally, spell_seconds


def test_before_anything_is_done_nobody_knows_the_end() -> None:
    tally = BackfillTally(total=200, finished_before=50, started_seconds=10.0)
    assert tally.seconds_left(100.0) is None
    assert tally.line(100.0) == "50 of 200 items (25 %)"


def test_the_end_follows_from_the_pace_of_this_run_alone() -> None:
    tally = BackfillTally(total=200, finished_before=50, started_seconds=10.0)
    for number in range(30):
        tally.add(failed=number == 0, media_seconds=60.0)
    assert tally.seconds_left(70.0) == pytest.approx(60 / 30 * 120)
    assert tally.line(70.0) == (
        "80 of 200 items (40 %), 1 failed, 30.0 items a minute, "
        "30 min 0 s of media at 30.0x, about 4 min 0 s left"
    )


def test_at_the_end_nothing_is_left() -> None:
    tally = BackfillTally(total=1, finished_before=0, started_seconds=0.0)
    tally.add(failed=False, media_seconds=2.0)
    assert tally.line(4.0) == "1 of 1 items (100 %), 15.0 items a minute, 2 s of media at 0.5x"


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 0 s"),
        (3_725, "1 h 2 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_times_are_spelled_in_two_units(seconds: float, spelled: str) -> None:
    assert spell_seconds(seconds) == spelled
