"""Models behind Ray Serve: how their answers come together, and replicas that die in a call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from models import provider
from models.contracts import (
    PICTURE_DIMENSIONS,
    AudioChunk,
    Box,
    ChunkTranscript,
    DetectedObject,
    Excerpt,
    Picture,
    SceneStills,
    SummarySentence,
)
from models.provider import ServedModels
from models.tasks import (
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_PICTURES,
    SUMMARIZE,
    TRANSCRIBE,
    Task,
    Transcriber,
)

APP_NAME = "served-models"
PAUSES = 2
"""Fewer than in the service: each replica takes seconds to start."""


class DyingModel:
    """Kills its own process at as many calls as the file says are left."""

    def __init__(self, deaths: Path) -> None:
        self._deaths = deaths

    def __call__(self, still: Picture) -> tuple[DetectedObject, ...]:
        left = int(self._deaths.read_text())
        if left:
            self._deaths.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return (DetectedObject(f"{len(still)} px", 1.0, Box(0, 0, 1, 1)),)


class Lengths:
    """Answers with an input's length, for the task that it is asked to do."""

    def __call__(self, item: Any, task: Task[Any] | None = None) -> Any:
        if task is SUMMARIZE:
            return (SummarySentence(len(item.lines), task.name),)
        return np.full(
            PICTURE_DIMENSIONS, len(item.stills if isinstance(item, SceneStills) else item)
        )


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says how often the detector will die."""
    monkeypatch.setattr(provider, "LOST_REPLICA_PAUSES_SECONDS", (0.1,) * PAUSES)
    path = tmp_path / "deaths"
    path.write_text("0")
    return path


@pytest.fixture
def models(ray_session: None, deaths: Path) -> Iterator[ServedModels]:
    """Of the profile ``cpu``, three deployments of which are served."""
    from ray import serve

    options = {"num_cpus": 0.1}

    def deployed(task: Task[Any], replica: type, *given: Any) -> Any:
        name = task.contract_name
        return serve.deployment(replica, name=name, ray_actor_options=options).bind(*given)

    class Ingress:
        def __init__(self, *_: Any) -> None: ...

    app = serve.deployment(Ingress, ray_actor_options=options).bind(
        deployed(DETECT_OBJECTS, DyingModel, deaths),
        deployed(EMBED_PICTURES, Lengths),
        deployed(DESCRIBE_SCENES, Lengths),
    )
    serve.start(proxy_location="Disabled")
    try:
        serve.run(app, name=APP_NAME, route_prefix=None)
        yield ServedModels(APP_NAME, "cpu")
    finally:
        serve.shutdown()
        provider._handle.cache_clear()


def test_a_call_outlives_lost_replicas_but_not_any_number_of_them(
    models: ServedModels, deaths: Path
) -> None:
    from ray.exceptions import RayActorError

    stills = [np.zeros((height, 2, 3), np.uint8) for height in range(8)]
    model = models.get(DETECT_OBJECTS)
    assert model.find([stills[5]])[0][0].label == "5 px"

    deaths.write_text(str(PAUSES))
    assert model.find([stills[7]])[0][0].label == "7 px"
    assert deaths.read_text() == "0"

    # Serve itself may send a call again whose replica died before it took the call.
    many = 10 * PAUSES
    deaths.write_text(str(many))
    with pytest.raises(RayActorError):
        model.find([stills[5]])
    died = many - int(deaths.read_text())
    assert PAUSES < died <= 3 * (PAUSES + 1), "an input that kills every replica is given up"

    vectors = models.get(EMBED_PICTURES).embed_pictures(stills[3:5])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[3] * PICTURE_DIMENSIONS, [4] * PICTURE_DIMENSIONS]
    excerpts = [Excerpt(("One.", "Two."), 1), Excerpt(("One.",), 1)]
    summaries = models.get(SUMMARIZE).summarize(excerpts)
    assert [[each.line for each in one] for one in summaries] == [[2], [1]], "by the describer's"


class Stenographer:
    """Writes its process down in each transcript; with a chunk of one sample it never ends, with
    one of none it dies."""

    def __call__(self, chunk: AudioChunk) -> ChunkTranscript:
        if len(chunk.samples) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(chunk.samples) == 1:
            time.sleep(600)
        return ChunkTranscript((), str(os.getpid()))


@pytest.fixture
def transcriber(ray_session: None, deaths: Path) -> Iterator[Transcriber]:
    """On one machine, where it is an actor without Serve."""
    options = {"namespace": APP_NAME, "max_restarts": -1, "num_cpus": 0.1}
    actor = ray.remote(Stenographer).options(name=TRANSCRIBE.contract_name, **options).remote()
    yield ServedModels(APP_NAME, "packaged", one_machine=True).get(TRANSCRIBE)
    ray.kill(actor)
    provider._actor.cache_clear()


def chunk(samples: int) -> AudioChunk:
    return AudioChunk(np.zeros(samples, np.float32))


def test_an_actor_that_dies_in_a_call_is_called_again_once_ray_has_replaced_it(
    transcriber: Transcriber,
) -> None:
    from ray.exceptions import RayActorError

    [first, again] = transcriber.transcribe([chunk(2), chunk(3)])
    assert first.language == again.language
    with pytest.raises(RayActorError):
        transcriber.transcribe([chunk(0)])
    [after] = transcriber.transcribe([chunk(2)])
    assert after.language != first.language


def test_an_actor_whose_call_does_not_end_is_replaced(
    transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = transcriber.transcribe([chunk(2)])
    patience = provider.CALL_TIMEOUT_SECONDS
    monkeypatch.setattr(provider, "CALL_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(TimeoutError):
        transcriber.transcribe([chunk(1)])
    monkeypatch.setattr(provider, "CALL_TIMEOUT_SECONDS", patience)
    [after] = transcriber.transcribe([chunk(2)])
    assert after.language != first.language
