"""Chains whose tasks bring no row: ended by who waits for them, or by what kills their workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipelines.awaited_rows import rows_as_they_come
from pipelines.chains import Row
from pipelines.contracts import StageCode, StageError, StageStoppedError
from pipelines.mapping import Mapped, map_on_ray, rows_dataset

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(180)]


class Patience:
    """A Control that says stop, or that it took too long, once ``seconds`` are over.

    They are counted from the moment that ``begun`` is there, where that is given.
    """

    def __init__(self, seconds: float, error: Exception, begun: Path | None = None) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds if begun is None else None
        self.begun = begun
        self.error = error

    def check(self) -> None:
        if self.until is None and self.begun is not None and self.begun.exists():
            self.until = time.monotonic() + self.seconds
        if self.until is not None and time.monotonic() > self.until:
            raise self.error

    def progress(self, fraction: float) -> None:
        """Nobody wants to know."""


def killing(begun: Path) -> Mapped:
    def run(row: Row) -> Row:
        (begun / f"{row['index']}-{time.monotonic_ns()}").touch()
        if row["index"] == 1:
            os._exit(1)
        return row

    return Mapped(run, "Killing", StageCode.VISION_FAILED)


def endless(alive: Path, *, deaf: bool = False) -> Mapped:
    def run(row: Row) -> Row:
        while True:
            try:
                alive.write_text(str(time.monotonic()))
                time.sleep(0.05)
            except KeyboardInterrupt:
                if not deaf:
                    raise

    return Mapped(run, "Waiting", StageCode.VISION_FAILED)


def test_what_kills_its_worker_each_time_ends_the_chain(tmp_path: Path) -> None:
    rows: list[Row] = [{"index": 0}, {"index": 1}]
    with pytest.raises(Exception, match=r"(?i)worker|crashed|died"):
        map_on_ray(rows, [killing(tmp_path)], Patience(150, AssertionError("it never ended")))
    attempts = [path for path in tmp_path.iterdir() if path.name.startswith("1-")]
    assert len(attempts) == 4


@pytest.mark.parametrize("deaf", [False, True], ids=["hears", "is deaf"])
@pytest.mark.parametrize(
    "error",
    [StageStoppedError("job"), StageError(StageCode.VISION_FAILED, "The stage took too long.")],
    ids=["stopped", "took too long"],
)
def test_a_task_that_never_ends_is_ended(tmp_path: Path, error: Exception, deaf: bool) -> None:
    alive = tmp_path / "alive"
    step = endless(alive, deaf=deaf)
    with pytest.raises(type(error)):
        map_on_ray([{"index": 0}], [step], Patience(0.5, error, alive))
    for _ in range(20):
        before = alive.read_text()
        time.sleep(0.5)
        if alive.read_text() == before:
            return
    raise AssertionError("the task goes on")


def test_tasks_for_which_there_is_no_room_are_given_up(tmp_path: Path) -> None:
    step = Mapped(endless(tmp_path / "alive").step, "Waiting", StageCode.VISION_FAILED, 1000.0)
    with pytest.raises(StageStoppedError):
        map_on_ray([{"index": 0}], [step], Patience(3, StageStoppedError("job")))
    assert not (tmp_path / "alive").exists()


def test_another_chain_runs_after_one_that_was_given_up(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    step, patience = endless(alive), Patience(0.5, StageStoppedError("job"), alive)
    with pytest.raises(StageStoppedError):
        map_on_ray([{"index": 0}], [step], patience)
    doubled = Mapped(lambda row: {"n": row["n"] * 2}, "Doubling", StageCode.VISION_FAILED)
    rows: list[Row] = [{"n": n} for n in range(4)]
    done = map_on_ray(rows, [doubled], Patience(120, AssertionError("it never ended")))
    assert sorted(row["n"] for row in done) == [0, 2, 4, 6]


def test_what_runs_a_dataset_is_not_kept_by_it() -> None:
    dataset = rows_dataset([{"n": 1}, {"n": 2}]).map(lambda row: row)
    rows = [row for row in rows_as_they_come(dataset, 0.2) if row is not None]
    assert sorted(row["n"] for row in rows) == [1, 2]
    assert "_create_executor" not in vars(dataset)
