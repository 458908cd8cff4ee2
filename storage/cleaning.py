"""What of a job is removed, and when: objects in rounds, each leased in the database; content of
the database at once, when it is erased.

Removing talks to the object store, so it happens outside any transaction: a round is work of its
job, which is queued when it is due.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from storage.archives import remove_archives
from storage.audit import forget_addresses, record
from storage.database import Connection
from storage.history import result_changed
from storage.job_records import JobRecord, JobSource
from storage.tables import (
    ERASED_WITH_ACCOUNT,
    ERASED_WITH_JOB,
    OWN_DAYS,
    accounts,
    api_keys,
    archive_objects,
    idempotency_records,
    jobs,
    speaker_labels,
    speaker_voices,
    stages,
    uploads,
    users,
    voices,
    webhook_events,
    work,
)
from storage.types import ANALYSES, Cause, JobState, KeyStatus, ObjectState, ResultChange, Retention
from storage.uploads import MOST_LATE
from storage.work import Held, end, queue, withdraw

KIND = "cleaning"

UNWANTED_AFTER = timedelta(seconds=10)
"""Material of a cancelled or expired job goes this soon: its tasks have stopped by then."""

LATE_WRITES = timedelta(minutes=2)
"""So long after a job's end a task cut off from the rest may still have written something."""

RETAINED = (JobState.COMPLETED, JobState.FAILED)
UNWANTED = (JobState.CANCELLED, JobState.EXPIRED)


@dataclass(frozen=True, slots=True)
class CleaningRound:
    """A round of removing one job's objects."""

    job_id: uuid.UUID
    completed_at: datetime
    """Of the job, or of its last rerun, whose tasks write into the same folder."""
    upload_expires_at: datetime | None
    claimed_at: datetime
    erased_at: datetime | None = None

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


async def list_due_rounds(
    connection: Connection, retention: Retention, *, limit: int
) -> Sequence[uuid.UUID]:
    """Up to ``limit`` jobs whose next round is due and not queued."""
    return (
        (await connection.execute(sa.select(jobs.c.id).where(_is_due(retention)).limit(limit)))
        .scalars()
        .all()
    )


async def queue_round(connection: Connection, job_id: uuid.UUID, retention: Retention) -> None:
    """Queue a job's round that is due still: from now on its media is being removed."""
    due = sa.update(jobs).where(jobs.c.id == job_id, _is_due(retention))
    if (await connection.execute(due.values(cleaning_after=sa.func.now()))).rowcount:
        await queue(connection, KIND, job_id)


async def find_round(connection: Connection, job_id: uuid.UUID) -> CleaningRound | None:
    """Return a job's round that is under way; None where a legal hold was placed on the job since,
    or it is run again."""
    query = sa.select(
        jobs.c.id.label("job_id"),
        sa.func.greatest(jobs.c.completed_at, _RERUNS_END).label("completed_at"),
        jobs.c.upload_expires_at,
        jobs.c.erased_at,
        sa.func.now().label("claimed_at"),
    ).where(jobs.c.id == job_id, jobs.c.cleaning_after.is_not(None), _MAY_BE_CLEANED)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else CleaningRound(**row)


_OWNER = sa.select(accounts).where(accounts.c.id == jobs.c.account_id).correlate(jobs)


def _of_owner(name: str) -> sa.ScalarSelect[Any]:
    return _OWNER.with_only_columns(accounts.c[name]).scalar_subquery()


def _kept(name: str, default: int | None, most: int | None) -> sa.ColumnElement[Any]:
    """Return the job's value, else its account's, else the service's, but not more than the
    most."""
    chosen = sa.func.coalesce(
        jobs.c.source[name].astext.cast(sa.Integer), _of_owner(name), sa.cast(default, sa.Integer)
    )
    return sa.func.least(chosen, sa.cast(most, sa.Integer))


_IS_HELD = jobs.c.legal_hold_at.is_not(None) | _of_owner("legal_hold_at").is_not(None)


# The media is read again.
_rerun = jobs.alias("rerun")
_IS_RERUN = sa.exists().where(_rerun.c.rerun_of == jobs.c.id, _rerun.c.completed_at.is_(None))
# Tasks of a rerun write into the first job's folder.
_RERUNS_END = (
    sa.select(sa.func.max(_rerun.c.completed_at))
    .where(_rerun.c.rerun_of == jobs.c.id)
    .scalar_subquery()
)


_MAY_BE_CLEANED = jobs.c.erased_at.is_not(None) | ~(_IS_HELD | _IS_RERUN)
_IS_QUEUED = sa.exists().where(work.c.kind == KIND, work.c.subject_id == jobs.c.id)


