"""What of a job is removed, and when: objects in rounds, each leased in the database; content of
the database at once, when it is erased.

Removing talks to the object store, so it happens outside any transaction. A
round is leased by moving its date on; where a remover dies or fails, the lease ends
and the round is due again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select, text, update

from storage.database import Connection
from storage.job_records import JobRecord, JobSource
from storage.tables import (
    idempotency_records,
    jobs,
    previews,
    scene_lists,
    search_rows,
    stages,
    summaries,
    transcripts,
    uploads,
    webhook_events,
)
from storage.types import JobState
from storage.uploads import MOST_LATE

CLEANING_LEASE = timedelta(minutes=2)
"""A round that has not ended by then is taken up again."""

UNWANTED_AFTER = timedelta(seconds=10)
"""Material of a cancelled or expired job goes this soon: its tasks have stopped by then."""

LATE_WRITES = timedelta(minutes=2)
"""So long after a job's end a task cut off from the rest may still have written something."""

RETAINED = (JobState.COMPLETED, JobState.FAILED)
UNWANTED = (JobState.CANCELLED, JobState.EXPIRED)


@dataclass(frozen=True, slots=True)
class CleaningRound:
    """A leased round of removing one job's objects."""

    job_id: uuid.UUID
    completed_at: datetime
    upload_expires_at: datetime | None
    claimed_at: datetime
    lease_ends_at: datetime

    @property
    def tasks_may_run(self) -> bool:
        """Whether a task of the job may still run because its stop was not yet noticed."""
        return self.claimed_at < self.completed_at + LATE_WRITES

    @property
    def next_at(self) -> datetime | None:
        """When to look again for what came late; None if nothing can come any more.

        Tasks write for some seconds after the end; an upload address is good
        until it expires, whatever became of the job, and what began then goes on.
        """
        later = [self.completed_at + LATE_WRITES]
        if self.upload_expires_at is not None:
            later += [self.upload_expires_at, self.upload_expires_at + MOST_LATE]
        return min((moment for moment in later if moment > self.claimed_at), default=None)


async def lease_rounds(
    connection: Connection, *, retention: timedelta, limit: int
) -> list[CleaningRound]:
    """Lease up to ``limit`` rounds that are due."""
    due = (
        select(jobs.c.id)
        .where(_is_due(retention))
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    statement = (
        update(jobs)
        .where(jobs.c.id == due.c.id)
        .values(cleaning_after=func.now() + CLEANING_LEASE)
        .returning(
            jobs.c.id.label("job_id"),
            jobs.c.completed_at,
            jobs.c.upload_expires_at,
            func.now().label("claimed_at"),
            jobs.c.cleaning_after.label("lease_ends_at"),
        )
    )
    return [CleaningRound(**row) for row in (await connection.execute(statement)).mappings()]


def _is_due(retention: timedelta) -> ColumnElement[bool]:
    first = jobs.c.completed_at.is_not(None) & (
        jobs.c.cleaned_at.is_(None) & jobs.c.cleaning_after.is_(None)
    )
    return or_(
        jobs.c.cleaning_after < func.now(),
        first & jobs.c.state.in_(RETAINED) & (jobs.c.completed_at < func.now() - retention),
        first & jobs.c.state.in_(UNWANTED) & (jobs.c.completed_at < func.now() - UNWANTED_AFTER),
    )


async def end_round(connection: Connection, done: CleaningRound) -> bool:
    """Remember that a round is done; False if its lease had ended and another has it."""
    following = done.next_at
    statement = (
        update(jobs)
        .where(jobs.c.id == done.job_id, jobs.c.cleaning_after == done.lease_ends_at)
        .values(
            cleaning_after=following,
            cleaned_at=func.now() if following is None else None,
        )
    )
    return (await connection.execute(statement)).rowcount == 1


ERASED_NAME = "erased"
"""In place of the names of an erased job's files."""


async def erase_content(connection: Connection, job: JobRecord) -> None:
    """Remove what an ended job holds of its media and its client, and make its objects due.

    Its state, times and charges stay. Answers that are kept for retries and name the job go too,
    so that a retry of its creation with the old key creates another one.
    """
    tables = (scene_lists, transcripts, summaries, previews, search_rows, webhook_events)
    for table in tables:  # Labels go with their transcripts, vectors with their search rows.
        await connection.execute(delete(table).where(table.c.job_id == job.id))
    names_it = text("position(convert_to(:job, 'UTF8') IN body) > 0").bindparams(job=str(job.id))
    await connection.execute(
        delete(idempotency_records).where(
            idempotency_records.c.account_id == job.account_id, names_it
        )
    )
    await connection.execute(
        update(uploads).where(uploads.c.job_id == job.id).values(file_name=ERASED_NAME)
    )
    await connection.execute(
        update(stages).where(stages.c.job_id == job.id).values(error_message=None)
    )
    source = JobSource(kind=job.source.kind, base_url=job.source.base_url)
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job.id)
        .values(
            file_name=ERASED_NAME,
            callback_url=None,
            metadata={},
            source=source.stored(),
            ingest_result=None,
            audio_track_names=None,
            warnings=[],
            error_message=None,
            erased_at=func.now(),
            cleaned_at=None,
            cleaning_after=func.now(),
        )
    )
