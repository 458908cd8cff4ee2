"""The items of a manifest through Ray Data, an item a task, and their outcomes into parts.

Tasks store outcomes; the driver alone commits them, some at a time, in order of completion.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.backfill.items import ItemWork, keep_outcome_only, outcome_of
from pipelines.backfill.outcome import Item
from pipelines.backfill.output import Output
from pipelines.codec import encode
from pipelines.execution.chain import Row
from pipelines.execution.ray_data import rows_as_they_come, rows_dataset
from storage.objects import ObjectStore

if TYPE_CHECKING:
    from ray.data import Dataset

_TICK_SECONDS = 0.2


class RunStoppedError(Exception):
    """The run cannot go on; what is committed stays. The message says why."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """How many items at once, and when parts and lines of progress are written."""

    concurrency: int | None = None
    """Most items under way; None for as many as the cluster's CPUs and GPUs carry."""
    cpus_an_item: float = 1.0
    gpus_an_item: float = 0.0
    """With a GPU, workers stay from item to item, so that models are loaded once."""
    part_items: int = 50
    part_seconds: float = 30.0
    """A part is committed with so many items, or so long after the first of them was ready."""
    progress_seconds: float = 10.0


@dataclass(slots=True)
class Tally:
    """What a run has done so far. Times are those of one monotonic clock, in seconds."""

    total: int
    """Items of the manifest."""
    finished_before: int
    """Of these, by earlier runs."""
    started_seconds: float
    done: int = 0
    """By this run, failed ones included."""
    failed: int = 0
    footage_seconds: float = 0.0
    """Of the items of this run."""

    @property
    def left(self) -> int:
        """Items that are not finished."""
        return self.total - self.finished_before - self.done

    def add(self, *, failed: bool, footage_seconds: float) -> None:
        """Count an item of this run."""
        self.done += 1
        self.failed += failed
        self.footage_seconds += footage_seconds

    def seconds_left(self, now_seconds: float) -> float | None:
        """At the pace of this run so far; None before there is one."""
        if self.done == 0:
            return None
        return (now_seconds - self.started_seconds) / self.done * self.left

    def line(self, now_seconds: float) -> str:
        """One line for people."""
        finished = self.finished_before + self.done
        share = 100 * finished // max(1, self.total)
        parts = [f"{finished} of {self.total} items ({share} %)"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        elapsed = now_seconds - self.started_seconds
        if self.done and elapsed > 0:
            parts.append(f"{60 * self.done / elapsed:.1f} items a minute")
            pace = self.footage_seconds / elapsed
            parts.append(f"{spell_seconds(self.footage_seconds)} of footage at {pace:.1f}x")
        left_seconds = self.seconds_left(now_seconds)
        if self.left and left_seconds is not None:
            parts.append(f"about {spell_seconds(left_seconds)} left")
        return ", ".join(parts)


def spell_seconds(seconds: float) -> str:
    """A length of time in the two units that say most."""
    whole = round(seconds)
    for unit, name, finer, finer_name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // finer} {finer_name}"
    return f"{whole} s"


@dataclass(slots=True)
class _Committer:
    """Gathers finished items and commits them to the output."""

    output: Output
    store: ObjectStore
    tally: Tally
    pacing: Pacing
    folders: list[str] = field(default_factory=list)
    first_seconds: float = 0.0

    def take(self, row: Row, now_seconds: float) -> None:
        if not self.folders:
            self.first_seconds = now_seconds
        keep_outcome_only(self.store, row["folder"])
        self.folders.append(row["folder"])
        self.tally.add(failed=row["failed"], footage_seconds=row["footage_seconds"])

    def commit_if_due(self, now_seconds: float) -> None:
        full = len(self.folders) >= self.pacing.part_items
        waited = now_seconds - self.first_seconds >= self.pacing.part_seconds
        if full or (self.folders and waited):
            self.commit()

    def commit(self) -> None:
        if not self.folders:
            return
        self.output.commit([outcome_of(self.store, folder) for folder in self.folders])
        for folder in self.folders:
            self.store.delete_prefix(folder)
        self.folders = []


def run_items(
    items: Sequence[Item],
    work: ItemWork,
    output: Output,
    tally: Tally,
    *,
    pacing: Pacing,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Work on all ``items`` and commit their outcomes; ``report`` takes lines of progress.

    Raises OutputError, and RunStoppedError also soon after ``is_stopped``; what is
    ready is committed first.
    """
    committer = _Committer(output, work.out.work_store(), tally, pacing)
    reported_seconds = clock()
    with contextlib.closing(_finished(_dataset(items, work, pacing))) as rows:
        try:
            for row in rows:
                if is_stopped():
                    raise RunStoppedError("Interrupted.")
                now = clock()
                if row is not None:
                    committer.take(_successful(row), now)
                committer.commit_if_due(now)
                if now - reported_seconds >= pacing.progress_seconds:
                    reported_seconds = now
                    report(tally.line(now))
        finally:
            committer.commit()
    if tally.left:
        raise RunStoppedError(f"{tally.left} items were not finished.")


def _finished(dataset: Dataset) -> Generator[Row | None, None, None]:
    """The rows as they come, None after each moment without one. Raises RunStoppedError."""
    with contextlib.closing(rows_as_they_come(dataset, _TICK_SECONDS)) as rows:
        try:
            yield from rows
        except Exception as error:
            raise RunStoppedError(f"Ray ended the run: {_first_line(error)}") from error


def _successful(row: Row) -> Row:
    if row["failure"]:
        raise RunStoppedError(f"The output is away: {row['failure']}")
    return row


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _dataset(items: Sequence[Item], work: ItemWork, pacing: Pacing) -> Dataset:
    """1:1, a task an item. Its row is the item as JSON, so that all rows are of one type."""
    from ray.data import ActorPoolStrategy, TaskPoolStrategy

    rows = [{"item": encode(item).decode()} for item in items]
    dataset = rows_dataset(rows)
    if pacing.gpus_an_item > 0:
        most = pacing.concurrency or _most_on_gpus(pacing)
        return dataset.map(
            _KeptWorker,
            fn_constructor_args=(work,),
            compute=ActorPoolStrategy(min_size=1, max_size=max(1, min(most, len(rows)))),
            num_cpus=pacing.cpus_an_item,
            num_gpus=pacing.gpus_an_item,
        )
    return dataset.map(
        work,
        compute=TaskPoolStrategy(size=pacing.concurrency),
        num_cpus=pacing.cpus_an_item,
    )


class _KeptWorker:
    """An actor's work: its process stays, and with it the models."""

    def __init__(self, work: ItemWork) -> None:
        self._work = work

    def __call__(self, row: Row) -> Row:
        return self._work(row)


def _most_on_gpus(pacing: Pacing) -> int:
    import ray

    gpus = ray.cluster_resources().get("GPU", 0.0)
    return max(1, int(gpus / pacing.gpus_an_item))
