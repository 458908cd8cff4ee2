"""How many inputs the replicas of a model task take at once, by the settings."""

from __future__ import annotations

from typing import Any

from models.registry import REGISTRY
from models.tasks import DESCRIBE_SCENES, TRANSCRIBE, Task
from serve_app.settings import Settings


def concurrent_inputs(settings: Settings, task: Task[Any]) -> int:
    """How many inputs a replica takes: two batches, one being worked on, one gathering."""
    most = REGISTRY[settings.model_profile][task].max_batch
    return 1 if most == 1 else 2 * most


def concurrent_callers(settings: Settings, task: Task[Any]) -> int:
    """With so many callers no replica of a task ever waits for an input: one more each."""
    return most_replicas(settings, task) * (concurrent_inputs(settings, task) + 1)


def most_replicas(settings: Settings, task: Task[Any]) -> int:
    """The setting's maximum of a task, never below the minimum."""
    limits = {
        TRANSCRIBE: settings.transcriber_replicas,
        DESCRIBE_SCENES: settings.describer_replicas,
    }
    return max(1, settings.model_min_replicas, limits.get(task, 1))
