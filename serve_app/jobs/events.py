"""A job's webhook event: its body, and sending it again."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from serve_app.api.envelope import timestamp
from serve_app.jobs.rendering import render_job
from storage import jobs, outbox
from storage.database import Connection
from storage.job_records import JobRecord
from storage.types import TERMINAL_EVENTS, EventType


class ReplayError(Exception):
    """Why there is nothing to send again, in a sentence."""


def event_body(job: JobRecord, event_type: EventType, written_at: datetime) -> bytes:
    """The bytes that are stored, and signed and sent as they are on every attempt."""
    body = {
        "type": str(event_type),
        "timestamp": timestamp(written_at),
        "data": render_job(job, job.source.base_url),
    }
    return json.dumps(body, ensure_ascii=False).encode()


async def replay(connection: Connection, job_id: str) -> dict[str, Any]:
    """Start a new series of attempts at the job's event, under its old ``webhook-id``.

    An event that is still in the log keeps its bytes; one that has left it is written
    anew from the job. Raises ReplayError.
    """
    job = await jobs.find_job(connection, _job_id(job_id))
    if job is None:
        raise ReplayError(f"There is no job {job_id}.")
    if job.callback_url is None:
        raise ReplayError(f"Job {job.id} has no callbackUrl: nobody is told of it.")
    event_type = TERMINAL_EVENTS.get(job.state)
    if event_type is None or job.completed_at is None:
        raise ReplayError(f"Job {job.id} is {job.state}: no event belongs to that.")
    written = await outbox.replay_event(
        connection,
        account_id=job.account_id,
        job_id=job.id,
        event_type=event_type,
        url=job.callback_url,
        body=event_body(job, event_type, job.completed_at),
    )
    if not written:
        raise ReplayError(
            f"The endpoint answered 410 Gone to {event_type} of job {job.id}: "
            "no further deliveries of that are made."
        )
    return {
        "id": outbox.event_id(job.id, event_type),
        "eventType": str(event_type),
        "urlHost": urlsplit(job.callback_url).hostname,
    }


def _job_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise ReplayError(f"{text} is no job's id: ids are UUIDs.") from error