def _is_due(retention: Retention) -> sa.ColumnElement[bool]:
    seconds = _kept(
        "source_retention_seconds", retention.source_seconds, retention.most_source_seconds
    )
    first = jobs.c.completed_at.is_not(None) & (
        jobs.c.cleaned_at.is_(None) & jobs.c.cleaning_after.is_(None)
    )
    over = jobs.c.completed_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    return (
        sa.or_(
            jobs.c.cleaning_after < sa.func.now(),
            first & jobs.c.state.in_(RETAINED) & over,
            first
            & jobs.c.state.in_(UNWANTED)
            & (jobs.c.completed_at < sa.func.now() - UNWANTED_AFTER),
        )
        & _MAY_BE_CLEANED
        & ~_IS_QUEUED
    )


async def find_media_end(
    connection: Connection, job_id: uuid.UUID, retention: Retention
) -> datetime | None:
    """Return when an ended job's media is removed; None before its end, and under a hold."""
    seconds = _kept(
        "source_retention_seconds", retention.source_seconds, retention.most_source_seconds
    )
    end = jobs.c.completed_at + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    found = sa.select(end).where(jobs.c.id == job_id, ~_IS_HELD)
    return (await connection.execute(found)).scalar_one_or_none()


async def list_due_erasures(
    connection: Connection, retention: Retention, *, limit: int
) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Account and job of content whose time is over, or whose account is erased.

    A job that still owes its client an event is not among them.
    """
    name, most = "result_retention_days", sa.cast(retention.most_result_days, sa.Integer)
    days = _kept(name, retention.result_days, retention.most_result_days)
    owed = sa.exists().where(
        webhook_events.c.account_id == jobs.c.account_id,
        webhook_events.c.job_id == jobs.c.id,
        webhook_events.c.next_attempt_at.is_not(None),
    )
    kept = sa.select(jobs.c.account_id, jobs.c.id).where(jobs.c.erased_at.is_(None), ~_IS_HELD)
    ended = kept.where(_days_ago(days), ~owed).order_by(jobs.c.completed_at).limit(limit)
    # Account by account: by one range of an index each, however many jobs are kept.
    owner = accounts.alias("owner")
    usual = sa.func.least(
        sa.func.coalesce(owner.c[name], sa.cast(retention.result_days, sa.Integer)), most
    )
    of_owner = jobs.c.account_id == owner.c.id
    over = ended.where(of_owner, _days_ago(usual)).lateral()
    gone = kept.where(of_owner, owner.c.erased_at.is_not(None)).limit(limit).lateral()
    own = ended.where(sa.text(OWN_DAYS)).subquery()
    due = sa.union(
        sa.select(over).select_from(owner.join(over, sa.true())),
        sa.select(gone).select_from(owner.join(gone, sa.true())),
        sa.select(own),
    ).limit(limit)
    return [(row.account_id, row.id) for row in await connection.execute(due)]


def _days_ago(days: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return whether jobs ended more than so many days ago."""
    return jobs.c.completed_at < sa.func.now() - sa.func.make_interval(0, 0, 0, days)


async def is_held(connection: Connection, job_id: uuid.UUID) -> bool:
    """Return whether a legal hold is on the job or its account."""
    query = sa.select(_IS_HELD).where(jobs.c.id == job_id)
    return bool((await connection.execute(query)).scalar_one())


async def is_voice_held(connection: Connection, voice_id: uuid.UUID) -> bool:
    """Return whether a legal hold is on a job that the voice was learnt from or recognised in."""
    return bool(await connection.scalar(sa.select(_IS_VOICE_HELD).where(voices.c.id == voice_id)))


def _is_held_with(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.voice_id == voices.c.id, table.c.job_id == jobs.c.id, _IS_HELD)


_IS_VOICE_HELD = _is_held_with(speaker_voices) | _is_held_with(speaker_labels)


async def set_legal_hold(
    connection: Connection, table: sa.Table, row_id: uuid.UUID, *, holds: bool
) -> bool:
    """Put a legal hold on a row of ``jobs`` or ``accounts``, or lift it; False without the row."""
    since = sa.func.coalesce(table.c.legal_hold_at, sa.func.now()) if holds else None
    is_job = table is jobs
    owner = jobs.c.account_id if is_job else table.c.id
    statement = sa.update(table).where(table.c.id == row_id).values(legal_hold_at=since)
    found = (await connection.execute(statement.returning(owner))).scalar_one_or_none()
    if found is None:
        return False
    action, job_id = "setLegalHold", row_id if is_job else None
    await record(connection, found, action, job_id=job_id, detail=f"holds={holds}")
    return True


