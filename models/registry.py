"""Which backend serves a task, and what it needs: data, no code."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Task(StrEnum):
    """What a model is for."""

    TRANSCRIBE = "transcribe"
    DETECT = "detect"
    EMBED = "embed"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One way to do a task.

    ``in_task`` backends are plain signal processing without weights: they run
    where the audio is instead of in a Serve replica, which would cost a copy
    of the track and a process for nothing.
    """

    factory: str
    """``package.module:Class``; called without arguments."""
    in_task: bool = False
    calls_at_once: int = 1
    """How many calls a replica works on at the same time."""


REGISTRY: dict[str, dict[Task, RegistryEntry]] = {
    "embedded": {
        Task.TRANSCRIBE: RegistryEntry("models.backends.embedded.transcriber:EmbeddedTranscriber"),
        Task.DETECT: RegistryEntry(
            "models.backends.embedded.speech_detector:EmbeddedSpeechDetector", in_task=True
        ),
        Task.EMBED: RegistryEntry(
            "models.backends.embedded.speaker_embedder:EmbeddedSpeakerEmbedder", in_task=True
        ),
        Task.DESCRIBE: RegistryEntry("models.backends.embedded.describer:EmbeddedSceneDescriber"),
    },
}
"""Profile -> task -> entry."""


def open_model(profile: str, task: Task) -> Any:
    """The model of a task, loaded in this process. Raises KeyError for an unknown profile."""
    module_name, _, class_name = REGISTRY[profile][task].factory.partition(":")
    return getattr(importlib.import_module(module_name), class_name)()
