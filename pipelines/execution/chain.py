"""Steps over items: every item in gives an item out, or the stage fails by name.

A medium may have the cluster to itself, an item a task (``ray_data.map_on_ray``). Of thousands at
once each is a task, and its items stay in it (``map_here``). Steps, items and failures are the same
either way. How the work of a stage divides is expected from the media's shape alone.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from models.contracts import DeviceMemoryError
from pipelines.types import AudioTrack, StageCode, StageError, StageStoppedError, VideoSource
from storage.objects import ObjectStore, ObjectStoreUnavailableError, is_outage

In = TypeVar("In")
Out = TypeVar("Out")

_ATTEMPTS = 2
"""How often a step is tried on one item in one worker before its failure is final."""


class Control(Protocol):
    """How a running pipeline is stopped, and where it reports its progress."""

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


@dataclass(frozen=True, slots=True)
class ControlSpan:
    """A Control for a part of the work: it moves the whole's progress from ``start`` to ``end``."""

    control: Control
    start: float
    end: float

    def check(self) -> None:
        self.control.check()

    def progress(self, fraction: float) -> None:
        self.control.progress(self.start + fraction * (self.end - self.start))


def parts_of(control: Control, weights: Sequence[float]) -> list[ControlSpan]:
    """Return a Control for each of the parts that the work has, one after the other, by their
    weights."""
    whole = sum(weights) or 1.0
    ends = [end / whole for end in itertools.accumulate(weights, initial=0.0)]
    return [ControlSpan(control, start, end) for start, end in itertools.pairwise(ends)]


_STOP_NAME = "stop"


def is_stop_marker(key: str) -> bool:
    """Return whether an object of a workspace stops tasks."""
    return key.rsplit("/", 1)[-1].startswith(_STOP_NAME)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where an analysis's intermediate objects live, with the marker that stops its tasks.

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

    def check(self) -> None:
        """Raise StageStoppedError if a stop was requested; long steps call it once a second."""
        if self.store.exists(self.key(self.stop_name)):
            raise StageStoppedError(self.prefix)


_CHECK_SECONDS = 1.0


@dataclass(slots=True)
class WorkspaceControl:
    """A Control inside a task: the stop marker stops it; its progress is estimated outside."""

    workspace: Workspace
    _due_seconds: float = 0.0

    def check(self) -> None:
        if time.monotonic() >= self._due_seconds:
            self._due_seconds = time.monotonic() + _CHECK_SECONDS
            self.workspace.check()

    def progress(self, fraction: float) -> None:
        return


@dataclass(frozen=True, slots=True)
class Resources:
    """What a task of a step takes up, where it is one; ``why`` it is not a processor's time."""

    cpus: float = 1.0
    concurrency: int | None = None
    """Most of its tasks at a time; None for as many as there are CPUs for."""
    why: str = "It computes in one thread all the time."
    gpus: float = 0.0
    """Share of a GPU."""


@dataclass(frozen=True, kw_only=True)
class Step(ABC, Generic[In, Out]):
    """1:1, from an item to an item. Subclasses are frozen dataclasses of all that ``process`` uses.

    Picklable, as its items are: frozen dataclasses that name what is large by its key in the object
    store. ``process`` may be called again for the same item, also in another worker.
    """

    name: ClassVar[str]
    """What its failures are called."""
    code: ClassVar[StageCode]
    """Of failures that name none of their own."""
    version: ClassVar[int] = 1
    """Raised whenever the same item would be stored differently: part of the names of outputs."""
    resources: Resources = Resources()

    @abstractmethod
    def process(self, item: In) -> Out:
        """Return the item that comes out. Raises StageError and StageStoppedError."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What comes out of a step that failed, in place of an item.

    An exception inside a Ray Data chain would take the other items with it and arrive as text; as
    an item it keeps its code.
    """

    error: Exception


def attempt(step: Step[In, Out], item: In) -> Out | Failure:
    """``step`` on ``item``; an error of no kind of its own is tried once more.

    What the step freed is given back after each item: the workers of a service live for weeks.
    """
    try:
        for _ in range(_ATTEMPTS):
            try:
                return step.process(item)
            except (StageError, StageStoppedError) as error:
                return Failure(error)
            except Exception as error:
                seen = getattr(error, "cause", error)  # Ray's own text has the traceback
                message = f"{step.name} failed: {type(seen).__name__}: {seen}"
                failed: Exception = StageError(step.code, message)
                if is_outage(error) or isinstance(error, DeviceMemoryError):
                    failed = ObjectStoreUnavailableError(message)
        return Failure(failed)
    finally:
        release_free_memory()


def collected(
    done: Iterable[tuple[int, Out | Failure] | None],
    control: Control,
    *,
    count: int,
    concurrency: int = 1,
) -> list[Out]:
    """Return the items of ``done`` in the order of their positions, with progress as they come.

    None stands for a moment in which none came. Raises StageStoppedError if a step met the stop
    marker or ``control`` stops the work, StageError with the failed step's code, StageError with
    PROCESSING_FAILED if items went missing, and ObjectStoreUnavailableError if the store was away
    for a step, or a disk full: nobody's fault, worth another try later.
    """
    control.check()
    pace = Pace(count, time.monotonic(), concurrency)
    items: dict[int, Out] = {}
    for each in done:
        control.check()
        if each is not None:
            position, item = each
            if isinstance(item, Failure):
                raise item.error
            items[position] = item
            pace.row_ended(time.monotonic())
        control.progress(pace.fraction(time.monotonic()))
    if len(items) != count:
        message = f"{count} shards went in, {len(items)} came out."
        raise StageError(StageCode.PROCESSING_FAILED, message)
    return [items[position] for position in sorted(items)]


