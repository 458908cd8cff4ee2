"""How a pipeline step reaches the models: in this process, or through Ray Serve."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from models.contracts import (
    PICTURE_DIMENSIONS,
    SAMPLE_RATE_HZ,
    TEXT_DIMENSIONS,
    AudioChunk,
    ChunkTranscript,
    ContentClassifier,
    DetectedObject,
    Excerpt,
    ObjectDetector,
    Picture,
    PictureEmbedder,
    Samples,
    SceneDescriber,
    SceneDescription,
    SceneStills,
    SpeakerEmbedder,
    SpeechDetector,
    Summarizer,
    SummarySentence,
    TextEmbedder,
    TextLine,
    TextReader,
    Transcriber,
)
from models.registry import REGISTRY, Task, has_task, open_model

CALL_TIMEOUT_SECONDS = 600
"""A model call that takes longer than this has failed."""

LOST_REPLICA_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Before each further call where a replica is lost in the middle of one: with its node, or because
an update or a shrinking deployment ended it. Bounded, as an input might be what kills them."""

log = logging.getLogger("vas.models")

Model = TypeVar("Model")

DEPLOYMENT_NAMES = {
    Task.TRANSCRIBE: "Transcriber",
    Task.DETECT: "SpeechDetector",
    Task.EMBED: "SpeakerEmbedder",
    Task.DESCRIBE: "SceneDescriber",
    Task.CLASSIFY: "ContentClassifier",
    Task.READ: "TextReader",
    Task.FIND: "ObjectDetector",
    Task.EMBED_TEXT: "TextEmbedder",
    Task.EMBED_PICTURE: "PictureEmbedder",
}
"""Of the tasks that have replicas of their own."""


class ModelProvider(Protocol):
    """Hands out one model a task. Picklable; models are opened where they are used."""

    def transcriber(self) -> Transcriber: ...
    def speech_detector(self) -> SpeechDetector: ...
    def speaker_embedder(self) -> SpeakerEmbedder: ...
    def scene_describer(self) -> SceneDescriber: ...
    def content_classifier(self) -> ContentClassifier:
        """Raises KeyError for a profile that has none."""
        ...

    def text_reader(self) -> TextReader: ...
    def object_detector(self) -> ObjectDetector | None:
        """None for a profile that has none."""
        ...

    def summarizer(self) -> Summarizer | None:
        """None for a profile that has none."""
        ...

    def text_embedder(self) -> TextEmbedder | None:
        """None where the profile has none, or its weights are not installed."""
        ...

    def picture_embedder(self) -> PictureEmbedder | None:
        """None where the profile has none, or its weights are not installed."""
        ...


@dataclass(frozen=True, slots=True)
class LocalModels:
    """Models of a profile, loaded once a process (notebooks, tests, doctor)."""

    profile: str = "packaged"
    models_dir: Path | None = None
    own_whisper: Path | None = None
    """A folder of weights in place of the profile's."""

    def transcriber(self) -> Transcriber:
        opened = _open_once(self.profile, Task.TRANSCRIBE, self.models_dir, self.own_whisper)
        return cast("Transcriber", opened)

    def speech_detector(self) -> SpeechDetector:
        return cast("SpeechDetector", _open_once(self.profile, Task.DETECT, self.models_dir))

    def speaker_embedder(self) -> SpeakerEmbedder:
        return cast("SpeakerEmbedder", _open_once(self.profile, Task.EMBED, self.models_dir))

    def scene_describer(self) -> SceneDescriber:
        return cast("SceneDescriber", _open_once(self.profile, Task.DESCRIBE, self.models_dir))

    def content_classifier(self) -> ContentClassifier:
        return cast("ContentClassifier", _open_once(self.profile, Task.CLASSIFY, self.models_dir))

    def text_reader(self) -> TextReader:
        return cast("TextReader", _open_once(self.profile, Task.READ, self.models_dir))

    def object_detector(self) -> ObjectDetector | None:
        if Task.FIND not in REGISTRY[self.profile]:
            return None
        return cast("ObjectDetector", _open_once(self.profile, Task.FIND, self.models_dir))

    def summarizer(self) -> Summarizer | None:
        entry = REGISTRY[self.profile].get(Task.SUMMARIZE)
        if entry is None:
            return None
        loaded = entry.shares or Task.SUMMARIZE
        return cast("Summarizer", _open_once(self.profile, loaded, self.models_dir))

    def text_embedder(self) -> TextEmbedder | None:
        if not has_task(self.profile, Task.EMBED_TEXT, self.models_dir):
            return None
        return cast("TextEmbedder", _open_once(self.profile, Task.EMBED_TEXT, self.models_dir))

    def picture_embedder(self) -> PictureEmbedder | None:
        if not has_task(self.profile, Task.EMBED_PICTURE, self.models_dir):
            return None
        opened = _open_once(self.profile, Task.EMBED_PICTURE, self.models_dir)
        return cast("PictureEmbedder", opened)


