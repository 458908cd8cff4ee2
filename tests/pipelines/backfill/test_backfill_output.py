"""Parts of an output count as a whole or not at all, in a folder and in a bucket."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.backfill.__main__ import stop_signals
from pipelines.backfill.driver import BackfillTally, spell_seconds
from pipelines.backfill.manifest import RowError
from pipelines.backfill.output import (
    SCHEMAS,
    ItemOutcome,
    Output,
    OutputError,
    begin_output,
    open_output,
    rows_of_parquet,
)
from pipelines.collection import BucketAccess, Place, place_at
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.types import StageStatus
from tests.pipelines.backfill.backfill_outcomes import completed, failed, sound_only
from tests.storage.s3_server import fresh_store
from tests.tables import every

SETTINGS = {"profile": "packaged"}


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where an output may lie."""
    if request.param == "folder":
        return place_at(str(tmp_path / "out"), BucketAccess())
    bucket = fresh_store(request.getfixturevalue("endpoint")).place
    access = BucketAccess(
        bucket.endpoint_url, bucket.region, bucket.access_key_id, bucket.secret_access_key
    )
    return place_at(f"s3://{bucket.bucket}/some/prefix", access)


def rows_at(place: Place, table: str) -> list[dict[str, Any]]:
    """What a reader of all Parquet files of a table sees."""
    return [
        row for name in place.names(table) for row in rows_of_parquet(place.files.read_bytes(name))
    ]


def ids_at(place: Place, table: str) -> list[str]:
    return sorted({row["item_id"] for row in rows_at(place, table)})


def test_outcomes_come_back_as_they_went_in(place: Place) -> None:
    parts = [[completed("a"), failed("b")], [sound_only("c")]]
    output = begin_output(place, SETTINGS)
    for part in parts:
        output.commit(part)
    again = open_output(place)
    assert list(again.outcomes()) == parts
    assert again.finished() == {
        "a": StageStatus.COMPLETED,
        "b": StageStatus.FAILED,
        "c": StageStatus.COMPLETED,
    }
    [error] = rows_at(place, "errors")
    assert (error["item_id"], error["stage"], error["code"]) == (
        "b",
        "transcript",
        "TRANSCRIPT_FAILED",
    )


class KilledError(Exception):
    """Stands for the end of the process."""


@dataclass(frozen=True, slots=True)
class KilledFiles:
    """Files whose process dies at a certain write."""

    place: ObjectStore
    writes_left: list[None]

    def write_bytes(self, name: str, data: bytes) -> None:
        if not self.writes_left:
            raise KilledError(name)
        self.writes_left.pop()
        self.place.write_bytes(name, data)

    def create(self, name: str, data: bytes) -> bool:
        if not self.writes_left:
            raise KilledError(name)
        self.writes_left.pop()
        return self.place.create(name, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)


def dying_after(output: Output, writes: int) -> Output:
    """The output in the hands of a process that dies at the write after so many."""
    files: Any = KilledFiles(output.place.files, [None] * writes)
    return replace(output, place=replace(output.place, files=files), parts=set(output.parts))


@pytest.mark.parametrize("writes", range(len(SCHEMAS)))
def test_a_part_that_was_not_written_to_its_end_leaves_nothing(place: Place, writes: int) -> None:
    output = begin_output(place, SETTINGS)
    output.commit([completed("a")])
    with pytest.raises(KilledError):
        dying_after(output, writes).commit([completed("b"), failed("c")])
    again = begin_output(place, SETTINGS)
    again.recover()
    assert set(again.finished()) == {"a"}
    assert {table: ids_at(place, table) for table in ("scenes", "segments", "words")} == {
        "scenes": ["a"],
        "segments": ["a"],
        "words": ["a"],
    }
    again.commit([completed("b"), failed("c")])
    assert ids_at(place, "scenes") == ["a", "b", "c"]
    assert len(rows_at(place, "scenes")) == 2 + 2 + 1


@every("writes", range(6))
def test_failures_are_forgotten_as_a_whole_too(place: Place, writes: int) -> None:
    output = begin_output(place, SETTINGS)
    output.commit([completed("a"), failed("b")])
    output.commit([failed("c")])
    output.commit([sound_only("d")])
    dies = dying_after(output, writes)
    with pytest.raises(KilledError):
        dies.forget_failures()
    again = begin_output(place, SETTINGS)
    again.recover()
    again.forget_failures()
    assert again.finished() == {"a": StageStatus.COMPLETED, "d": StageStatus.COMPLETED}
    assert ids_at(place, "scenes") == ["a"]
    assert rows_at(place, "errors") == []


def test_bad_rows_are_those_of_the_latest_manifest(place: Place) -> None:
    output = begin_output(place, SETTINGS)
    output.commit([failed("b")])
    bad = RowError("x", 3, "/media/x.mp4", "mode", "mode: 'fast' is none of all.")
    for errors in ([bad], [bad, replace(bad, row=4)], [bad]):
        output.write_row_errors(errors)
        output.recover()
    assert [(row["item_id"], row["column"]) for row in rows_at(place, "errors")] == [
        ("x", "mode"),
        ("b", None),
    ]
    output.write_row_errors([])
    assert ids_at(place, "errors") == ["b"]


def test_two_writers_are_one_too_many(place: Place) -> None:
    one, other = begin_output(place, SETTINGS), begin_output(place, SETTINGS)
    one.commit([completed("a")])
    with pytest.raises(OutputError, match="Another backfill is writing"):
        other.commit([completed("a")])


def test_of_two_writers_of_one_part_the_first_counts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = begin_output(place, SETTINGS), begin_output(place, SETTINGS)
    create = type(place.files).create

    def overtaken(own: ObjectStore, name: str, data: bytes) -> bool:
        monkeypatch.setattr(type(place.files), "create", create)
        one.commit([completed("a")])
        return create(own, name, data)

    monkeypatch.setattr(type(place.files), "create", overtaken)
    with pytest.raises(OutputError, match="Another backfill is writing"):
        other.commit([completed("b")])
    assert set(open_output(place).finished()) == {"a"}
    assert ids_at(place, "scenes") == ids_at(place, "words") == ["a"]


def test_an_output_holds_results_of_one_kind(place: Place) -> None:
    first = begin_output(place, SETTINGS)
    assert begin_output(place, SETTINGS).id == first.id
    with pytest.raises(OutputError, match="begun with profile 'packaged', not 'gpu'"):
        begin_output(place, {"profile": "gpu"})


def test_where_nothing_was_begun_there_is_no_output(place: Place) -> None:
    with pytest.raises(OutputError, match="There is no backfill at"):
        open_output(place)
    with pytest.raises(ObjectNotFoundError):
        place.files.read_bytes("items/part=000001/data.parquet")


def test_outcomes_without_rows_need_no_files(place: Place) -> None:
    outcome: ItemOutcome = sound_only("quiet")
    begin_output(place, SETTINGS).commit([outcome])
    assert [*place.names("words")] == []
    assert list(open_output(place).outcomes()) == [[outcome]]


SIGNALS = [signal.SIGINT, signal.SIGTERM]


@every("number", SIGNALS)
def test_a_signal_is_noted_and_interrupts_nothing(number: signal.Signals) -> None:
    with stop_signals() as is_stopped:
        assert not is_stopped()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert is_stopped()


@every("number", SIGNALS)
def test_afterwards_signals_are_as_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals():
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


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


@every(
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
