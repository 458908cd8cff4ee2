"""Jobs and their stages: reading them, and every change of state, each a compare-and-set.

A change that finds the job in another state than expected changes nothing and returns that.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from psycopg.types.json import Json, Jsonb
from sqlalchemy.dialects.postgresql import JSONB, insert

from storage import history
from storage.database import Connection, run
from storage.job_records import JOB_QUERY, JobRecord, JobSource, NewJob, job_record
from storage.results import TrackTranscript
from storage.search_index import file_rows, index_once, insert_rows, replace_rows
from storage.tables import jobs, stages
from storage.types import (
    MODE_STAGES,
    TRANSITIONS,
    JobState,
    ProcessingMode,
    SkipReason,
    StageName,
    StageStatus,
    Tier,
)
from storage.uploads import Upload

MAX_LEASES = 3
"""A job whose runner was lost this often fails: it probably kills them."""

_AT_ONCE = 100
"""Lost jobs requeued in one transaction, which locks their accounts until it ends."""

_OPEN_STATUSES = (StageStatus.PENDING, StageStatus.RUNNING)

QUEUE_CHANNEL = "vas_jobs_queued"
"""NOTIFY channel that wakes idle runners."""


class LeaseLostError(Exception):
    """The lease token is no longer the job's: cancelled, taken over, or ended."""


_INSERTED = tuple(field.name for field in fields(NewJob) if field.name != "upload_lifetime")
_INSERT = sa.text(
    f"""
    WITH job AS (
        INSERT INTO jobs ({", ".join(_INSERTED)}, upload_expires_at)
        VALUES ({", ".join(f":{name}" for name in _INSERTED)}, now() + :upload_lifetime)
        RETURNING id
    ), waiting AS (
        INSERT INTO stages (job_id, stage, status, skip_reason)
        SELECT job.id, new.* FROM job, unnest(
            CAST(:stage_names AS text[]), CAST(:stage_statuses AS text[]),
            CAST(:skip_reasons AS text[])) AS new
    ), announced AS (
        INSERT INTO uploads (job_id, slot, file_name, object_key, declared_bytes)
        SELECT job.id, new.* FROM job, unnest(
            CAST(:slots AS text[]), CAST(:file_names AS text[]), CAST(:object_keys AS text[]),
            CAST(:declared_bytes AS bigint[])) AS new
    )
    SELECT id FROM job
    """  # noqa: S608  (constants of this module)
)


async def insert_job(connection: Connection, job: NewJob, uploads: Sequence[Upload] = ()) -> None:
    """Store a job, its three stages, and the files that it waits for; one statement.

    Stages that its mode excludes are skipped.
    """
    included = MODE_STAGES[job.processing_mode]
    values = {name: getattr(job, name) for name in _INSERTED}
    await run(
        connection,
        _INSERT,
        **values
        | {
            "metadata": Json(job.metadata),
            "source": Jsonb(job.source.stored()),
            "warnings": Jsonb(job.warnings),
            "upload_lifetime": job.upload_lifetime,
            "stage_names": [str(stage) for stage in StageName],
            "stage_statuses": [
                str(StageStatus.PENDING if stage in included else StageStatus.SKIPPED)
                for stage in StageName
            ],
            "skip_reasons": [
                None if stage in included else str(SkipReason.PROCESSING_MODE)
                for stage in StageName
            ],
            "slots": [upload.slot for upload in uploads],
            "file_names": [upload.file_name for upload in uploads],
            "object_keys": [upload.object_key for upload in uploads],
            "declared_bytes": [upload.declared_bytes for upload in uploads],
        },
    )
    if job.state is JobState.QUEUED:
        await _wake_runners(connection)


async def change_awaiting(connection: Connection, job_id: uuid.UUID, job: NewJob) -> bool:
    """Give a job that waits for its media the options of another; False for one that does not."""
    statement = (
        sa.update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state == JobState.AWAITING_UPLOAD)
        .values(source=job.source.stored(), callback_url=job.callback_url, warnings=job.warnings)
    )
    return bool((await connection.execute(statement)).rowcount)


async def find_job(
    connection: Connection,
    job_id: uuid.UUID,
    *,
    account_id: uuid.UUID | None = None,
    for_update: bool = False,
) -> JobRecord | None:
    """Return the job, or None if there is none (of this account). ``for_update`` locks its row."""
    query = _job_query(own=account_id is not None, locked=for_update)
    owner = {} if account_id is None else {"account_id": account_id}
    rows = await run(connection, query, job_id=job_id, **owner)
    return job_record(rows[0]) if rows else None


