"""When a replica of a model says that it should be replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from models import replica as deployments
from models.contracts import Samples
from models.replica import ModelReplica
from models.tasks import EMBED_VOICE


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
