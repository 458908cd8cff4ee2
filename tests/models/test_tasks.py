"""The declarations of the tasks, and what is generic over them."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
import pytest

from models import replica as deployments
from models.contracts import DeviceMemoryError, Samples
from models.profiles import digest_of, replicas_of
from models.provider import LocalModels
from models.registry import FORMER_OPENERS, REGISTRY
from models.replica import ModelReplica
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    DETECT_SPEECH,
    EMBED_TEXT,
    EMBED_VOICE,
    SEGMENT_SPEAKERS,
    SUMMARIZE,
    TASKS,
    TRANSCRIBE,
    ObjectDetector,
    Purpose,
    Shape,
    Summarizer,
    Task,
    Transcriber,
    get_task,
    tasks_for,
)
from pipelines.execution.chain import Failure, Step, attempt
from pipelines.types import StageCode
from storage.objects import ObjectStoreUnavailableError
from tests.tables import every

every_task = every("task", TASKS, ids=lambda task: task.name)


@every_task
def test_a_task_is_one_object_wherever_it_is_sent(task: Task[Any]) -> None:
    assert pickle.loads(pickle.dumps(task)) is task  # noqa: S301
    assert get_task(task.name) is task


@every_task
def test_a_contract_is_called_by_one_method_with_one_parameter(task: Task[Any]) -> None:
    """A served model has no other, and one input or one sequence of them is what it sends."""
    assert len(inspect.signature(task.call.method).parameters) == 2
    assert task.call.dimensions is None or task.call.shape is Shape.VECTORS


def test_names_of_tasks_and_of_their_deployments_are_used_once() -> None:
    for names in ([each.name for each in TASKS], [each.contract_name for each in TASKS]):
        assert len(set(names)) == len(names)


def test_models_have_the_types_of_their_contracts() -> None:
    """Held by mypy; at run time the packaged profile has the one and lacks the other."""
    models = LocalModels()
    assert_type(models.get(TRANSCRIBE), Transcriber)
    assert_type(models.get(DETECT_OBJECTS), ObjectDetector)
    assert assert_type(models.find(SUMMARIZE), Summarizer | None) is None
    with pytest.raises(KeyError, match="summarize"):
        models.get(SUMMARIZE)


@every(
    ("profile", "task", "replicas"),
    [
        ("packaged", TRANSCRIBE, TRANSCRIBE),
        ("packaged", DETECT_SPEECH, None),
        ("cpu", TRANSCRIBE, TRANSCRIBE),
        ("cpu", SEGMENT_SPEAKERS, None),
        ("gpu", SEGMENT_SPEAKERS, SEGMENT_SPEAKERS),
        ("cpu", SUMMARIZE, DESCRIBE_SCENES),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_model_is_served_by_replicas_where_it_is_large(
    profile: str, task: Task[Any], replicas: Task[Any] | None
) -> None:
    assert replicas_of(profile, task) is replicas


def test_no_inputs_give_a_matrix_without_rows() -> None:
    assert EMBED_TEXT.gathered([]).shape == (0, 512)
    assert EMBED_VOICE.gathered([]).shape[0] == 0


def test_only_tasks_of_the_table_are_in_profiles() -> None:
    assert {task for rows in REGISTRY.values() for task in rows} <= set(TASKS)


def test_openers_that_moved_are_those_of_rows_and_name_results_as_before() -> None:
    openers = {row.opener for rows in REGISTRY.values() for row in rows.values()}
    assert set(FORMER_OPENERS) <= openers
    # The calibration of words, voices of people and vectors of search are kept under these.
    assert digest_of("packaged", (EMBED_VOICE,)) == "77561b265c5e8879"
    assert digest_of("packaged", (EMBED_TEXT,)) == "64bf27d2e23af176"
    assert digest_of("packaged", tasks_for(Purpose.VISION)) == "5700f28e46f0d17c"


class Embedder:
    """Answers once it is let go."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), threading.Event()
        self.asked = 0

    def embed(self, utterances: Sequence[Samples]) -> Any:
        self.asked += 1
        self.begun.set()
        assert self.free.wait(60)
        return np.zeros((len(utterances), 2), np.float32)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Embedder:
    embedder = Embedder()
    embedder.free.set()
    monkeypatch.setattr(deployments, "open_model", lambda *_: embedder)
    monkeypatch.setattr(deployments, "_PROBE_SECONDS", 0.0)
    return embedder


async def test_a_call_that_hangs_has_the_replica_replaced(
    model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = ModelReplica("packaged", EMBED_VOICE)
    await replica.check_health()
    asked = model.asked
    model.free.clear()
    model.begun.clear()
    call = asyncio.create_task(replica._work([np.zeros(16_000, np.float32)]))
    assert await asyncio.to_thread(model.begun.wait, 60)
    await replica.check_health()
    assert model.asked == asked + 1, "no probe waits behind the call"
    monkeypatch.setattr(deployments, "CALL_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="does not come to an end"):
        await replica.check_health()
    model.free.set()
    await call
    await replica.check_health()


async def test_an_input_that_the_model_fails_on_fails_alone(
    model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed(utterances: Sequence[Samples]) -> Any:
        if any(len(samples) == 1 for samples in utterances):
            raise ValueError("too short")
        return np.zeros((len(utterances), 2), np.float32)

    replica = ModelReplica("packaged", EMBED_VOICE)
    monkeypatch.setattr(model, "embed", embed)
    long, short = np.zeros(16_000, np.float32), np.zeros(1, np.float32)
    first, failure, last = await replica._work([long, short, long])
    assert (first.shape, last.shape) == ((2,), (2,))
    assert isinstance(failure, ValueError)
    answered_at = replica._answered_at
    assert isinstance((await replica._work([short]))[0], ValueError)
    assert replica._answered_at == answered_at, "a failure is no sign of health"


async def test_where_memory_is_short_all_inputs_shall_come_again(
    model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def embed(utterances: Sequence[Samples]) -> Any:
        calls.append(len(utterances))
        raise DeviceMemoryError("taken")

    replica = ModelReplica("packaged", EMBED_VOICE)
    monkeypatch.setattr(model, "embed", embed)
    found = await replica._work([np.zeros(16_000, np.float32)] * 3)
    assert [type(each) for each in found] == [DeviceMemoryError] * 3
    assert calls == [3], "the model has tried fewer at once"


@dataclass(frozen=True)
class Starved(Step[int, int]):
    """Finds its device's memory taken."""

    name = "Starved"
    code = StageCode.TRANSCRIPT_FAILED
    version = 1

    def process(self, item: int) -> int:
        raise DeviceMemoryError(f"no room for {item}")


def test_a_job_waits_for_a_devices_memory_as_for_the_end_of_an_outage() -> None:
    found = attempt(Starved(), 7)
    assert isinstance(found, Failure)
    assert isinstance(found.error, ObjectStoreUnavailableError)
