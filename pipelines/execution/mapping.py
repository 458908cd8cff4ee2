"""Where the rows of a chain are worked on: as Ray Data tasks, or one after the other right here.

A job has the cluster to itself, a row a task. A backfill has thousands of items at once: there
an item is a task, and its rows stay in it. Steps, rows and failures are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipelines.execution.chain import Control, Row, Step, collected, guarded, run_chain
from pipelines.execution.datasets import let_go_of_datasets
from pipelines.types import StageCode

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True, slots=True)
class Mapped:
    """A step of a chain, 1:1. ``name`` is what its failures are called."""

    step: Step
    name: str
    code: StageCode
    num_cpus: float = 1.0
    """Logical CPUs of its task, where it is one."""
    at_once: int | None = None
    """Most of its tasks at a time; None for as many as there are CPUs for."""


class Mapper(Protocol):
    """Runs rows through steps. Raises as ``pipelines.execution.chain.run_chain`` does."""

    def __call__(
        self,
        rows: Sequence[Row],
        steps: Sequence[Mapped],
        control: Control,
        *,
        progress_from: float = 0.0,
        progress_to: float = 1.0,
    ) -> list[Row]: ...


def map_on_ray(
    rows: Sequence[Row],
    steps: Sequence[Mapped],
    control: Control,
    *,
    progress_from: float = 0.0,
    progress_to: float = 1.0,
) -> list[Row]:
    """A Ray Data chain, a task a row and step; rows in order of completion."""
    if not rows:
        return []
    from ray.data import TaskPoolStrategy

    dataset = rows_dataset(rows)
    for each in steps:
        step = guarded(each.step, name=each.name, code=each.code)
        compute = TaskPoolStrategy(size=each.at_once)
        dataset = dataset.map(step, compute=compute, num_cpus=each.num_cpus)
    return run_chain(
        dataset,
        control,
        rows_expected=len(rows),
        progress_from=progress_from,
        progress_to=progress_to,
        at_once=_at_once(steps),
    )


def _at_once(steps: Sequence[Mapped]) -> int:
    """About how many rows will be under way at a time, if nothing else is."""
    import ray

    cpus = float(ray.cluster_resources().get("CPU", 1.0))
    return max(1, min(each.at_once or int(cpus / each.num_cpus) for each in steps))


def rows_dataset(rows: Sequence[Row]) -> Dataset:
    """A block a row, for tasks that take long and return little.

    Ray Data would set half of the processors aside for what comes after a step, and
    on two processors run one task after the other. Here nothing comes after it.
    """
    import ray.data

    let_go_of_datasets()
    ray.data.DataContext.get_current().op_resource_reservation_enabled = False
    return ray.data.from_items([*rows], override_num_blocks=len(rows))


def map_here(
    rows: Sequence[Row],
    steps: Sequence[Mapped],
    control: Control,
    *,
    progress_from: float = 0.0,
    progress_to: float = 1.0,
) -> list[Row]:
    """In this process and thread, a row after the other, in order."""
    return collected(
        _one_by_one(rows, steps),
        control,
        rows_expected=len(rows),
        progress_from=progress_from,
        progress_to=progress_to,
    )


def _one_by_one(rows: Iterable[Row], steps: Sequence[Mapped]) -> Iterator[Row]:
    guards = [guarded(each.step, name=each.name, code=each.code) for each in steps]
    for row in rows:
        current = row
        for step in guards:
            current = step(current)
            if "failure" in current:
                break
        yield current
