"""A process that erases a job and removes its objects, and is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from typing import Any

from sqlalchemy import event

from serve_app.context import build_context
from serve_app.jobs.service import erase_job
from serve_app.settings import Settings
from serve_app.worker.reaper import remove_due


def erase(settings: Settings, account_id: uuid.UUID, job_id: str, dies_at: int) -> None:
    """SIGKILL before statement, or deletion of a file, number ``dies_at``."""
    asyncio.run(_erase(settings, account_id, job_id, dies_at))


async def _erase(settings: Settings, account_id: uuid.UUID, job_id: str, dies_at: int) -> None:
    context, steps = build_context(settings), 0

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(context.database.engine.sync_engine, "before_cursor_execute", step)
    event.listen(context.database.engine.sync_engine, "commit", step)
    unlink = os.unlink

    def stepping(*path: Any, **options: Any) -> None:
        step()
        unlink(*path, **options)

    os.unlink = stepping
    async with context.database.transaction() as connection:
        await erase_job(connection, account_id, job_id)
    await remove_due(context)
    await context.database.close()
