"""Parts of an output count as a whole or not at all, in a folder and in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.backfill.manifest import RowError
from pipelines.backfill.output import (
    SCHEMAS,
    ItemOutcome,
    Output,
    begin_output,
    open_output,
    rows_of_parquet,
)
from pipelines.backfill.places import OutputError, Place, PlaceError, S3Access, place_at
from storage.objects import ObjectNotFoundError
from storage.types import StageStatus
from tests.pipelines.backfill.backfill_outcomes import completed, failed, sound_only
from tests.storage.s3_server import fresh_store, s3_endpoint
from tests.tables import every

SETTINGS = {"profile": "packaged"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_endpoint() as address:
        yield address


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where an output may lie."""
    if request.param == "folder":
        return place_at(str(tmp_path / "out"), S3Access())
    bucket = fresh_store(request.getfixturevalue("endpoint")).place
    access = S3Access(
        bucket.endpoint_url, bucket.region, bucket.access_key_id, bucket.secret_access_key
    )
    return place_at(f"s3://{bucket.bucket}/some/prefix", access)


def rows_at(place: Place, table: str) -> list[dict[str, Any]]:
    """What a reader of all Parquet files of a table sees."""
    return [row for name in place.names(table) for row in rows_of_parquet(place.read_bytes(name))]


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
class KilledPlace:
    """A place whose process dies at a certain write."""

    place: Place
    writes_left: list[None]

    def write_bytes(self, name: str, data: bytes) -> None:
        if not self.writes_left:
            raise KilledError(name)
        self.writes_left.pop()
        self.place.write_bytes(name, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)


def dying_after(output: Output, writes: int) -> Output:
    """The output in the hands of a process that dies at the write after so many."""
    place: Any = KilledPlace(output.place, [None] * writes)
    return replace(output, place=place, parts=set(output.parts))


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


def test_a_folder_is_locked(tmp_path: Path) -> None:
    place = place_at(str(tmp_path), S3Access())
    with place.locked(), pytest.raises(PlaceError, match="Another backfill"), place.locked():
        pass
    with place.locked():
        pass


def test_an_output_holds_results_of_one_kind(place: Place) -> None:
    first = begin_output(place, SETTINGS)
    assert begin_output(place, SETTINGS).id == first.id
    with pytest.raises(OutputError, match="begun with profile 'packaged', not 'gpu'"):
        begin_output(place, {"profile": "gpu"})


def test_where_nothing_was_begun_there_is_no_output(place: Place) -> None:
    with pytest.raises(OutputError, match="There is no backfill at"):
        open_output(place)
    with pytest.raises(ObjectNotFoundError):
        place.read_bytes("items/part=000001/data.parquet")


def test_outcomes_without_rows_need_no_files(place: Place) -> None:
    outcome: ItemOutcome = sound_only("quiet")
    begin_output(place, SETTINGS).commit([outcome])
    assert [*place.names("words")] == []
    assert list(open_output(place).outcomes()) == [[outcome]]
