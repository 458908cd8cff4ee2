"""How each task's model is called, and a small real input: warms it up, shows that it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from models.contracts import SAMPLE_RATE_HZ, AudioChunk, SceneStills
from models.registry import Task


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
}
"""Task -> one input of its model."""
