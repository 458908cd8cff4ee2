"""How a job ends: state, stages, money and event in one transaction."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from serve_app.jobs.events import event_body
from storage import jobs, ledger, outbox
from storage.database import Connection
from storage.job_records import JobRecord
from storage.types import (
    ENDED_STATUSES,
    TERMINAL_EVENTS,
    JobState,
    SkipReason,
    StageName,
    StageStatus,
)


async def end_job(
    connection: Connection,
    job: JobRecord,
    state: JobState,
    *,
    open_stages: SkipReason = SkipReason.JOB_FAILED,
    stage_error_code: str | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
) -> bool:
    """Move ``job`` to a terminal state with everything that belongs to it.

    Stages that have not ended are skipped for ``open_stages``; the rest of the
    hold is released; the webhook event is written. Returns False, having
    changed nothing, if the job is no longer in the state that ``job`` shows.
    """
    await ledger.release_rest(connection, job.id, f"job {state}")
    moved = await jobs.set_state(
        connection,
        job.id,
        expected=job.state,
        state=state,
        error_code=error_code,
        error_message=error_message,
    )
    if not moved:
        return False
    await jobs.skip_open_stages(connection, job.id, open_stages, error_code=stage_error_code)
    await _write_event(connection, job.id, state)
    return True


async def finish_if_ended(connection: Connection, job_id: uuid.UUID) -> JobState | None:
    """End a processing job once none of its stages is open any more; its end, if this was it."""
    job = await jobs.find_job(connection, job_id)
    if job is None or any(stage.status not in ENDED_STATUSES for stage in job.stages.values()):
        return None
    failed = [
        job.stages[name] for name in StageName if job.stages[name].status is StageStatus.FAILED
    ]
    if not failed:
        return JobState.COMPLETED if await end_job(connection, job, JobState.COMPLETED) else None
    moved = await end_job(
        connection,
        job,
        JobState.FAILED,
        error_code=failed[0].error_code,
        error_message=failed[0].error_message,
    )
    return JobState.FAILED if moved else None


async def _write_event(connection: Connection, job_id: uuid.UUID, state: JobState) -> None:
    event_type = TERMINAL_EVENTS.get(state)
    job = await jobs.find_job(connection, job_id)
    if event_type is None or job is None or job.callback_url is None:
        return
    await outbox.add_event(
        connection,
        account_id=job.account_id,
        job_id=job.id,
        event_type=event_type,
        url=job.callback_url,
        body=event_body(job, event_type, datetime.now(UTC)),
    )
