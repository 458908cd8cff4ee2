"""Uploads that clients put into the object store themselves: which to look for, and how often."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, literal_column, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import jobs, uploads
from storage.types import JobState, Tier
from storage.uploads import MOST_LATE

SHORTEST_PAUSE_SECONDS = 1
LONGEST_PAUSE_SECONDS = 10
_SECOND: ColumnElement[timedelta] = literal_column("interval '1 second'")
_AGE_SHARE = 60
"""A job that has waited a minute is looked at every second, one of ten minutes every ten."""


@dataclass(frozen=True, slots=True)
class AwaitedUpload:
    """A file that may have arrived."""

    job_id: uuid.UUID
    slot: str
    tier: Tier
    look_after: datetime


async def claim_awaited(connection: AsyncConnection, *, limit: int) -> list[AwaitedUpload]:
    """Take up to ``limit`` uploads that are due to be looked for; sets when they are next due.

    Files that come in through the service right now are its own business.
    """
    in_flight = or_(uploads.c.arriving_until > func.now(), uploads.c.writer_expires_at > func.now())
    due = (
        select(uploads.c.job_id, uploads.c.slot, jobs.c.tier, jobs.c.created_at)
        .join(jobs, jobs.c.id == uploads.c.job_id)
        .where(
            jobs.c.state == JobState.AWAITING_UPLOAD,
            uploads.c.completed_at.is_(None),
            func.coalesce(uploads.c.look_after, jobs.c.created_at) <= func.now(),
            in_flight.is_not(True),
        )
        .order_by(func.coalesce(uploads.c.look_after, jobs.c.created_at))
        .limit(limit)
        .with_for_update(of=uploads, skip_locked=True)
        .cte("due")
    )
    age_seconds = func.extract("epoch", func.now() - due.c.created_at)
    pause = func.least(
        func.greatest(age_seconds / _AGE_SHARE, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS
    )
    statement = (
        update(uploads)
        .where(uploads.c.job_id == due.c.job_id, uploads.c.slot == due.c.slot)
        .values(look_after=func.now() + pause * _SECOND)
        .returning(uploads.c.job_id, uploads.c.slot, due.c.tier, uploads.c.look_after)
    )
    rows = (await connection.execute(statement)).mappings()
    return [AwaitedUpload(**(dict(row) | {"tier": Tier(row["tier"])})) for row in rows]


async def awaited_past_upload(
    connection: AsyncConnection, *, grace: timedelta, limit: int
) -> list[tuple[uuid.UUID, str, bool]]:
    """Job and slot of up to ``limit`` files that never came and whose time was over ``grace``
    ago, those longest over first; with each whether it is over for longer than MOST_LATE."""
    query = (
        select(
            uploads.c.job_id,
            uploads.c.slot,
            (jobs.c.upload_expires_at < func.now() - MOST_LATE).label("too_late"),
        )
        .join(jobs, jobs.c.id == uploads.c.job_id)
        .where(
            jobs.c.state == JobState.AWAITING_UPLOAD,
            uploads.c.completed_at.is_(None),
            jobs.c.upload_expires_at < func.now() - grace,
        )
        .order_by(jobs.c.upload_expires_at)
        .limit(limit)
    )
    rows = await connection.execute(query)
    return [(row.job_id, row.slot, row.too_late) for row in rows]


async def hold_awaited(
    connection: AsyncConnection, item: AwaitedUpload, *, lease: timedelta
) -> AwaitedUpload | None:
    """Let nobody look for ``lease``; None if another has claimed the file meanwhile."""
    statement = (
        update(uploads)
        .where(
            uploads.c.job_id == item.job_id,
            uploads.c.slot == item.slot,
            uploads.c.look_after == item.look_after,
        )
        .values(look_after=func.now() + lease)
        .returning(uploads.c.look_after)
    )
    until = (await connection.execute(statement)).scalar_one_or_none()
    return None if until is None else replace(item, look_after=until)
