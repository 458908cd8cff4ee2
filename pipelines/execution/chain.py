"""Chains of steps over rows: every row in gives a row out, or the stage fails by name.

A job has the cluster to itself, a row a task (``ray_data.map_on_ray``). A backfill has thousands
of items at once: there an item is a task, and its rows stay in it (``map_here``). Steps, rows and
failures are the same either way.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pipelines.execution.memory import release_free_memory
from pipelines.execution.progress import paced
from pipelines.types import StageCode, StageError, StageStoppedError
from storage.objects import ObjectStore, ObjectStoreUnavailableError, is_outage

Row = dict[str, Any]
Step = Callable[[Row], Row]

_ATTEMPTS = 2
"""How often a step is tried on one row in one worker before its failure is final."""


class Control(Protocol):
    """How a running pipeline hears that it should stop, and tells how far it is."""

    def check(self) -> None:
        """Raise StageStoppedError if the work should stop."""
        ...

    def progress(self, fraction: float) -> None:
        """Report progress of this stage, 0 to 1."""
        ...


@dataclass(slots=True)
class FreeRun:
    """A Control that never stops; keeps the reported fractions (notebooks, backfill, tests)."""

    fractions: list[float] = field(default_factory=list)

    def check(self) -> None:
        return

    def progress(self, fraction: float) -> None:
        self.fractions.append(fraction)


_STOP_NAME = "stop"


def is_stop_marker(key: str) -> bool:
    """Whether an object of a workspace tells tasks to stop."""
    return key.rsplit("/", 1)[-1].startswith(_STOP_NAME)


@dataclass(frozen=True, slots=True)
class ControlSpan:
    """A Control for a part of the work: it moves the whole's progress from ``start`` to ``end``."""

    control: Control
    start: float
    end: float

    @classmethod
    def of_piece(cls, control: Control, position: int, pieces: int) -> ControlSpan:
        """For one of several equal pieces."""
        return cls(control, position / pieces, (position + 1) / pieces)

    def check(self) -> None:
        self.control.check()

    def progress(self, fraction: float) -> None:
        self.control.progress(self.start + fraction * (self.end - self.start))


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a job's intermediate objects live, and how its tasks hear that they should stop.

    Picklable: it travels to every task. The stop marker is an object, so that it
    reaches tasks on every node and outlives whoever set it.
    """

    store: ObjectStore
    prefix: str
    stop_name: str = _STOP_NAME
    """Name of the marker: one a lease, so that a lost runner's stop is not its successor's."""

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def request_stop(self) -> None:
        self.store.write_bytes(self.key(self.stop_name), b"")

    def clear_stop(self) -> None:
        self.store.delete(self.key(self.stop_name))

    def check(self) -> None:
        """Raise StageStoppedError if a stop was requested; long steps ask about once a second."""
        if self.store.exists(self.key(self.stop_name)):
            raise StageStoppedError(self.prefix)


def guarded(step: Step, *, name: str, code: StageCode) -> Step:
    """1:1. ``step`` with its failures turned into rows: ``{"failure": {...}}``.

    An exception inside a Ray Data chain would take the other rows with it and
    arrive as text; as a row it keeps its code, and names the shard. What the step
    freed is given back after each row: the workers of a service live for weeks.
    """

    def run(row: Row) -> Row:
        try:
            return attempts(row)
        finally:
            release_free_memory()

    def attempts(row: Row) -> Row:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return step(row)
            except StageStoppedError:
                return {"failure": {"kind": "stopped", "code": str(code), "message": name}}
            except StageError as error:
                return {
                    "failure": {"kind": "stage", "code": str(error.code), "message": error.message}
                }
            except Exception as error:
                if attempt == _ATTEMPTS:
                    kind = "store" if is_outage(error) else "stage"
                    message = f"{name} failed: {type(error).__name__}: {error}"
                    return {"failure": {"kind": kind, "code": str(code), "message": message}}
        raise AssertionError("unreachable")

    return run


def collected(
    done: Iterable[Row],
    control: Control,
    *,
    rows_expected: int,
    concurrency: int = 1,
) -> list[Row]:
    """The rows of ``done`` as they come, with progress.

    Raises StageStoppedError if a step met the stop marker or ``control`` stops the work,
    StageError with the failed step's code, StageError with PROCESSING_FAILED if rows went
    missing, and ObjectStoreUnavailableError if the store was away for a step, or a disk full:
    nobody's fault, worth another try later.
    """
    control.check()
    rows: list[Row] = []
    with paced(control.progress, rows_expected, concurrency=concurrency) as progress:
        for row in done:
            control.check()
            _raise_failure(row)
            rows.append(row)
            progress.row_ended()
    if len(rows) != rows_expected:
        message = f"{rows_expected} shards went in, {len(rows)} came out."
        raise StageError(StageCode.PROCESSING_FAILED, message)
    return rows


def _raise_failure(row: Row) -> None:
    failure = row.get("failure")
    if failure is None:
        return
    if failure["kind"] == "stopped":
        raise StageStoppedError(failure["message"])
    if failure["kind"] == "store":
        raise ObjectStoreUnavailableError(failure["message"])
    raise StageError(StageCode(failure["code"]), failure["message"])


@dataclass(frozen=True, slots=True)
class Mapped:
    """A step of a chain, 1:1. ``name`` is what its failures are called."""

    step: Step
    name: str
    code: StageCode
    num_cpus: float = 1.0
    """Logical CPUs of its task, where it is one."""
    concurrency: int | None = None
    """Most of its tasks at a time; None for as many as there are CPUs for."""


class Mapper(Protocol):
    """Runs rows through steps. Raises as ``collected`` does."""

    def __call__(
        self, rows: Sequence[Row], steps: Sequence[Mapped], control: Control
    ) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps over rows, each 1:1, top to bottom; ``code`` is that of their failures.

    ::

        Chain(StageCode.TRANSCRIPT_FAILED)
        .map("Transcription", transcribe, num_cpus=0.25)
        .map("Voice embedding", embed, num_cpus=0.25)
        .run(rows, control, on=map_on_ray)
    """

    code: StageCode
    steps: tuple[Mapped, ...] = ()

    def map(
        self, name: str, step: Step, *, num_cpus: float = 1.0, concurrency: int | None = None
    ) -> Chain:
        """The chain with one more step, as ``Mapped`` describes it."""
        added = Mapped(step, name, self.code, num_cpus, concurrency)
        return replace(self, steps=(*self.steps, added))

    def run(self, rows: Sequence[Row], control: Control, *, on: Mapper) -> list[Row]:
        """The rows that come out, in order of completion. Raises as ``collected`` does."""
        return on(rows, self.steps, control)


def map_here(rows: Sequence[Row], steps: Sequence[Mapped], control: Control) -> list[Row]:
    """In this process and thread, a row after the other, in order."""
    return collected(_one_by_one(rows, steps), control, rows_expected=len(rows))


def _one_by_one(rows: Iterable[Row], steps: Sequence[Mapped]) -> Iterator[Row]:
    guards = [guarded(each.step, name=each.name, code=each.code) for each in steps]
    for row in rows:
        current = row
        for step in guards:
            current = step(current)
            if "failure" in current:
                break
        yield current


def timed(seconds: dict[str, float], name: str) -> _Timer:
    """Add the wall time of a ``with`` block to ``seconds[name]``."""
    return _Timer(seconds, name)


@dataclass(slots=True)
class _Timer:
    seconds: dict[str, float]
    name: str
    _start: float = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = (
            self.seconds.get(self.name, 0.0) + time.perf_counter() - self._start
        )


def derived_name(index: int, inputs: dict[str, Any]) -> str:
    """``00012-`` and 20 hex digits of a hash over ``inputs`` (JSON values)."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return f"{index:05d}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