@functools.cache
def _job_query(*, own: bool, locked: bool) -> sa.Select[Any]:
    query = JOB_QUERY.where(jobs.c.id == sa.bindparam("job_id", type_=sa.Uuid))
    if own:
        query = query.where(jobs.c.account_id == sa.bindparam("account_id", type_=sa.Uuid))
    return query.with_for_update(of=jobs) if locked else query


async def set_state(
    connection: Connection,
    job_id: uuid.UUID,
    *,
    expected: JobState,
    state: JobState,
    error_code: str | None = None,
    error_message: str | None = None,
) -> bool:
    """Move a job on, giving up any lease; False if it was not in ``expected`` any more.

    Raises ValueError for a transition that the state machine does not have.
    """
    if state not in TRANSITIONS[expected]:
        raise ValueError(f"{expected} -> {state} is no transition")
    ended = not TRANSITIONS[state]
    statement = (
        sa.update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state == expected)
        .values(
            state=state,
            lease_token=None,
            lease_expires_at=None,
            completed_at=sa.func.now() if ended else None,
            error_code=error_code,
            error_message=error_message,
        )
    )
    moved = (await connection.execute(statement)).rowcount == 1
    if moved and state is JobState.QUEUED:
        await _wake_runners(connection)
    return moved


async def _wake_runners(connection: Connection) -> None:
    await connection.execute(sa.text(f"NOTIFY {QUEUE_CHANNEL}"))


