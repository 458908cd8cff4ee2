"""The replica of a model task, which Serve or one machine runs. The backend is imported there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from models.provider import CALL_TIMEOUT_SECONDS, answers_of, open_model
from models.registry import REGISTRY
from models.tasks import Task

_PROBE_SECONDS = 30.0
"""An idle replica proves that often that its model still answers."""


class BatchObserver(Protocol):
    """Receives each batch's size and time; picklable, opened in the replica's process."""

    def started(self) -> None:
        """The replica's process runs."""
        ...

    def batch(self, size: int, seconds: float) -> None:
        """The model has answered ``size`` inputs in ``seconds``."""
        ...


class ModelReplica:
    """A replica of one task: one input a call, gathered into batches of many jobs' inputs.

    The model works in a thread, so the replica's event loop stays free.
    """

    def __init__(
        self,
        profile: str,
        task: Task[Any],
        models_dir: Path | None = None,
        observer: BatchObserver | None = None,
        own: Path | None = None,
        workers: int = 1,
    ) -> None:
        """``workers`` inputs are worked on at once where the model takes no batches."""
        row = REGISTRY[profile][task]
        self._task = task
        self._observer = observer
        if observer is not None:
            observer.started()
        self._model = open_model(profile, task, models_dir, own, workers)
        self._busy_seconds = 0.0
        self._answered_at = 0.0
        self._begun: dict[object, float] = {}

        turns = asyncio.Semaphore(workers)

        async def alone(item: Any) -> Any:
            async with turns:
                return (await self._work([item]))[0]

        async def gathered(items: list[Any]) -> list[Any]:
            return await self._work(items)

        self._gather: Callable[[Any], Awaitable[Any]] = alone
        if row.max_batch > 1:
            # An actor without it does without a second of imports.
            from ray import serve

            self._gather = serve.batch(
                max_batch_size=row.max_batch,
                batch_wait_timeout_s=row.batch_wait_seconds,
                max_concurrent_batches=row.concurrent_batches,
            )(gathered)
        self._is_plugin = bool(row.plugin)
        if not self._is_plugin:
            # Warm up: the first real input must not pay for kernels, caches and lazy imports.
            task.probe(self._model)

    async def __call__(self, item: Any, task: Task[Any] | None = None) -> Any:
        """The model's answer to one input. Raises what the model raises for it.

        Inputs of another task, which shares the model, are not gathered into batches.
        """
        if task is None:
            answer = await self._gather(item)
        else:
            [answer] = await self._work([item], task)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _work(self, items: list[Any], task: Task[Any] | None = None) -> list[Any]:
        started = time.perf_counter()
        call = object()
        self._begun[call] = time.monotonic()
        try:
            results = await asyncio.to_thread(answers_of, task or self._task, self._model, items)
        finally:
            del self._begun[call]
            seconds = time.perf_counter() - started
            self._busy_seconds += seconds
        if all(isinstance(result, Exception) for result in results):
            return list(results)  # no sign of health
        if self._observer is not None:
            self._observer.batch(len(items), seconds)
        self._answered_at = time.monotonic()
        return list(results)

    async def check_health(self) -> None:
        """A real inference where none has succeeded lately; its error makes Serve replace us.

        A call in progress shows more than a probe behind it. One that nobody waits for any more
        hangs, and its place is taken until the process ends. Raises RuntimeError then. Plug-ins are
        not probed: one that fails is started anew, and must not keep a service from its start.
        """
        now = time.monotonic()
        if any(now - begun > CALL_TIMEOUT_SECONDS for begun in self._begun.values()):
            raise RuntimeError("A call of the model does not come to an end.")
        if self._begun or self._is_plugin or time.monotonic() - self._answered_at < _PROBE_SECONDS:
            return
        await asyncio.to_thread(self._task.probe, self._model)
        self._answered_at = time.monotonic()

    async def busy_seconds(self) -> float:
        """Wall time that this replica's model has worked since it was started."""
        return self._busy_seconds