@functools.lru_cache(maxsize=16)
def _open_once(
    profile: str, task: Task, models_dir: Path | None, own: Path | None = None
) -> object:
    return open_model(profile, task, models_dir, own)


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models behind Serve deployments of one application; small ones run in the task."""

    app_name: str
    profile: str = "packaged"
    models_dir: Path | None = None

    def transcriber(self) -> Transcriber:
        return self._placed(Task.TRANSCRIBE, _ServedTranscriber(self.app_name))

    def speech_detector(self) -> SpeechDetector:
        return self._placed(Task.DETECT, _ServedDetector(self.app_name))

    def speaker_embedder(self) -> SpeakerEmbedder:
        return self._placed(Task.EMBED, _ServedEmbedder(self.app_name))

    def scene_describer(self) -> SceneDescriber:
        return self._placed(Task.DESCRIBE, _ServedDescriber(self.app_name))

    def content_classifier(self) -> ContentClassifier:
        return self._placed(Task.CLASSIFY, _ServedClassifier(self.app_name))

    def text_reader(self) -> TextReader:
        return self._placed(Task.READ, _ServedReader(self.app_name))

    def object_detector(self) -> ObjectDetector | None:
        if Task.FIND not in REGISTRY[self.profile]:
            return None
        return self._placed(Task.FIND, _ServedFinder(self.app_name))

    def summarizer(self) -> Summarizer | None:
        entry = REGISTRY[self.profile].get(Task.SUMMARIZE)
        if entry is None:
            return None
        return _ServedSummarizer(self.app_name, entry.shares or Task.SUMMARIZE)

    def text_embedder(self) -> TextEmbedder | None:
        if not has_task(self.profile, Task.EMBED_TEXT, self.models_dir):
            return None
        return self._placed(Task.EMBED_TEXT, _ServedTextEmbedder(self.app_name))

    def picture_embedder(self) -> PictureEmbedder | None:
        if not has_task(self.profile, Task.EMBED_PICTURE, self.models_dir):
            return None
        return self._placed(Task.EMBED_PICTURE, _ServedPictureEmbedder(self.app_name))

    def _placed(self, task: Task, served: Model) -> Model:
        """The model in this process where that is its place, else the way to its replicas."""
        if not REGISTRY[self.profile][task].in_task:
            return served
        return cast("Model", _open_once(self.profile, task, self.models_dir))


@dataclass(frozen=True, slots=True)
class _ServedTranscriber:
    app_name: str

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        return _call_each(self.app_name, Task.TRANSCRIBE, chunks)


@dataclass(frozen=True, slots=True)
class _ServedDetector:
    app_name: str

    def detect(self, samples: Samples) -> list[tuple[float, float]]:
        regions: list[tuple[float, float]] = _call_each(self.app_name, Task.DETECT, [samples])[0]
        return regions


@dataclass(frozen=True, slots=True)
class _ServedEmbedder:
    app_name: str

    def embed(self, utterances: Sequence[Samples]) -> npt.NDArray[np.float32]:
        return np.stack(_call_each(self.app_name, Task.EMBED, utterances))


@dataclass(frozen=True, slots=True)
class _ServedDescriber:
    app_name: str

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        return _call_each(self.app_name, Task.DESCRIBE, scenes)


@dataclass(frozen=True, slots=True)
class _ServedClassifier:
    app_name: str

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        return _call_each(self.app_name, Task.CLASSIFY, stills)


@dataclass(frozen=True, slots=True)
class _ServedReader:
    app_name: str

    def read(self, stills: Sequence[Picture]) -> list[tuple[TextLine, ...]]:
        return _call_each(self.app_name, Task.READ, stills)


@dataclass(frozen=True, slots=True)
class _ServedFinder:
    app_name: str

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        return _call_each(self.app_name, Task.FIND, stills)


@dataclass(frozen=True, slots=True)
class _ServedSummarizer:
    app_name: str
    replicas_of: Task

    def summarize(self, excerpts: Sequence[Excerpt]) -> list[tuple[SummarySentence, ...]]:
        return _call_each(self.app_name, Task.SUMMARIZE, excerpts, self.replicas_of)


@dataclass(frozen=True, slots=True)
class _ServedTextEmbedder:
    app_name: str

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = _call_each(self.app_name, Task.EMBED_TEXT, texts)
        return np.array(vectors, np.float32).reshape(-1, TEXT_DIMENSIONS)


@dataclass(frozen=True, slots=True)
class _ServedPictureEmbedder:
    app_name: str

    def embed_pictures(self, stills: Sequence[Picture]) -> npt.NDArray[np.float32]:
        vectors = _call_each(self.app_name, Task.EMBED_PICTURE, stills)
        return np.array(vectors, np.float32).reshape(-1, PICTURE_DIMENSIONS)


def _call_each(
    app_name: str, task: Task, inputs: Sequence[Any], replicas_of: Task | None = None
) -> list[Any]:
    """Answers by the task's own replicas, or by those of the task whose model it shares."""
    handle = _handle(app_name, DEPLOYMENT_NAMES[replicas_of or task])
    calls = [(item,) if replicas_of is None else (item, task) for item in inputs]
    responses = [handle.remote(*call) for call in calls]
    return [_result(handle, *pair) for pair in zip(calls, responses, strict=True)]


