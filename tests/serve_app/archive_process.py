"""Archives worked on in a process of their own, which may be killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from datetime import timedelta
from typing import Any

from sqlalchemy import event, text

from serve_app.context import AppContext, build_context
from serve_app.jobs.service import end_job
from serve_app.settings import Settings
from serve_app.work.archives import read_archive
from storage import jobs
from storage.types import JobState, StageName, StageStatus
from tests.serve_app.beside_jobs import step

LONGEST_SECONDS = 900.0


async def end_jobs(context: AppContext, state: JobState = JobState.COMPLETED, **error: Any) -> int:
    """End every queued job as a runner would, with nothing analysed; how many."""
    count = 0
    while True:
        async with context.database.transaction() as connection:
            leased = await jobs.lease_next(connection, lease=timedelta(minutes=5))
            if leased is None:
                return count
            job = await jobs.lock_leased(connection, *leased)
            for stage in StageName:
                await jobs.set_stage(connection, job.id, stage, StageStatus.COMPLETED)
            await end_job(connection, job, state, **error)
        count += 1


async def make_due(context: AppContext) -> None:
    """Nothing is waited for: archives are due at once, as if pauses were over."""
    async with context.database.transaction() as connection:
        await connection.execute(
            text(
                "UPDATE work SET due_at = now()"
                " WHERE token IS NULL AND due_at <= now() + interval '30 seconds'"
            )
        )


async def states(context: AppContext) -> set[str]:
    """Of all archives."""
    async with context.database.statement() as connection:
        return set((await connection.execute(text("SELECT state FROM archives"))).scalars())


async def work(context: AppContext, *, ends: bool = True) -> int:
    """Steps until no archive is active, or none has anything to do; jobs that ended."""
    ended = 0
    latest = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < latest:
        await make_due(context)
        idle = not await step(context, read_archive)
        count = await end_jobs(context) if ends else 0
        ended += count
        if idle or "active" not in await states(context):
            return ended
        if not ends and await settled(context):
            return ended
    raise AssertionError("the archives did not end")


async def settled(context: AppContext) -> bool:
    """Whether nothing is listed any more, and jobs are what is waited for."""
    query = (
        "SELECT bool_and(list_after IS NULL AND (running_objects = max_active_jobs"
        " OR waiting_objects = 0)) FROM archives WHERE state = 'active'"
    )
    async with context.database.statement() as connection:
        return bool((await connection.execute(text(query))).scalar_one())


def run(settings: Settings, dies_at: int) -> None:
    """Work, and SIGKILL before statement number ``dies_at``."""
    asyncio.run(_run(settings, dies_at))


async def _run(settings: Settings, dies_at: int) -> None:
    context, steps = build_context(settings), 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(context.database.engine.sync_engine, "before_cursor_execute", count)
    event.listen(context.database.engine.sync_engine, "commit", count)
    await work(context)
    await context.database.close()


def job_urls(settings: Settings, account_id: uuid.UUID) -> list[str]:
    """What the account's jobs were created of."""
    return asyncio.run(_job_urls(settings, account_id))


async def _job_urls(settings: Settings, account_id: uuid.UUID) -> list[str]:
    context = build_context(settings)
    query = text("SELECT source #>> '{clips,0,url}' FROM jobs WHERE account_id = :id")
    async with context.database.statement() as connection:
        found = list((await connection.execute(query, {"id": account_id})).scalars())
    await context.database.close()
    return found