class Mapper(Protocol):
    """Runs a step over items; gives what comes out in their order. Raises as ``collected`` does."""

    def __call__(self, items: Sequence[In], step: Step[In, Out], control: Control) -> list[Out]: ...


def map_here(items: Sequence[In], step: Step[In, Out], control: Control) -> list[Out]:
    """In this process and thread, an item after the other, in order."""
    done = enumerate(map(functools.partial(attempt, step), items))
    return collected(done, control, count=len(items))


def map_in_threads(threads: int) -> Mapper:
    """Return a mapper that works on so many items at a time in this process."""

    def mapped(items: Sequence[In], step: Step[In, Out], control: Control) -> list[Out]:
        with ThreadPoolExecutor(threads) as pool:
            done = enumerate(pool.map(functools.partial(attempt, step), items))
            return collected(done, control, count=len(items), concurrency=threads)

    return mapped


_FIRST_ROW_SECONDS = 10.0
"""What a row is taken to need before any has ended."""


@dataclass(slots=True)
class Pace:
    """How far ``total`` rows are, 0 to 1, by what ended and by the time since. Never falls.

    ``concurrency`` rows are under way: when one ends, the others are taken to be halfway, and all
    of them may be counted before they end.
    """

    total: int
    started_seconds: float
    concurrency: int = 1
    done: int = 0
    _last_seconds: float = 0.0
    _highest: float = 0.0

    def row_ended(self, now_seconds: float) -> None:
        """Another row is done."""
        self.done += 1
        self._last_seconds = now_seconds - self.started_seconds

    def fraction(self, now_seconds: float) -> float:
        """0 to 1; 1 only once every row has ended."""
        if self.done >= self.total:
            return 1.0
        elapsed = now_seconds - self.started_seconds
        halfway = min(self.concurrency - 1, self.total - self.done) / 2 if self.done else 0.0
        worked = self.done + halfway
        row_seconds = self._last_seconds / worked if self.done else _FIRST_ROW_SECONDS
        waited = halfway + (elapsed - self._last_seconds) / max(row_seconds, 1e-3)
        # Straight at first, then ever slower towards the bound: it moves however long a row takes.
        bound = 0.98 * min(self.concurrency + 1, self.total - self.done)
        ahead = bound * (1 - math.exp(-max(0.0, waited) / bound))
        self._highest = max(self._highest, (self.done + ahead) / self.total)
        return self._highest


def release_free_memory() -> None:
    """Give what the C library keeps of freed memory back to the system, where it can (glibc).

    It keeps pages that are free among others that are not, more of them the longer
    a process works on pieces of changing size. Other Python threads go on meanwhile.
    """
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


_MALLOC_TRIM: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""See malloc_trim(3)."""

_FRAME_SECONDS, _PIXEL_SECONDS = 0.0001, 1.3e-9
_CUTS_FRAME_SECONDS = 0.0002
_DESCRIBED_SECOND_SECONDS = 0.057
"""Decoding and measuring a frame, beside its pixels; searching it for cuts; describing the scenes
of a second of video. Of one core, by ``benchmarks.vision_speed --shares`` on five minutes
of 640 x 360 (2.7, 1.4 and 15.3 s) and one of 1080p (4.1, 0.9 and 3.8 s)."""
_POLICY_SHARE, _SECTIONS_SHARE = 1 / 6, 9 / 10
"""Of what is left after the cuts, and of what is left then."""
_TRANSCRIBED_SECOND_SECONDS = 0.14
"""A second of speech with the packaged models, of one core, by ``benchmarks.transcript``."""


def vision_work(video: VideoSource, *, policy: bool = False) -> tuple[float, ...]:
    """Of reading, cutting, checking, looking at sections and describing the rest, with the packaged
    models.

    Reading follows frames and pixels, all after the cuts the length.
    """
    reading = cutting = rest = 0.0
    for part in video.all_parts:
        seconds = (part.end_ms - part.start_ms) / 1000
        frames = seconds * part.stream.frame_rate
        pixels = part.stream.width * part.stream.height
        reading += frames * (_FRAME_SECONDS + pixels * _PIXEL_SECONDS)
        cutting += frames * _CUTS_FRAME_SECONDS
        rest += seconds * _DESCRIBED_SECOND_SECONDS
    checking = rest * _POLICY_SHARE if policy else 0.0
    looking = (rest - checking) * _SECTIONS_SHARE
    return reading, cutting, checking, looking, rest - checking - looking


def transcript_work(tracks: Iterable[AudioTrack]) -> float:
    """Of transcribing with the packaged models, if all of it is speech."""
    return sum(track.duration_seconds for track in tracks) * _TRANSCRIBED_SECOND_SECONDS
