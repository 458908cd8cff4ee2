"""Previews, pending, made or failed: a row for each job whose media browsers cannot play."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection
from storage.tables import jobs, previews
from storage.types import JobState, PreviewStatus
from storage.work import Held, queue

KIND = "preview"


@dataclass(frozen=True, slots=True)
class Preview:
    """What became of a job's preview; ``reason`` is why there is none."""

    status: PreviewStatus
    reason: str | None


async def want_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue a preview of the object; one that is pending or ended stays as it is."""
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    new = statement.on_conflict_do_nothing().returning(previews.c.job_id)
    if (await connection.execute(new)).first() is not None:
        await queue(connection, KIND, job_id)


async def want_muted_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue another preview of the object, whatever became of the one before."""
    fresh = {"status": PreviewStatus.WAITING, "reason": None}
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[previews.c.job_id], set_=fresh)
    )
    await queue(connection, KIND, job_id)


async def find_preview(connection: Connection, job_id: uuid.UUID) -> Preview | None:
    """None for media that is played as it is."""
    query = select(previews.c.status, previews.c.reason).where(previews.c.job_id == job_id)
    row = (await connection.execute(query)).first()
    return None if row is None else Preview(PreviewStatus(row.status), row.reason)


async def is_wanted(connection: Connection, held: Held) -> bool:
    """Whether a preview has somebody to be played to: its job goes on, and its media is there."""
    query = select(jobs.c.id).where(
        jobs.c.id == held.subject_id,
        jobs.c.state.not_in((JobState.CANCELLED, JobState.FAILED, JobState.EXPIRED)),
        jobs.c.cleaned_at.is_(None),
        jobs.c.cleaning_after.is_(None),
    )
    return await connection.scalar(query) is not None


async def find_source(connection: Connection, job_id: uuid.UUID) -> str | None:
    """The object that a preview is made of; None where none is to be made any more."""
    query = select(previews.c.source_key).where(previews.c.job_id == job_id)
    found: str | None = await connection.scalar(query)
    return found


async def end_preview(
    connection: Connection, job_id: uuid.UUID, status: PreviewStatus, reason: str | None = None
) -> None:
    """Record what became of it."""
    statement = update(previews).where(previews.c.job_id == job_id)
    await connection.execute(statement.values(status=status, reason=reason))
