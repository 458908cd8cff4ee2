"""What a runner does beside the jobs, a piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from models.provider import LocalModels, ModelProvider
from serve_app.context import AppContext, build_context
from serve_app.observability.metrics import NULL_METRICS, Metrics
from serve_app.settings import Settings
from serve_app.work.queue import Kind, Work, perform
from serve_app.work.reaper import Reaper, clean
from storage.work import lease_next
from tests.serve_app.running_api import RunningApi

Result = TypeVar("Result")


async def step(context: AppContext, kind: Kind, models: ModelProvider | None = None) -> bool:
    """Do the next piece of a kind; whether there was one. Raises what broke it."""
    leased, _ = await lease_next(context.database, [kind.terms])
    for held in leased:
        await perform(kind, Work(held, context, models or LocalModels()))
    return bool(leased)


def behind(
    api: RunningApi,
    work: Callable[[AppContext], Coroutine[Any, Any, Result]],
    metrics: Metrics = NULL_METRICS,
    settings: Settings | None = None,
) -> Result:
    """Run ``work`` as a runner would, in a loop of its own."""

    async def run() -> Result:
        context = build_context(settings or api.settings, metrics)
        try:
            return await work(context)
        finally:
            await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


def do(api: RunningApi, kind: Kind, models: ModelProvider | None = None) -> bool:
    """``step`` in a loop of its own."""
    return behind(api, lambda context: step(context, kind, models))


async def clean_due(context: AppContext) -> None:
    """Remove the objects of jobs whose time is over."""
    await Reaper(context).sweep_objects()
    while await step(context, clean):
        pass


async def sweep(context: AppContext) -> None:
    """All that a reaper does, and what it queues."""
    await Reaper(context).sweep_database()
    await clean_due(context)


def make_due(api: RunningApi) -> None:
    """Whoever has leased work is lost, and all pauses are over."""
    api.sql("UPDATE work SET due_at = now() - interval '1 s'")
