"""Which jobs' intermediate objects are still to be removed."""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import jobs

CLEANING_DELAY = timedelta(seconds=30)
"""A cancelled job's tasks may write for some seconds more; their objects must go too."""


async def uncleaned_jobs(connection: AsyncConnection, *, limit: int) -> list[uuid.UUID]:
    """Jobs that ended a while ago and whose intermediate objects still lie there."""
    query = (
        select(jobs.c.id)
        .where(jobs.c.completed_at < func.now() - CLEANING_DELAY, jobs.c.cleaned_at.is_(None))
        .order_by(jobs.c.completed_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return list((await connection.execute(query)).scalars())


async def mark_cleaned(connection: AsyncConnection, job_id: uuid.UUID) -> None:
    """Remember that a job's intermediate objects are gone."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(cleaned_at=func.now()))
