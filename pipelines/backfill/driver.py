"""The items of a manifest through Ray Data, an item a task, and their outcomes into parts.

Tasks store outcomes; the driver alone commits them, some at a time, in order of completion.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.backfill.items import FinishedItem, ItemWork, keep_outcome_only, outcome_of
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import Output
from pipelines.execution.ray_data import ItemTask, items_as_they_come, items_dataset, task_pool
from storage.objects import ObjectStore

if TYPE_CHECKING:
    from ray.data import Dataset

_TICK_SECONDS = 0.2


class RunStoppedError(Exception):
    """The run cannot go on; what is committed stays. The message has the reason."""


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
class BackfillTally:
    """What a run has done so far. Times are those of one monotonic clock, in seconds."""

    total: int
    """Items of the manifest."""
    finished_before: int
    """Of these, by earlier runs."""
    started_seconds: float
    done: int = 0
    """By this run, failed ones included."""
    failed: int = 0
    media_seconds: float = 0.0
    """Of the items of this run."""

    @property
    def left(self) -> int:
        """Items that are not finished."""
        return self.total - self.finished_before - self.done

    def add(self, *, failed: bool, media_seconds: float) -> None:
        """Count an item of this run."""
        self.done += 1
        self.failed += failed
        self.media_seconds += media_seconds

    def seconds_left(self, now_seconds: float) -> float | None:
        """At the pace of this run so far; None before there is one."""
        if self.done == 0:
            return None
        return (now_seconds - self.started_seconds) / self.done * self.left

    def line(self, now_seconds: float) -> str:
        """Return one line for people."""
        finished = self.finished_before + self.done
        share = 100 * finished // max(1, self.total)
        parts = [f"{finished} of {self.total} items ({share} %)"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        elapsed = now_seconds - self.started_seconds
        if self.done and elapsed > 0:
            parts.append(f"{60 * self.done / elapsed:.1f} items a minute")
            pace = self.media_seconds / elapsed
            parts.append(f"{spell_seconds(self.media_seconds)} of media at {pace:.1f}x")
        left_seconds = self.seconds_left(now_seconds)
        if self.left and left_seconds is not None:
            parts.append(f"about {spell_seconds(left_seconds)} left")
        return ", ".join(parts)


def spell_seconds(seconds: float) -> str:
    """Return a length of time in its two largest units."""
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
    tally: BackfillTally
    pacing: Pacing
    folders: list[str] = field(default_factory=list)
    first_seconds: float = 0.0

    def take(self, item: FinishedItem, now_seconds: float) -> None:
        if item.failure:
            raise RunStoppedError(f"The output is away: {item.failure}")
        if not self.folders:
            self.first_seconds = now_seconds
        keep_outcome_only(self.store, item.folder)
        self.folders.append(item.folder)
        self.tally.add(failed=item.failed, media_seconds=item.media_seconds)

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
    tally: BackfillTally,
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
    with contextlib.closing(_finished(_dataset(items, work, pacing))) as finished:
        try:
            for item in finished:
                if is_stopped():
                    raise RunStoppedError("Interrupted.")
                now = clock()
                if item is not None:
                    committer.take(item, now)
                committer.commit_if_due(now)
                if now - reported_seconds >= pacing.progress_seconds:
                    reported_seconds = now
                    report(tally.line(now))
        finally:
            committer.commit()
    if tally.left:
        raise RunStoppedError(f"{tally.left} items were not finished.")


def _finished(dataset: Dataset) -> Generator[FinishedItem | None, None, None]:
    """Yield the items as they come, None after each moment without one. Raises RunStoppedError."""
    with contextlib.closing(items_as_they_come(dataset, _TICK_SECONDS)) as done:
        try:
            for each in done:
                yield None if each is None else each[1]
        except Exception as error:
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RunStoppedError(f"Ray ended the run: {first_line}") from error


def _dataset(items: Sequence[Item], work: ItemWork, pacing: Pacing) -> Dataset:
    """1:1, a task an item."""
    import ray
    from ray.data import ActorPoolStrategy

    dataset = items_dataset(items)
    if pacing.gpus_an_item > 0:
        gpus = ray.cluster_resources().get("GPU", 0.0)
        most = pacing.concurrency or int(gpus / pacing.gpus_an_item)
        return dataset.map(
            ItemTask,
            fn_constructor_args=(work,),
            compute=ActorPoolStrategy(min_size=1, max_size=max(1, min(most, len(items)))),
            num_cpus=pacing.cpus_an_item,
            num_gpus=pacing.gpus_an_item,
        )
    return dataset.map(
        ItemTask(work), compute=task_pool(items, pacing.concurrency), num_cpus=pacing.cpus_an_item
    )