async def lease_next(
    connection: Connection, *, lease: timedelta
) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Take the job whose turn it is: ``(job id, lease token)``, or None if nothing waits.

    The turn is the tag that a trigger gave it when it was queued; leasing it sets
    the clock that later tags follow. SKIP LOCKED: any number of runners lease concurrently
    without waiting for each other.
    """
    token = uuid.uuid4()
    rows = await run(connection, LEASE, token=token, lease=lease)
    return (rows[0]["id"], token) if rows else None


LEASE = sa.text(
    """
    UPDATE jobs
       SET state = 'processing', lease_token = :token, lease_expires_at = now() + :lease,
           lease_count = lease_count + 1, started_at = coalesce(started_at, now())
     WHERE id = (
        SELECT id FROM jobs WHERE state = 'queued' AND NOT parked
         ORDER BY finish_tag, created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, setval('virtual_clock', greatest(
        finish_tag, (SELECT last_value FROM virtual_clock)))
    """
)


async def extend_lease(
    connection: Connection,
    job_id: uuid.UUID,
    token: uuid.UUID,
    *,
    lease: timedelta,
    progress: dict[StageName, float],
) -> None:
    """The runner's heartbeat, with its progress; raises LeaseLostError."""
    statement = (
        sa.update(jobs)
        .where(jobs.c.id == job_id, jobs.c.lease_token == token)
        .values(lease_expires_at=sa.func.now() + lease)
    )
    if (await connection.execute(statement)).rowcount != 1:
        raise LeaseLostError(str(job_id))
    if progress:
        await connection.execute(
            sa.update(stages)
            .where(
                stages.c.job_id == job_id,
                stages.c.stage == sa.bindparam("of_stage"),
                stages.c.status == StageStatus.RUNNING,
            )
            # A stage taken up again starts with what is stored: it must not seem to go back.
            .values(progress=sa.func.greatest(stages.c.progress, sa.bindparam("new_progress"))),
            [{"of_stage": name, "new_progress": value} for name, value in progress.items()],
        )


async def lock_leased(connection: Connection, job_id: uuid.UUID, token: uuid.UUID) -> JobRecord:
    """Return the job, locked, if the lease still holds; raises LeaseLostError."""
    job = await find_job(connection, job_id, for_update=True)
    if job is None or job.lease_token != token:
        raise LeaseLostError(str(job_id))
    return job


async def set_stage(
    connection: Connection,
    job_id: uuid.UUID,
    stage: StageName,
    status: StageStatus,
    *,
    skip_reason: SkipReason | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
    timings: dict[str, float] | None = None,
    made_with: str | None = None,
    receipt: Mapping[str, Any] | None = None,
    waived_cents: int = 0,
) -> None:
    """Move a stage that has not ended. The caller holds the job's lock or lease."""
    values: dict[str, Any] = {
        "status": status,
        "skip_reason": skip_reason,
        "error_code": error_code,
        "error_message": error_message,
        "waived_cents": waived_cents,
    }
    if status is StageStatus.RUNNING:
        values["started_at"] = sa.func.coalesce(stages.c.started_at, sa.func.now())
    elif status is not StageStatus.PENDING:
        values["ended_at"] = sa.func.now()
    if status is StageStatus.COMPLETED:
        values["progress"] = 1
    if timings is not None:
        values |= {"timings": timings, "made_with": made_with}
    if receipt is not None:
        values["receipt"] = receipt
    await connection.execute(
        sa.update(stages)
        .where(
            stages.c.job_id == job_id, stages.c.stage == stage, stages.c.status.in_(_OPEN_STATUSES)
        )
        .values(values)
    )


async def skip_open_stages(
    connection: Connection, job_id: uuid.UUID, reason: SkipReason, *, error_code: str | None = None
) -> None:
    """Skip every stage that has not ended."""
    await connection.execute(
        sa.update(stages)
        .where(stages.c.job_id == job_id, stages.c.status.in_(_OPEN_STATUSES))
        .values(
            status=StageStatus.SKIPPED,
            skip_reason=reason,
            error_code=error_code,
            error_message=None,
            ended_at=sa.func.now(),
        )
    )


async def requeue_lost(connection: Connection) -> list[tuple[uuid.UUID, bool]]:
    """Requeue jobs whose lease ran out: ``(job id, may run again)`` for each job found, up to 100.

    A job that may run again is queued, its running stages pending; one that was
    leased MAX_LEASES times is left ``processing`` for the caller to fail.
    """
    query = (
        sa.select(jobs.c.id, jobs.c.lease_count)
        .where(jobs.c.state == JobState.PROCESSING, jobs.c.lease_expires_at < sa.func.now())
        .order_by(jobs.c.lease_expires_at)
        .limit(_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    found = (await connection.execute(query)).all()
    outcome: list[tuple[uuid.UUID, bool]] = []
    for row in found:
        again = row.lease_count < MAX_LEASES
        if again:
            await set_state(connection, row.id, expected=JobState.PROCESSING, state=JobState.QUEUED)
            await reopen_running_stages(connection, row.id)
        outcome.append((row.id, again))
    return outcome


async def reopen_running_stages(
    connection: Connection, job_id: uuid.UUID, *, forgive_lease: bool = False
) -> None:
    """Set running stages to pending. ``forgive_lease``: do not count the lease."""
    await connection.execute(
        sa.update(stages)
        .where(stages.c.job_id == job_id, stages.c.status == StageStatus.RUNNING)
        .values(status=StageStatus.PENDING)
    )
    if forgive_lease:
        await connection.execute(
            sa.update(jobs).where(jobs.c.id == job_id).values(lease_count=jobs.c.lease_count - 1)
        )


async def change_job(connection: Connection, job: JobRecord, file_name: str, **values: Any) -> None:
    """Give a locked job another name, by which it is found from then on, and other values of its
    columns."""
    changed = sa.update(jobs).where(jobs.c.id == job.id)
    await connection.execute(changed.values(file_name=file_name, **values))
    ingest = StageName.INGEST
    is_found = job.stages[ingest].status is StageStatus.COMPLETED
    if is_found and not await index_once(connection, job.id, ingest):
        before, after = (file_rows(name, job.duration_ms) for name in (job.file_name, file_name))
        await replace_rows(connection, job.id, ingest, before, after)


async def list_file_names(
    connection: Connection, ids: Iterable[uuid.UUID | None]
) -> dict[uuid.UUID, str]:
    """Return the names of these jobs' files."""
    query = sa.select(jobs.c.id, jobs.c.file_name).where(jobs.c.id.in_({*ids} - {None}))
    return {row.id: row.file_name for row in await connection.execute(query)}


async def set_ingest_result(
    connection: Connection,
    job_id: uuid.UUID,
    *,
    result: dict[str, Any],
    track_names: list[str],
    warnings: Sequence[Mapping[str, Any]],
) -> None:
    """Store what ingest found, so that a runner that takes over need not ingest again."""
    await connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(ingest_result=result, audio_track_names=track_names)
    )
    await add_warnings(connection, job_id, warnings)


async def add_warnings(
    connection: Connection, job_id: uuid.UUID, warnings: Sequence[Mapping[str, Any]]
) -> None:
    """Add to what the job's client should know."""
    more = sa.bindparam("more", warnings, JSONB)
    await connection.execute(
        sa.update(jobs).where(jobs.c.id == job_id).values(warnings=jobs.c.warnings.op("||")(more))
    )


async def set_warning(
    connection: Connection, job_id: uuid.UUID, warning: Mapping[str, Any], *, holds: bool
) -> None:
    """Have a warning stand once among the job's, or no more."""
    values = {"job_id": job_id, "this": warning, "then": [warning] if holds else []}
    await connection.execute(_SET_WARNING, values)


_SET_WARNING = sa.text(
    "UPDATE jobs SET warnings = :then || (SELECT coalesce(jsonb_agg(each), '[]')"
    " FROM jsonb_array_elements(warnings) AS each WHERE each <> :this) WHERE id = :job_id"
).bindparams(sa.bindparam("this", type_=JSONB), sa.bindparam("then", type_=JSONB))


async def find_ingest_result(connection: Connection, job_id: uuid.UUID) -> dict[str, Any] | None:
    """Return what ``set_ingest_result`` stored; None before."""
    query = sa.select(jobs.c.ingest_result).where(jobs.c.id == job_id)
    result: dict[str, Any] | None = (await connection.execute(query)).scalar_one_or_none()
    return result


async def set_quote(
    connection: Connection,
    job_id: uuid.UUID,
    *,
    duration_ms: int,
    billable_seconds: int,
    quote_cents: dict[str, int],
) -> None:
    """Fix what the job will be charged, stage by stage."""
    await connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            duration_ms=duration_ms,
            billable_seconds=billable_seconds,
            quote_cents=quote_cents,
            quoted_at=sa.func.now(),
        )
    )


