"""How items pass from operator to operator: batches of many files, pieces that end anywhere."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models import provider
from models.contracts import AudioChunk
from models.provider import GatheredModels
from models.registry import REGISTRY
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_VOICE,
    SEGMENT_SPEAKERS,
    TRANSCRIBE,
    Task,
)
from pipelines.backfill.items import FinishedItem, ItemWork, outcome_of
from pipelines.backfill.manifest import Item
from pipelines.backfill.operators import (
    OPERATORS,
    ItemOperator,
    Row,
    Unit,
    Wave,
    operators_of,
)
from pipelines.backfill.output import ItemOutcome
from pipelines.collection import BucketAccess, place_at
from pipelines.execution.chain import Step
from pipelines.execution.ray_data import Admission, UnderWay
from pipelines.ingest.pipeline import IngestConfig
from pipelines.types import StageCode, StageError
from pipelines.vision.detections import DetectObjects, FindFaces
from pipelines.vision.screen_text import ReadText
from storage.objects import ObjectStore
from storage.objects.folder import FolderStore
from storage.types import StageStatus
from tests.pipelines.backfill.backfill_material import carry_out, write_clips
from tests.pipelines.backfill.backfill_models import MadeUpModels, Notes
from tests.places import DEMO
from tests.tables import every

CLIPS = 4


def work_in(folder: Path, run: str = "this", **changes: Any) -> ItemWork:
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {
        "out": place_at(str(folder / "out"), BucketAccess()),
        "models": MadeUpModels(),
        "ingest": IngestConfig(segment_seconds=6.0),
        "observe": Notes(folder / "notes"),
    }
    return ItemWork(profile="gpu", run=run, **(known | changes))


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    clips = write_clips(tmp_path_factory.mktemp("clips"), CLIPS)
    return [
        Item(path.stem, row, str(path), path.name, language="en")
        for row, path in enumerate(clips, start=1)
    ]


def passed(work: ItemWork, rows: Sequence[Row]) -> list[Row]:
    """Rows through all operators of the profile, one after the other, as Ray Data calls them."""
    operators = operators_of(work.profile)
    for number, each in enumerate(operators):
        threads = each.rows if each.gpus(work.profile) else 1
        operator = ItemOperator(work, operators, number, threads=threads)
        with ThreadPoolExecutor(threads) as pool:
            rows = [row for found in pool.map(operator, rows) for row in found]
    return list(rows)


def results(outcome: ItemOutcome) -> ItemOutcome:
    return replace(outcome, seconds=0.0)


def test_what_comes_of_items_in_pools_is_what_comes_of_each_alone(
    items: list[Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: dict[Task[Any], int] = {TRANSCRIBE: 1, SEGMENT_SPEAKERS: 1, EMBED_VOICE: 1}
    for task, count in (inputs | {DETECT_OBJECTS: 4, DESCRIBE_SCENES: 2}).items():
        row = replace(REGISTRY["gpu"][task], max_batch=count * CLIPS)
        monkeypatch.setitem(REGISTRY["gpu"], task, row)
    monkeypatch.setattr(provider, "GATHERING_SECONDS", 5.0)
    work = work_in(tmp_path, models=MadeUpModels(has_tags=False))
    rows = passed(work, [Unit(item) for item in items])
    assert [type(row) for row in rows] == [FinishedItem] * CLIPS
    assert {row.folder for row in rows if isinstance(row, FinishedItem)} == {
        item.folder for item in items
    }
    monkeypatch.setattr(provider, "GATHERING_SECONDS", 0.0)
    alone = work_in(tmp_path / "alone", models=work.models)
    for item in items:
        outcome = outcome_of(work.out.work, item.folder)
        assert outcome.status is StageStatus.COMPLETED, outcome.stages
        assert len(outcome.scenes) == 2
        assert results(outcome) == results(carry_out(alone, item))
    # Of each clip a window, a chunk, two scenes, and then the whole.
    batches = Notes(tmp_path / "notes").batches()
    assert batches["segment_speakers"] == batches["transcribe"] == [CLIPS]
    assert batches["describe_scenes"] == [2 * CLIPS, CLIPS]


def test_a_segment_is_read_by_a_row_of_its_own_and_the_last_one_goes_on(tmp_path: Path) -> None:
    work, operators = work_in(tmp_path), operators_of("gpu")
    rows = ItemOperator(work, operators, 0)(Unit(Item("demo", 1, str(DEMO), DEMO.name)))
    units = [row for row in rows if isinstance(row, Unit)]
    assert {(unit.program, operators[unit.operator].name) for unit in units} == {
        ("vision", "read"),
        ("transcript-0", "voices"),
    }
    read = [unit for unit in units if unit.program == "vision"]
    assert len(read) > 1
    operator = ItemOperator(work, operators, 1)
    assert [len(operator(unit)) for unit in read[:-1]] == [0] * (len(read) - 1)
    assert {row.operator for row in operator(read[-1]) if isinstance(row, Unit)} == {4}
    [spoken] = [unit for unit in units if unit.program != "vision"]
    assert operator(spoken) == [spoken], "a row of another operator passes through"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def test_of_the_pieces_of_a_step_one_goes_on_and_again_where_it_is_worked_on_again(
    store: ObjectStore,
) -> None:
    wave = Wave(store, "wave", 3)
    wave.end(0)
    wave.end(1)
    assert not wave.goes_on(1)
    wave.end(2)
    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(wave.goes_on, range(3))) == 1
    last = int(store.read_bytes("wave/last"))
    assert wave.goes_on(last)
    assert wave.failure() is None
    wave.end(1, StageError(StageCode.VISION_FAILED, "No.\nNever."))
    assert str(wave.failure()) == str(StageError(StageCode.VISION_FAILED, "No.\nNever."))


def test_a_piece_whose_worker_was_lost_twice_is_worked_on_alone_once_more(
    items: list[Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_in(tmp_path)
    operator = ItemOperator(work, operators_of("gpu"), 0, threads=2)
    inside: list[str] = []
    most: list[int] = []

    async def begun(unit: Unit) -> list[Row]:
        inside.append(unit.item.id)
        most.append(len(inside))
        await asyncio.sleep(0.2)
        inside.remove(unit.item.id)
        return []

    monkeypatch.setattr(operator, "_begun", begun)
    store = work.out.work
    for item, lost in itertools.product(items[:2], range(2)):
        store.write_bytes(f"{item.folder}/runs/this/ingest/0/begun/0/{lost}", b"")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(operator, [Unit(item) for item in items[:2]]))
        assert max(most) == 1
        assert not [*store.list_keys(f"{items[0].folder}/runs/this/ingest/0/begun")]
        list(pool.map(operator, [Unit(item) for item in items[2:4]]))
    assert max(most) > 1
    begun_key = f"{items[0].folder}/runs/this/ingest/0/begun/0"
    for lost in range(3):
        store.write_bytes(f"{begun_key}/{lost}", b"")
    [ended] = operator(Unit(items[0]))
    assert isinstance(ended, FinishedItem)
    [failure] = outcome_of(store, ended.folder).failures
    assert failure.message == "The worker was lost 3 times over this item."


def test_all_steps_of_vision_and_speech_have_an_operator() -> None:
    owned = {step for each in OPERATORS for step in each.steps}
    rooms = "pipelines.vision", "pipelines.speech"
    known = {each for each in Step.__subclasses__() if each.__module__.startswith(rooms)}
    inside = {DetectObjects, ReadText, FindFaces}  # of LookAtScenes
    assert {each.__name__ for each in known - owned - inside} == {"SumUp"}


@every(
    ("profile", "names"),
    [
        pytest.param("packaged", "ingest read+voices transcribe+look+describe", id="tasks"),
        pytest.param("gpu", "ingest read voices transcribe look describe", id="pools"),
    ],
)
def test_neighbours_without_a_gpu_are_one_operator(profile: str, names: str) -> None:
    operators = operators_of(profile)
    assert [each.name for each in operators] == names.split()
    assert sum(each.gpus(profile) for each in operators) <= 1, "one of each fits on a card"


def test_inputs_of_many_threads_become_full_batches() -> None:
    sizes: list[int] = []
    here = threading.Barrier(40, timeout=60)
    models = GatheredModels(MadeUpModels(), "gpu", lambda _, size, __: sizes.append(size))
    most = REGISTRY["gpu"][TRANSCRIBE].max_batch

    def call(transcribe: Callable[[list[Any]], list[Any]], number: int) -> int:
        here.wait()
        chunks = [AudioChunk(np.full(16_000, number / 100, np.float32)) for _ in range(2)]
        answers = transcribe(chunks)
        assert len(answers) == 2
        return int(answers[0].words[0].text.removeprefix(" word"))

    with ThreadPoolExecutor(40) as pool:
        transcribe = models.get(TRANSCRIBE).transcribe
        answers = list(pool.map(lambda number: call(transcribe, number), range(40)))
    assert answers == [pytest.approx(100 * number, abs=1) for number in range(40)]
    assert sum(sizes) == 80
    assert max(sizes) == most
    assert len(sizes) <= 4


def test_a_batch_waits_as_long_again_as_inputs_came_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "GATHERING_SECONDS", 0.1)
    monkeypatch.setattr(provider, "MOST_GATHERING_SECONDS", 4.0)
    sizes: list[int] = []
    models = GatheredModels(
        MadeUpModels(seconds=0.0), "gpu", lambda _, size, __: sizes.append(size)
    )
    transcribe = models.get(TRANSCRIBE).transcribe
    chunk = AudioChunk(np.zeros(160, np.float32))
    with ThreadPoolExecutor(8) as pool:
        for pause_seconds in (1.0, 1.0, 1.0, 6.0, 0.5, 0.0):
            pool.submit(transcribe, [chunk])
            time.sleep(pause_seconds)
    # Alone at first, then with what is a second away; nothing is learned of a long silence.
    assert sizes == [1, 3, 2]


def test_an_input_that_a_model_cannot_take_fails_alone() -> None:
    class Fussy(MadeUpModels):
        def find(self, task: Any) -> Any:
            return self

        def transcribe(self, chunks: Sequence[AudioChunk]) -> list[int]:
            if any(chunk.language == "none" for chunk in chunks):
                raise ValueError("none")
            return [len(chunks)] * len(chunks)

    transcribe = GatheredModels(Fussy(), "gpu").get(TRANSCRIBE).transcribe
    here = threading.Barrier(3, timeout=60)

    def call(language: str) -> Any:
        here.wait()
        return transcribe([AudioChunk(np.zeros(160, np.float32), language=language)])

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, language) for language in ("en", "none", "de")]
    assert [type(each.exception()) for each in calls] == [type(None), ValueError, type(None)]


@dataclass(eq=False)
class FakeOperator:
    """As much of Ray Data's operator, and of its state, as the policy reads."""

    queued: int = 0
    is_pool: bool = False
    begun: int = 0

    @property
    def metrics(self) -> SimpleNamespace:
        return SimpleNamespace(num_tasks_submitted=self.begun)

    def get_autoscaling_actor_pools(self) -> list[object]:
        return [self] if self.is_pool else []

    def total_enqueued_input_blocks(self) -> int:
        return self.queued