def _result(handle: Any, call: tuple[Any, ...], response: Any) -> Any:
    """The model's answer to ``call``; called again where the replica that had it was lost."""
    from ray.exceptions import RayActorError

    for pause_seconds in LOST_REPLICA_PAUSES_SECONDS:
        try:
            return response.result(timeout_s=CALL_TIMEOUT_SECONDS)
        except RayActorError as error:
            log.warning("a model's replica was lost, calling another: %s", error)
            time.sleep(pause_seconds)
            response = handle.remote(*call)
    return response.result(timeout_s=CALL_TIMEOUT_SECONDS)


@functools.lru_cache(maxsize=16)
def _handle(app_name: str, deployment: str) -> Any:
    from ray import serve

    return serve.get_deployment_handle(deployment, app_name=app_name)


def _hiss(seconds: float) -> Any:
    """Faint noise: unlike silence, no backend takes a short way round it."""
    generator = np.random.default_rng(0)
    samples = generator.standard_normal(round(seconds * SAMPLE_RATE_HZ)) * 0.003
    return samples.astype(np.float32)


def _grey() -> Any:
    return np.full((180, 320, 3), 128, dtype=np.uint8)


METHODS: dict[Task, Callable[[Any, Sequence[Any]], Sequence[Any]]] = {
    Task.TRANSCRIBE: lambda model, chunks: model.transcribe(chunks),
    Task.DETECT: lambda model, tracks: [model.detect(samples) for samples in tracks],
    Task.EMBED: lambda model, utterances: list(model.embed(utterances)),
    Task.DESCRIBE: lambda model, scenes: model.describe(scenes),
    Task.CLASSIFY: lambda model, stills: model.classify(stills),
    Task.READ: lambda model, stills: model.read(stills),
    Task.FIND: lambda model, stills: model.find(stills),
    Task.SUMMARIZE: lambda model, excerpts: model.summarize(excerpts),
    Task.EMBED_TEXT: lambda model, texts: list(model.embed_texts(texts)),
    Task.EMBED_PICTURE: lambda model, stills: list(model.embed_pictures(stills)),
}
"""Task -> how a model of it is called with several inputs."""

PROBES: dict[Task, Callable[[], Any]] = {
    Task.TRANSCRIBE: lambda: AudioChunk(_hiss(1.0)),
    Task.DETECT: lambda: _hiss(2.0),
    Task.EMBED: lambda: _hiss(1.0),
    Task.DESCRIBE: lambda: SceneStills((_grey(),), 1.0),
    Task.CLASSIFY: _grey,
    Task.READ: _grey,
    Task.FIND: _grey,
    Task.SUMMARIZE: lambda: Excerpt(("Good morning.", "It rains all day."), 1),
    Task.EMBED_TEXT: lambda: "Good morning.",
    Task.EMBED_PICTURE: _grey,
}
"""Task -> one input of its model."""
