"""A file is complete: record it, and queue the job with the last one, exactly once."""

from __future__ import annotations

import asyncio
import uuid

from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.uploads.access import require_awaiting
from storage import jobs, uploads
from storage.types import JobState


async def record_complete(
    context: AppContext, job_id: uuid.UUID, slot: str, received_bytes: int, object_key: str
) -> None:
    """The file lies under ``object_key``; one that came before it is removed.

    Raises ApiError 409 where the job takes no upload any more: then the caller's
    object belongs to nobody.
    """
    async with context.database.transaction() as connection:
        # The job's lock makes completions one after the other: only one is the last.
        job = await jobs.find_job(connection, job_id, for_update=True)
        earlier = await uploads.find_upload(connection, job_id, slot)
        if job is None or earlier is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such upload.")
        if (earlier.received_bytes, earlier.object_key) == (received_bytes, object_key):
            return  # recorded already, by whoever found it complete first
        require_awaiting(job)
        if await uploads.complete_upload(
            connection, job_id, slot, received_bytes, object_key=object_key
        ):
            await jobs.set_state(
                connection, job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
    if earlier.completed_at is not None and earlier.object_key != object_key:
        await asyncio.to_thread(context.objects.delete, earlier.object_key)
