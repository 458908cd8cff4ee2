"""Processes that erase a job and remove its objects, or correct its transcript, and are killed in
the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from sqlalchemy import event

from serve_app.app import build_api
from serve_app.context import AppContext, build_context
from serve_app.jobs.service import erase_job
from serve_app.settings import Settings
from tests.serve_app.beside_jobs import clean_due


def erase(settings: Settings, account_id: uuid.UUID, job_id: str, dies_at: int) -> None:
    """SIGKILL before statement, or deletion of a file, number ``dies_at``."""
    asyncio.run(_erase(settings, account_id, job_id, dies_at))


def edit(settings: Settings, key: str, job_id: str, body: dict[str, Any], dies_at: int) -> None:
    """SIGKILL before statement, commit or answer number ``dies_at`` of the request."""
    asyncio.run(_edit(settings, key, job_id, body, dies_at))


async def _edit(
    settings: Settings, key: str, job_id: str, body: dict[str, Any], dies_at: int
) -> None:
    context = build_context(settings)
    transport = httpx.ASGITransport(build_api(context))
    step = _killing(context, dies_at)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        path, headers = f"/v1/api/jobs/{job_id}/transcript", {"X-API-Key": key}
        answer = await client.patch(path, json=body, headers=headers)
    step()
    answer.raise_for_status()
    await context.database.close()


def _killing(context: AppContext, dies_at: int) -> Callable[..., None]:
    """Count statements and commits, and what calls the function that is returned."""
    steps = 0

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(context.database.engine.sync_engine, "before_cursor_execute", step)
    event.listen(context.database.engine.sync_engine, "commit", step)
    return step


async def _erase(settings: Settings, account_id: uuid.UUID, job_id: str, dies_at: int) -> None:
    context = build_context(settings)
    step = _killing(context, dies_at)
    unlink = os.unlink

    def stepping(*path: Any, **options: Any) -> None:
        step()
        unlink(*path, **options)

    os.unlink = stepping
    await context.database.write(erase_job, account_id, job_id)
    await clean_due(context)
    await context.database.close()
