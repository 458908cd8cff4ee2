"""How a job ends: state, stages, money and webhook event in one transaction."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from serve_app.api.envelope import timestamp
from serve_app.jobs.rendering import render_job
from storage import jobs, ledger, webhooks
from storage.database import Connection
from storage.job_records import JobRecord
from storage.types import (
    ENDED_STATUSES,
    TERMINAL_EVENTS,
    EventType,
    JobState,
    SkipReason,
    StageName,
    StageStatus,
)
from storage.webhooks import NewEvent


class ReplayError(Exception):
    """Why there is nothing to send again, in a sentence."""


def _new_event(
    job: JobRecord, event_type: EventType, callback_url: str, written_at: datetime
) -> NewEvent:
    body = {
        "type": str(event_type),
        "timestamp": timestamp(written_at),
        "data": render_job(job, job.source.base_url),
    }
    encoded = json.dumps(body, ensure_ascii=False).encode()
    return NewEvent(job.account_id, job.id, event_type, callback_url, encoded)


async def replay(connection: Connection, job_id: str) -> dict[str, Any]:
    """Start a new series of attempts at the job's event, under its old ``webhook-id``.

    An event that is still in the log keeps its bytes; one that has left it is written
    anew from the job. Raises ReplayError.
    """
    job = await jobs.find_job(connection, _job_id(job_id))
    if job is None:
        raise ReplayError(f"There is no job {job_id}.")
    if job.callback_url is None:
        raise ReplayError(f"Job {job.id} has no callbackUrl: no event belongs to it.")
    event_type = TERMINAL_EVENTS.get(job.state)
    if event_type is None or job.completed_at is None:
        raise ReplayError(f"Job {job.id} is {job.state}: no event belongs to that.")
    event = _new_event(job, event_type, job.callback_url, job.completed_at)
    if not await webhooks.replay_event(connection, event):
        raise ReplayError(
            f"The endpoint answered 410 Gone to {event_type} of job {job.id}: "
            "no further deliveries of that are made."
        )
    return {
        "id": event.id,
        "eventType": str(event_type),
        "urlHost": urlsplit(job.callback_url).hostname,
    }


def _job_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise ReplayError(f"{text} is no job's id: ids are UUIDs.") from error


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
    hold is released; the webhook event is written. Returns False if the job is no
    longer in the state that ``job`` shows: then only what was still held is released.
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
    event = _new_event(job, event_type, job.callback_url, datetime.now(UTC))
    await webhooks.add_event(connection, event)
