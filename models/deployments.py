"""Serve deployments: one a model task. The backend is imported where the replica runs."""

from __future__ import annotations

import asyncio
from typing import Any

from models.registry import Task, open_model


class ModelReplica:
    """A replica of one task: one input a call, worked on off the replica's event loop."""

    def __init__(self, profile: str, task: Task, method: str) -> None:
        self._call = getattr(open_model(profile, task), method)

    async def __call__(self, item: Any) -> Any:
        """The backend's answer to one input (an AudioChunk or SceneStills)."""
        results = await asyncio.to_thread(self._call, [item])
        return results[0]
