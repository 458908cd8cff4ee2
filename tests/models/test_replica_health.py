"""When a replica of a model says that it should be replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from models import replica as deployments
from models.contracts import DeviceMemoryError, Samples
from models.replica import ModelReplica
from models.tasks import EMBED_VOICE
from pipelines.execution.chain import Failure, Step, attempt
from pipelines.types import StageCode
from storage.objects import ObjectStoreUnavailableError


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
