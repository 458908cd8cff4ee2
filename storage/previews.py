"""Previews, pending, made or failed: a row for each job whose media browsers cannot play.

Whoever makes one has it leased; a maker that is lost leaves it to the next.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, text, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection, Database
from storage.tables import previews
from storage.turns import in_turns
from storage.types import PreviewStatus

MAX_ATTEMPTS = 2
"""Media whose maker was lost this often is given up: it probably kills them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What became of a job's preview; ``reason`` is why there is none."""

    status: PreviewStatus
    reason: str | None


@dataclass(frozen=True, slots=True)
class LeasedPreview:
    """A preview to make; only the holder of ``token`` may record its end."""

    job_id: uuid.UUID
    source_key: str
    token: uuid.UUID


async def want_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue a preview of the object; one that is pending or ended stays as it is."""
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    await connection.execute(statement.on_conflict_do_nothing())


async def want_muted_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue another preview of the object, whatever became of the one before."""
    fresh = {"status": PreviewStatus.WAITING, "reason": None, "attempts": 0}
    fresh |= {"lease_token": None, "lease_expires_at": None}
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[previews.c.job_id], set_=fresh)
    )


async def find_preview(connection: Connection, job_id: uuid.UUID) -> Preview | None:
    """None for media that is played as it is."""
    query = select(previews.c.status, previews.c.reason).where(previews.c.job_id == job_id)
    row = (await connection.execute(query)).first()
    return None if row is None else Preview(PreviewStatus(row.status), row.reason)


_LEASE = in_turns(
    "preview",
    due="""
    SELECT each.job_id, each.attempts, jobs.account_id
      FROM previews AS each JOIN jobs ON jobs.id = each.job_id
     WHERE status = 'waiting' AND (each.lease_expires_at IS NULL OR each.lease_expires_at < now())
     ORDER BY {turn}, each.created_at LIMIT 1 FOR UPDATE OF each SKIP LOCKED
    """,
    lease="""
    UPDATE previews SET
        attempts = due.attempts + 1,
        status = CASE WHEN due.attempts < :most THEN 'waiting' ELSE 'failed' END,
        reason = CASE WHEN due.attempts < :most THEN NULL ELSE :lost END,
        lease_token = CASE WHEN due.attempts < :most THEN gen_random_uuid() END,
        lease_expires_at = CASE WHEN due.attempts < :most THEN now() + :lease END
    FROM due WHERE previews.job_id = due.job_id
    RETURNING previews.job_id, previews.source_key, previews.lease_token AS token
    """,
)


async def lease_next_preview(database: Database, *, lease: timedelta) -> LeasedPreview | None:
    """Lease the oldest pending preview of the account whose turn it is; None where none is, or the
    preview was given up."""
    lost = "What reads the file was lost again and again."
    rows = await database.query(_LEASE, lease=lease, most=MAX_ATTEMPTS, lost=lost)
    if not rows or rows[0]["token"] is None:
        return None
    return LeasedPreview(**rows[0])


_EXTEND = text(
    """
    UPDATE previews SET lease_expires_at = now() + :lease
    FROM jobs WHERE previews.job_id = :job_id AND previews.lease_token = :token
        AND jobs.id = previews.job_id AND jobs.state NOT IN ('cancelled', 'failed', 'expired')
        AND jobs.cleaned_at IS NULL AND jobs.cleaning_after IS NULL
    RETURNING previews.job_id
    """
)


async def extend_preview(database: Database, held: LeasedPreview, *, lease: timedelta) -> bool:
    """Keep the lease; False where it was lost, or the job's media is to be deleted."""
    rows = await database.query(_EXTEND, lease=lease, job_id=held.job_id, token=held.token)
    return bool(rows)


async def end_preview(
    connection: Connection, held: LeasedPreview, status: PreviewStatus, reason: str | None = None
) -> bool:
    """Say what became of it; False where somebody else has the lease."""
    statement = (
        update(previews)
        .where(previews.c.job_id == held.job_id, previews.c.lease_token == held.token)
        .values(status=status, reason=reason, lease_token=None, lease_expires_at=None)
    )
    return (await connection.execute(statement)).rowcount == 1


async def give_back_preview(connection: Connection, held: LeasedPreview) -> None:
    """Leave it to another; the attempt does not count."""
    statement = (
        update(previews)
        .where(previews.c.job_id == held.job_id, previews.c.lease_token == held.token)
        .values(lease_token=None, lease_expires_at=None, attempts=previews.c.attempts - 1)
    )
    await connection.execute(statement)
