"""Serve deployments: one a model task. The backend is imported where the replica runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from models.registry import Task, open_model


class ModelReplica:
    """A replica of one task: one input a call, worked on off the replica's event loop."""

    def __init__(self, profile: str, task: Task, method: str) -> None:
        self._call = getattr(open_model(profile, task), method)
        self._busy_seconds = 0.0

    async def __call__(self, item: Any) -> Any:
        """The backend's answer to one input (an AudioChunk or SceneStills)."""
        started = time.perf_counter()
        results = await asyncio.to_thread(self._call, [item])
        self._busy_seconds += time.perf_counter() - started
        return results[0]

    async def busy_seconds(self) -> float:
        """Wall time that this replica's model has worked since it was started."""
        return self._busy_seconds
