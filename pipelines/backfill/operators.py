"""The operators of a backfill, in the order in which rows pass them, and how an item gets along.

An item's programs are the stages that jobs run, the same functions. Where one comes to a step of a
later operator, or calls a model that it holds, it stops and gives a row for each piece of the step;
the piece that ends last goes on with the program from its start, over what is stored by then. So
rows of thousands of items are between any two operators, and a model's batches are of many files.
A row for another operator passes through.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn, TypeAlias, cast

from models.backends import CARD_BYTES
from models.provider import GatheredModels, LocalModels, ModelProvider
from models.registry import REGISTRY
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    DETECT_SOUNDS,
    DETECT_SPEECH,
    EMBED_FACES,
    EMBED_PHRASES,
    EMBED_PICTURES,
    EMBED_VOICE,
    READ_TEXT,
    SEGMENT_SPEAKERS,
    TRANSCRIBE,
    Contract,
    Task,
)
from pipelines.backfill.items import (
    INGEST,
    OUTCOME_NAME,
    FinishedItem,
    ItemRun,
    ItemWork,
    outcome_of,
    programs_of,
    stage_of,
)
from pipelines.backfill.manifest import Item
from pipelines.backfill.output import ItemOutcome
from pipelines.codec import CodecError, decode, digest, encode
from pipelines.execution.chain import (
    Control,
    Failure,
    In,
    Mapper,
    Out,
    Step,
    attempt,
    map_here,
    map_in_threads,
)
from pipelines.speech.regions import CutTrack
from pipelines.speech.speakers import EmbedVoices
from pipelines.speech.transcribe import Transcribe
from pipelines.types import IngestResult, StageCode, StageError, StageStoppedError
from pipelines.vision.cuts.selection import Found, SearchCuts
from pipelines.vision.detections import CheckPolicy
from pipelines.vision.features import ReadFrames
from pipelines.vision.scenes import DescribeScenes
from pipelines.vision.sections import LookAtScenes
from storage.objects import ObjectNotFoundError, ObjectStore, ObjectStoreUnavailableError
from storage.types import StageStatus

WORKERS_LOST = 2
"""A row whose worker died so often in one run is probably what kills them: its item fails. Of a
pool, where any row beside it may have been, it is worked on once more, alone."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Carries out ``steps``, and holds the models of ``tasks``; as tasks of Ray unless these take a
    share of a GPU, then as a pool of processes that stay, with ``rows`` at a time in each."""

    name: str
    steps: tuple[type[Step[Any, Any]], ...] = ()
    tasks: tuple[Task[Any], ...] = ()
    rows: int = 1
    is_spread: bool = True
    """Whether pieces of its first step are worth a task each where it is no pool; otherwise it is
    one with the operator before it, and they are done one after the other."""

    def gpus(self, profile: str) -> float:
        """Return the share of a GPU that a process takes."""
        rows = REGISTRY[profile]
        loaded = [rows[it] for it in {rows[it].shares or it for it in self.tasks if it in rows}]
        return round(sum(row.gpus + row.session_bytes / CARD_BYTES for row in loaded), 3)


OPERATORS = (
    Operator("ingest"),  # an item: fetch, probe, cut; it mostly waits for the source
    Operator("read", (ReadFrames, SearchCuts)),  # a segment is decoded for as long as it takes
    Operator(
        "voices",  # a shard of a track's windows, eight of them at a time; one of a short file
        (EmbedVoices, CutTrack),
        (SEGMENT_SPEAKERS, EMBED_VOICE, DETECT_SOUNDS, DETECT_SPEECH),
        rows=64,
        is_spread=False,
    ),
    # A shard is a chunk: while 32 are decoded as many others become ready.
    Operator("transcribe", (Transcribe,), (TRANSCRIBE,), rows=96),
    Operator(
        "look",  # the scenes of a segment: 64 of its frames, which are 44 MB, in memory at a time
        (CheckPolicy, LookAtScenes),
        (DETECT_OBJECTS, READ_TEXT, EMBED_FACES, EMBED_PHRASES),
        rows=24,
        is_spread=False,
    ),
    # The same scenes, at most eight at a time, the stills of which are 64 MB.
    Operator("describe", (DescribeScenes,), (DESCRIBE_SCENES, EMBED_PICTURES), 24, is_spread=False),
)
_INLINE_THREADS = 4
"""Of a row of a pool, for pieces of a step that no rows were made of."""


def operators_of(profile: str) -> tuple[Operator, ...]:
    """Return the operators of a profile: neighbours that hold no GPU are one, unless their pieces
    are worth spreading."""
    found: list[Operator] = []
    for each in OPERATORS:
        before = found[-1] if found else each
        if each.is_spread or each.gpus(profile) or before.gpus(profile):
            found.append(each)
        else:
            found[-1] = _joined_with(before, each)
    return tuple(found)


def _joined_with(one: Operator, other: Operator) -> Operator:
    return Operator(f"{one.name}+{other.name}", one.steps + other.steps, one.tasks + other.tasks)


@dataclass(frozen=True, slots=True)
class Unit:
    """A row between operators: a piece of a step, or, without one, a program that goes on there."""

    item: Item
    program: str = INGEST
    operator: int = 0
    """Its place among all."""
    wave: str = "0"
    """Names the pieces that this is one of, within the program."""
    step: Step[Any, Any] | None = None
    piece: object = None
    position: int = 0
    pieces: int = 1
    began_seconds: float = field(default_factory=time.time)
    """When the item was begun with."""


Row: TypeAlias = Unit | FinishedItem


class HandedOnError(StageStoppedError):
    """A program stops where another operator goes on: with pieces of ``step``, or as it is."""

    def __init__(
        self, operator: int, step: Step[Any, Any] | None = None, pieces: Sequence[object] = (None,)
    ) -> None:
        super().__init__(str(operator))
        self.operator, self._step, self._pieces = operator, step, pieces

    def rows(self, unit: Unit) -> list[Row]:
        """Return the rows that go on with the program of ``unit``."""
        step = None if self._step is None else _with_models(self._step, LocalModels())
        name = "" if step is None else digest(step.name)
        given = replace(
            unit,
            operator=self.operator,
            wave=f"{self.operator}{name}",
            step=step,
            pieces=len(self._pieces),
        )
        return [replace(given, piece=each, position=n) for n, each in enumerate(self._pieces)]


def _with_models(step: Step[In, Out], models: ModelProvider) -> Step[In, Out]:
    """Return the step, and those that it is made of, with the models of where it is worked on."""
    changes: dict[str, Any] = {"models": models} if hasattr(step, "models") else {}
    for each in fields(step):
        if isinstance(part := getattr(step, each.name), Step):
            changes[each.name] = _with_models(part, models)
    return replace(step, **changes)


@dataclass(frozen=True, slots=True)
class Wave:
    """The pieces of a step of an item, or the programs of one, each of which may end anywhere.

    Below ``prefix`` are ``begun/PIECE/…`` of workers that have not ended a piece, ``ended/PIECE``,
    ``failed/PIECE`` with the reason, and ``last`` with the piece that goes on.
    """

    store: ObjectStore
    prefix: str
    pieces: int

    def lost(self, piece: int) -> int:
        """Return how many workers began with the piece and never ended."""
        return sum(1 for _ in self.store.list_keys(f"{self.prefix}/begun/{piece}"))

    @contextlib.contextmanager
    def begun(self, piece: int) -> Iterator[None]:
        """Mark the piece as begun; whoever dies in the block leaves the mark."""
        folder = f"{self.prefix}/begun/{piece}"
        self.store.write_bytes(f"{folder}/{uuid.uuid4().hex}", b"")
        try:
            yield
        finally:
            self.store.delete_prefix(folder)

    def has_ended(self, piece: int) -> bool:
        return self.pieces > 1 and self.store.exists(f"{self.prefix}/ended/{piece}")

    def end(self, piece: int, failure: StageError | None = None) -> None:
        """Note that the piece has ended, and how."""
        if failure is not None:
            said = f"{failure.code}\n{failure.message}".encode()
            self.store.write_bytes(f"{self.prefix}/failed/{piece}", said)
        if self.pieces > 1:
            self.store.write_bytes(f"{self.prefix}/ended/{piece}", b"")

    def goes_on(self, piece: int) -> bool:
        """Return whether all have ended and this one goes on, which only one of them does; it
        does again where its row is worked on once more."""
        if self.pieces == 1:
            return True
        if sum(1 for _ in self.store.list_keys(f"{self.prefix}/ended")) < self.pieces:
            return False
        key, own = f"{self.prefix}/last", str(piece).encode()
        return self.store.create(key, own) or self.store.read_bytes(key) == own

    def failure(self) -> StageError | None:
        """Return that of a piece that failed."""
        for key in self.store.list_keys(f"{self.prefix}/failed"):
            code, _, message = self.store.read_bytes(key).decode().partition("\n")
            return StageError(StageCode(code), message)
        return None


_INGESTED = "ingested.json"


class ItemOperator:
    """What a process of an operator does with its rows. Safe for threads; not picklable."""

    def __init__(
        self, work: ItemWork, operators: tuple[Operator, ...], number: int, *, threads: int = 1
    ) -> None:
        self._work, self._operators, self._number = work, operators, number
        self._steps = {step: at for at, each in enumerate(operators) for step in each.steps}
        held = {task: at for at, each in enumerate(operators) for task in each.tasks}
        self._is_pool = threads > 1
        self._map = map_in_threads(_INLINE_THREADS) if self._is_pool else map_here
        self._models: ModelProvider = work.models
        if any(each.gpus(work.profile) for each in operators):
            gathered = GatheredModels(work.models, work.profile, work.observe)
            self._models = _OwnModels(gathered, held, number)
        self._gate = _Gate()

    def __call__(self, row: Row) -> list[Row]:
        """1:0 where other pieces have not ended, 1:n where a program comes to a step of n."""
        if isinstance(row, FinishedItem) or row.operator != self._number:
            return [row]
        started = time.monotonic()
        try:
            return asyncio.run(self._rows(row))
        except ObjectStoreUnavailableError as error:
            return [FinishedItem(row.item.folder, failure=str(error))]
        finally:
            name = f"operator {self._operators[self._number].name}"
            self._work.observe(name, 1, time.monotonic() - started)

    async def _rows(self, unit: Unit) -> list[Row]:
        runner = self._run(unit).runner
        try:
            return await runner.run(stage_of(unit.program), lambda: self._worked(unit))
        except StageError as error:  # it broke, twice
            broken = error
        return await runner.retry_on_outage("the output", lambda: self._ended(unit, broken))

    def _run(self, unit: Unit) -> ItemRun:
        mapper = cast("Mapper", functools.partial(self._mapped, unit))
        return self._work.start(unit.item, mapper, self._models)

    def _mapped(
        self, unit: Unit, items: Sequence[In], step: Step[In, Out], control: Control
    ) -> list[Out]:
        owner = self._steps.get(type(step), self._number)
        if items and owner > self._number:
            raise HandedOnError(owner, step, items)
        mapped = functools.partial(self._map, items, step, control)
        if not isinstance(step, SearchCuts):
            return mapped()
        # The only step that stores nothing: what it found is kept for the operators that follow.
        store, key = self._work.out.work, self._key(unit, f"cuts/{digest(*items)}.json")
        if not store.exists(key):
            store.write_bytes(key, encode(mapped()))
        return cast("list[Out]", [*decode(tuple[Found, ...], store.read_bytes(key))])

    def _key(self, unit: Unit, name: str) -> str:
        return f"{unit.item.folder}/runs/{self._work.run}/{name}"

    async def _worked(self, unit: Unit) -> list[Row]:
        store = self._work.out.work
        wave = Wave(store, self._key(unit, f"{unit.program}/{unit.wave}"), unit.pieces)
        lost = wave.lost(unit.position)
        with self._gate.entered(alone=lost >= WORKERS_LOST), wave.begun(unit.position):
            if lost >= WORKERS_LOST + self._is_pool:
                message = f"The worker was lost {lost} times over this item."
                wave.end(unit.position, StageError(StageCode.PROCESSING_FAILED, message))
            elif not wave.has_ended(unit.position):
                try:
                    wave.end(unit.position, self._failure_of(unit))
                except HandedOnError as handed:
                    return [replace(unit, operator=handed.operator)]
            if not wave.goes_on(unit.position):
                return []
            if (failure := wave.failure()) is not None:
                return await self._ended(unit, failure)
            return await (self._begun(unit) if unit.program == INGEST else self._gone_on(unit))

    def _failure_of(self, unit: Unit) -> StageError | None:
        """Work on the piece of a row; return how it failed, if it did."""
        if unit.step is None:
            return None
        done = attempt(_with_models(unit.step, self._models), unit.piece)
        if not isinstance(done, Failure):
            return None
        if isinstance(done.error, StageError):
            return done.error
        raise done.error

    async def _begun(self, unit: Unit) -> list[Row]:
        run = self._run(unit)
        with contextlib.suppress(ObjectNotFoundError, CodecError):
            # What another version of this program stored is worked out again.
            return [_finished(outcome_of(run.workspace.store, unit.item.folder))]
        try:
            ingested = run.ingest()
        except StageError as error:
            return await self._ended(unit, error)
        run.workspace.store.write_bytes(self._key(unit, _INGESTED), encode(ingested))
        programs = programs_of(unit.item, ingested)
        if not programs:
            return self._stored(unit, await run.joined(ingested, {}), ingested.media.size_bytes)
        return [
            row
            for program in programs
            for row in await self._gone_on(replace(unit, program=program))
        ]

    async def _gone_on(self, unit: Unit) -> list[Row]:
        """Run a program, over what is stored, up to a later operator or to its end."""
        run = self._run(unit)
        try:
            share = run.carry_out(unit.program, self._ingested(unit))
        except HandedOnError as handed:
            return handed.rows(unit)
        except StageError as error:
            share = run.failed(unit.program, error)
        return await self._ended(unit, share)

    def _ingested(self, unit: Unit) -> IngestResult:
        store = self._work.out.work
        return decode(IngestResult, store.read_bytes(self._key(unit, _INGESTED)))

    async def _ended(self, unit: Unit, found: ItemOutcome | StageError) -> list[Row]:
        """Store a program's share; join the item's where no other program goes on."""
        run, store = self._run(unit), self._work.out.work
        share = run.failed(unit.program, found) if isinstance(found, StageError) else found
        if unit.program == INGEST:
            return self._stored(unit, share)
        ingested = self._ingested(unit)
        programs = programs_of(unit.item, ingested)
        keys = {each: self._key(unit, f"shares/{each}.json") for each in programs}
        store.write_bytes(keys[unit.program], encode(share))
        wave, own = Wave(store, self._key(unit, "programs"), len(keys)), [*keys].index(unit.program)
        wave.end(own)
        if not wave.goes_on(own):
            return []
        shares = {each: decode(ItemOutcome, store.read_bytes(key)) for each, key in keys.items()}
        return self._stored(unit, await run.joined(ingested, shares), ingested.media.size_bytes)

    def _stored(self, unit: Unit, outcome: ItemOutcome, source_bytes: int = 0) -> list[Row]:
        outcome = replace(outcome, seconds=round(time.time() - unit.began_seconds, 3))
        key = f"{unit.item.folder}/{OUTCOME_NAME}"
        self._work.out.work.write_bytes(key, encode(outcome))
        return [_finished(outcome, source_bytes)]


def _finished(outcome: ItemOutcome, source_bytes: int = 0) -> FinishedItem:
    failed = outcome.status is StageStatus.FAILED
    seconds = (outcome.duration_ms or 0) / 1000
    return FinishedItem(outcome.item.folder, failed, seconds, source_bytes)


class _OwnModels(ModelProvider):
    """The models that an operator holds, and those that none holds; of others only their names."""

    def __init__(self, models: ModelProvider, held: dict[Task[Any], int], number: int) -> None:
        self._models, self._held, self._number = models, held, number

    def most_media_seconds(self, task: Task[Any]) -> float:
        return self._models.most_media_seconds(task)

    def find(self, task: Task[Contract]) -> Contract | None:
        owner = self._held.get(task, self._number)
        if owner <= self._number or not self._models.has(task):
            return self._models.find(task)
        return cast("Contract", _HandingOn(owner))

    def get(self, task: Task[Contract]) -> Contract:
        if (owner := self._held.get(task, self._number)) > self._number:
            raise HandedOnError(owner)
        return self._models.get(task)


@dataclass(frozen=True, slots=True)
class _HandingOn:
    """A model of another operator, where whatever calls it goes on."""

    owner: int

    def __getattr__(self, name: str) -> NoReturn:
        raise HandedOnError(self.owner)


class _Gate:
    """Lets any number of threads in, or one that is to be alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = self._waiting = 0

    @contextlib.contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        with self._changed:
            self._waiting += alone
            self._changed.wait_for(lambda: self._inside == 0 if alone else self._waiting == 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._waiting -= alone
                self._changed.notify_all()
