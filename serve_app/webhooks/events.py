"""The body of a job's event."""

from __future__ import annotations

import json
from datetime import datetime

from serve_app.jobs.rendering import render_job, timestamp
from storage.job_records import JobRecord
from storage.types import EventType


def event_body(job: JobRecord, event_type: EventType, written_at: datetime) -> bytes:
    """The bytes that are stored, and signed and sent as they are on every attempt."""
    body = {
        "type": str(event_type),
        "timestamp": timestamp(written_at),
        "data": render_job(job, job.source["base_url"]),
    }
    return json.dumps(body, ensure_ascii=False).encode()
