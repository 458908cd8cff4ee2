"""How a pipeline step reaches the models: in this process, or through Ray Serve."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from models.contracts import (
    AudioChunk,
    ChunkTranscript,
    SceneDescriber,
    SceneDescription,
    SceneStills,
    SpeakerEmbedder,
    SpeechDetector,
    Transcriber,
)
from models.registry import REGISTRY, Task, open_model

CALL_TIMEOUT_SECONDS = 600
"""A model call that takes longer than this has failed."""

DEPLOYMENT_NAMES = {Task.TRANSCRIBE: "Transcriber", Task.DESCRIBE: "SceneDescriber"}


class ModelSource(Protocol):
    """Hands out one model a task. Picklable; models are opened where they are used."""

    def transcriber(self) -> Transcriber: ...
    def speech_detector(self) -> SpeechDetector: ...
    def speaker_embedder(self) -> SpeakerEmbedder: ...
    def scene_describer(self) -> SceneDescriber: ...


@dataclass(frozen=True, slots=True)
class LocalModels:
    """Models of a profile, loaded once in whichever process asks (notebooks, tests, doctor)."""

    profile: str = "embedded"

    def transcriber(self) -> Transcriber:
        return cast("Transcriber", _open_once(self.profile, Task.TRANSCRIBE))

    def speech_detector(self) -> SpeechDetector:
        return cast("SpeechDetector", _open_once(self.profile, Task.DETECT))

    def speaker_embedder(self) -> SpeakerEmbedder:
        return cast("SpeakerEmbedder", _open_once(self.profile, Task.EMBED))

    def scene_describer(self) -> SceneDescriber:
        return cast("SceneDescriber", _open_once(self.profile, Task.DESCRIBE))


@functools.lru_cache(maxsize=16)
def _open_once(profile: str, task: Task) -> object:
    return open_model(profile, task)


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models behind Serve deployments of one application; weightless ones run in the task."""

    app_name: str
    profile: str = "embedded"

    def transcriber(self) -> Transcriber:
        return _ServedTranscriber(self.app_name)

    def speech_detector(self) -> SpeechDetector:
        return cast("SpeechDetector", self._in_task(Task.DETECT))

    def speaker_embedder(self) -> SpeakerEmbedder:
        return cast("SpeakerEmbedder", self._in_task(Task.EMBED))

    def scene_describer(self) -> SceneDescriber:
        return _ServedDescriber(self.app_name)

    def _in_task(self, task: Task) -> object:
        if not REGISTRY[self.profile][task].in_task:
            raise ValueError(f"{task} of {self.profile} has no deployment")
        return _open_once(self.profile, task)


@dataclass(frozen=True, slots=True)
class _ServedTranscriber:
    app_name: str

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        return _call_each(self.app_name, Task.TRANSCRIBE, chunks)


@dataclass(frozen=True, slots=True)
class _ServedDescriber:
    app_name: str

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        return _call_each(self.app_name, Task.DESCRIBE, scenes)


def _call_each(app_name: str, task: Task, inputs: Sequence[Any]) -> list[Any]:
    handle = _handle(app_name, DEPLOYMENT_NAMES[task])
    responses = [handle.remote(item) for item in inputs]
    return [response.result(timeout_s=CALL_TIMEOUT_SECONDS) for response in responses]


@functools.lru_cache(maxsize=16)
def _handle(app_name: str, deployment: str) -> Any:
    from ray import serve

    return serve.get_deployment_handle(deployment, app_name=app_name)
