"""The items of a manifest through Ray Data, and their outcomes into parts.

Operators store outcomes; the driver alone commits them, some at a time, in order of completion.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pipelines.backfill.items import OUTCOME_NAME, FinishedItem, ItemWork, outcome_of
from pipelines.backfill.manifest import Item
from pipelines.backfill.operators import ItemOperator, Unit, operators_of
from pipelines.backfill.output import Output
from pipelines.execution import ray_data
from storage.objects import ObjectStore

if TYPE_CHECKING:
    from ray.data import Dataset

_TICK_SECONDS = 0.2
MOST_GPUS = 8


class RunStoppedError(Exception):
    """The run cannot go on; what is committed stays. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """How much at once, and when parts and lines of progress are written: each field is an option
    of the command, with its help."""

    concurrency: Annotated[
        int | None, "most items under way; default: as many as --work-bytes hold"
    ] = None
    work_bytes: Annotated[
        int,
        "of the sources of items under way; the output's place holds about twice as much beside "
        "the results (default: 64 GiB)",
    ] = 64 << 30
    cpus_an_item: Annotated[float, "of a task, and of a process with models (default: 1)"] = 1.0
    gpus: Annotated[
        int | None,
        "most that models are on, also of nodes that come up later; with it, auto does not look "
        "for one (default: 8)",
    ] = None
    part_items: Annotated[int, "items of a part, at most; default: 50"] = 50
    part_seconds: Annotated[float, "a part's longest wait; default: 30"] = 30.0
    """Since the first of its items was ready."""
    progress_seconds: Annotated[float, "between lines; default: 10"] = 10.0

    @property
    def most_gpus(self) -> int:
        """Most that models are on, also of those that the cluster will have."""
        return MOST_GPUS if self.gpus is None else max(1, self.gpus)


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
        key = f"{item.folder}/{OUTCOME_NAME}"
        keys = [*self.store.list_keys(item.folder)]
        if key not in keys or item.folder in self.folders:
            return  # a row that was worked on again: the item is committed, or about to be
        if not self.folders:
            self.first_seconds = now_seconds
        self.store.delete_keys(each for each in keys if each != key)
        self.folders.append(item.folder)
        ray_data.Admission.under_way.end(item.source_bytes)
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
    committer = _Committer(output, work.out.work, tally, pacing)
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
    with contextlib.closing(ray_data.items_as_they_come(dataset, _TICK_SECONDS)) as done:
        try:
            for each in done:
                yield None if each is None else each[1]
        except Exception as error:
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RunStoppedError(f"Ray ended the run: {first_line}") from error


def _dataset(items: Sequence[Item], work: ItemWork, pacing: Pacing) -> Dataset:
    """1:1 an item, through the operators of the profile."""
    ray_data.Admission.under_way = ray_data.UnderWay(pacing.concurrency, pacing.work_bytes)
    operators = operators_of(work.profile)
    rows = []
    for number, each in enumerate(operators):
        gpus = each.gpus(work.profile)
        pool = ray_data.Pool(gpus, each.rows, pacing.most_gpus) if gpus else None
        threads = each.rows if gpus else 1
        opened = functools.partial(ItemOperator, work, operators, number, threads=threads)
        rows.append(ray_data.StreamOperator(each.name, opened, pacing.cpus_an_item, pool))
    return ray_data.streamed([Unit(item) for item in items], rows)