async def erase_account(connection: Connection, account_id: uuid.UUID) -> bool:
    """Shut an account for good and leave its jobs to ``list_due_erasures``.

    False, and nothing is changed, where a legal hold is on it. Its ledger, purchases and the
    hashes of its keys stay, and what was done to it, without from where.
    """
    shut = (
        sa.update(accounts)
        .where(accounts.c.id == account_id, accounts.c.legal_hold_at.is_(None))
        .values(
            name=f"{ERASED_NAME}-{account_id}",
            suspended_at=sa.func.coalesce(accounts.c.suspended_at, sa.func.now()),
            erased_at=sa.func.coalesce(accounts.c.erased_at, sa.func.now()),
            vocabulary=None,
        )
    )
    if (await connection.execute(shut)).rowcount == 0:
        return False
    for table in ERASED_WITH_ACCOUNT:
        await connection.execute(sa.delete(table).where(table.c.account_id == account_id))
    # Those of jobs under a legal hold go with these.
    own_voices = voices.c.account_id == account_id
    await connection.execute(sa.delete(voices).where(own_voices, ~_IS_VOICE_HELD))
    await remove_archives(connection, account_id)
    revoked = {"status": KeyStatus.REVOKED, "benefit_id": None}
    await connection.execute(
        sa.update(api_keys).where(api_keys.c.account_id == account_id).values(revoked)
    )
    nobody = {"email": "", "issuer": None, "subject": None}
    removed = nobody | {"removed_at": sa.func.coalesce(users.c.removed_at, sa.func.now())}
    await connection.execute(
        sa.update(users).where(users.c.account_id == account_id).values(removed)
    )
    await forget_addresses(connection, account_id)
    await record(connection, account_id, "eraseAccount")
    return True


async def end_round(connection: Connection, held: Held, done: CleaningRound) -> None:
    """Remember that a round is done, and when the next one is due. Raises WorkLostError."""
    following = done.next_at
    statement = sa.update(jobs).where(jobs.c.id == done.job_id, jobs.c.cleaning_after.is_not(None))
    cleaned = {"cleaning_after": following, "cleaned_at": None if following else sa.func.now()}
    await connection.execute(statement.values(cleaned))
    await end(connection, held)


ERASED_NAME = "erased"
"""In place of the names of an erased job's files."""


async def erase_content(connection: Connection, job: JobRecord) -> None:
    """Remove what an ended job holds of its media and its client, and make its objects due.

    Its state, times and charges stay. Answers that are kept for retries and name the job go too,
    so that a retry of its creation with the old key creates another one.
    """
    for table in ERASED_WITH_JOB:
        await connection.execute(sa.delete(table).where(table.c.job_id == job.id))
    await withdraw(connection, job.id)
    await result_changed(connection, ResultChange(job.id, frozenset(ANALYSES), Cause.ERASED))
    learnt = sa.exists().where(speaker_voices.c.voice_id == voices.c.id)
    await connection.execute(
        sa.delete(voices).where(voices.c.account_id == job.account_id, ~learnt, ~_IS_VOICE_HELD)
    )  # Those that were learnt from this job alone.
    await connection.execute(
        sa.update(archive_objects)
        .where(archive_objects.c.job_id == job.id, archive_objects.c.state != ObjectState.WAITING)
        .values(key=None, error_message=None)
    )
    names_it = sa.text("position(convert_to(:job, 'UTF8') IN body) > 0").bindparams(job=str(job.id))
    await connection.execute(
        sa.delete(idempotency_records).where(
            idempotency_records.c.account_id == job.account_id, names_it
        )
    )
    await connection.execute(
        sa.update(uploads).where(uploads.c.job_id == job.id).values(file_name=ERASED_NAME)
    )
    await connection.execute(
        sa.update(stages)
        .where(stages.c.job_id == job.id)
        .values(error_message=None, receipt=sa.null())
    )
    source = JobSource(kind=job.source.kind, base_url=job.source.base_url)
    await connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job.id)
        .values(
            file_name=ERASED_NAME,
            callback_url=None,
            metadata={},
            tags=[],
            source=source.stored(),
            ingest_result=None,
            audio_track_names=None,
            warnings=[],
            error_message=None,
            muted=None,
            redact_after=None,
            redact_error=None,
            erased_at=sa.func.now(),
            cleaned_at=None,
            cleaning_after=sa.func.now(),
        )
    )