@dataclass
class FakeResources:
    used: float
    limit: float = 4.0

    def get_global_running_usage(self) -> SimpleNamespace:
        return SimpleNamespace(cpu=self.used)

    def get_global_limits(self) -> SimpleNamespace:
        return SimpleNamespace(cpu=self.limit)


def beginners(operators: Sequence[FakeOperator], used: float = 0.0) -> list[int]:
    """The places of the operators that may begin with another row; the first is the input."""
    policy = Admission(None, {each: each for each in operators}, FakeResources(used))
    return [place for place, each in enumerate(operators) if place and policy.can_add_input(each)]


@every(
    ("queued", "used", "expected"),
    [
        pytest.param([9, 9, 9], 0.0, [3], id="the last with work goes first"),
        pytest.param([9, 9, 0], 0.0, [2, 3], id="one before it where it has none"),
        pytest.param([9, 9, 0], 4.9, [2, 3], id="a task waits for the next processor"),
        pytest.param([9, 9, 0], 5.0, [], id="but not two"),
    ],
)
def test_what_is_begun_goes_on_first_on_as_many_processors_as_there_are(
    queued: list[int], used: float, expected: list[int]
) -> None:
    assert beginners([FakeOperator(), *map(FakeOperator, queued)], used) == expected


def test_nothing_works_ahead_of_a_pool_before_which_many_rows_wait() -> None:
    pool = FakeOperator(queued=256, is_pool=True)
    operators = [FakeOperator(), FakeOperator(9), FakeOperator(0), pool, FakeOperator(0)]
    assert beginners(operators) == [1, 2, 3, 4]
    pool.queued = 257
    assert beginners(operators) == [3, 4]
    assert beginners(operators, used=9.0) == [3], "a pool has its processors"


def test_no_source_is_fetched_while_those_under_way_have_too_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under_way = UnderWay(most_bytes=5 << 30)
    monkeypatch.setattr(Admission, "under_way", under_way)
    first = FakeOperator(queued=9)
    operators = [FakeOperator(), first, FakeOperator()]
    first.begun = 4
    assert beginners(operators) == [1, 2], "of unknown size: a GiB each"
    first.begun = 5
    assert beginners(operators) == [2]
    under_way.end(10 << 20)
    first.begun = 500
    assert beginners(operators) == [1, 2]
    first.begun = 514
    assert beginners(operators) == [2]
    under_way.most_items = 3
    first.begun = 3
    assert beginners(operators) == [1, 2]
    first.begun = 4
    assert beginners(operators) == [2]