async def month_usage_seconds(
    connection: Connection, account_id: uuid.UUID, *, except_job: uuid.UUID | None = None
) -> int:
    """Billable seconds of this UTC month: jobs charged, and jobs that still may be."""
    month: sa.ColumnElement[datetime] = sa.literal_column(
        "date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
    )
    query = sa.select(sa.func.coalesce(sa.func.sum(jobs.c.billable_seconds), 0)).where(
        jobs.c.account_id == account_id,
        jobs.c.quoted_at >= month,
        (jobs.c.charged_cents > 0) | jobs.c.completed_at.is_(None),
    )
    if except_job is not None:
        query = query.where(jobs.c.id != except_job)
    return int((await connection.execute(query)).scalar_one())


_UNFINISHED = sa.select(sa.func.count().label("unfinished")).where(
    jobs.c.account_id == sa.bindparam("account_id", type_=sa.Uuid), jobs.c.completed_at.is_(None)
)


async def count_unfinished(connection: Connection, account_id: uuid.UUID) -> int:
    """Return how many of the account's jobs have not ended."""
    [row] = await run(connection, _UNFINISHED, account_id=account_id)
    return int(row["unfinished"])


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """A job that is over, with all that came of it."""

    id: uuid.UUID
    account_id: uuid.UUID
    processing_mode: ProcessingMode
    file_name: str
    metadata: dict[str, Any]
    source: JobSource
    duration_ms: int | None
    warnings: Sequence[Mapping[str, Any]]
    skipped: dict[StageName, SkipReason]
    """Stages that did not run; the others completed."""
    scenes: Sequence[Mapping[str, Any]] | None
    """None where vision did not run."""
    overview: Mapping[str, Any] | None
    tracks: list[TrackTranscript]


async def known_jobs(connection: Connection, ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Return which of the ids are jobs, of whatever account."""
    query = sa.select(jobs.c.id).where(jobs.c.id.in_(ids))
    return set((await connection.execute(query)).scalars())


async def import_job(connection: Connection, job: ImportedJob) -> bool:
    """Store the job; False, and nothing is changed, if there is one of that id.

    It is never charged and never counts towards a month: it has no quote.
    """
    statement = (
        insert(jobs)
        .values(
            id=job.id,
            account_id=job.account_id,
            state=JobState.COMPLETED,
            processing_mode=job.processing_mode,
            tier=Tier.STANDARD,
            file_name=job.file_name,
            metadata=job.metadata,
            source=job.source.stored(),
            started_at=sa.func.now(),
            completed_at=sa.func.now(),
            duration_ms=job.duration_ms,
            audio_track_names=[track.track_name for track in job.tracks],
            warnings=job.warnings,
        )
        .on_conflict_do_nothing(index_elements=[jobs.c.id])
        .returning(jobs.c.id)
    )
    if (await connection.execute(statement)).scalar_one_or_none() is None:
        return False
    ended = insert(stages).values(ended_at=sa.func.now())
    await connection.execute(ended, [_stage(job, name) for name in StageName])
    named = file_rows(job.file_name, job.duration_ms)
    await insert_rows(connection, job.id, named, StageName.INGEST)
    if job.scenes is not None:
        await history.store_scenes(connection, job.id, job.scenes, job.overview)
    if job.tracks:
        await history.store_transcripts(connection, job.id, job.tracks)
    return True


def _stage(job: ImportedJob, stage: StageName) -> dict[str, Any]:
    reason = job.skipped.get(stage)
    return {
        "job_id": job.id,
        "stage": stage,
        "status": StageStatus.COMPLETED if reason is None else StageStatus.SKIPPED,
        "progress": 0 if reason else 1,
        "skip_reason": reason,
    }
