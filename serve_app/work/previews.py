"""Makes the previews that jobs need, one at a time beside the jobs; a job never waits for its own.

A job that was cancelled, or whose media is removed, ends the making of its preview.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from datetime import timedelta

from pipelines.codec import from_json
from pipelines.ingest.preview import PreviewOrder, make_preview
from pipelines.types import MediaInfo, StageError, StageStoppedError
from serve_app.observability.metrics import PREVIEWS
from serve_app.work.queue import Work, work
from storage import jobs, uploads
from storage.history import find_muted
from storage.objects import ObjectNotFoundError
from storage.types import PreviewStatus
from storage.work import end

log = logging.getLogger("vas.previews")

_UNWANTED = "The job ended without it, or its media was removed first."


async def _give_up(work: Work, error: BaseException | None) -> None:
    """It probably kills whoever makes it."""
    reason = "What reads the file was lost again and again."
    if error is not None:
        reason = f"Making it broke ({type(error).__name__})."
    await _end(work, PreviewStatus.FAILED, reason)


@work(
    uploads.PREVIEW,
    lease=timedelta(seconds=30),
    attempts=2,
    pause=timedelta(seconds=30),
    looked_after=timedelta(seconds=1),
    is_wanted=uploads.is_preview_wanted,
    give_up=_give_up,
)
async def make_job_preview(work: Work) -> None:
    """Make a preview, for better or worse."""
    began = time.monotonic()
    try:
        reason = await _reason_of_failure(work)
    except (ObjectNotFoundError, StageStoppedError):
        reason = _UNWANTED
    except StageError as error:
        reason = error.message
    status = PreviewStatus.MADE if reason is None else PreviewStatus.FAILED
    await _end(work, status, reason)
    seconds = time.monotonic() - began
    log.info("preview %s in %.1f s%s", status, seconds, f": {reason}" if reason else "")
    work.context.metrics.record(PREVIEWS, seconds, {"outcome": str(status)})


async def _reason_of_failure(work: Work) -> str | None:
    """Make it; None where it is there now."""
    work.check()
    job_id, settings, objects = work.held.subject_id, work.context.settings, work.context.objects
    async with work.context.database.statement() as connection:
        source = await uploads.find_preview_source(connection, job_id)
        ingested = await jobs.find_ingest_result(connection, job_id)
        muted = await find_muted(connection, job_id)
    if source is None:
        return _UNWANTED
    order = PreviewOrder(
        source_key=source,
        target_key=uploads.preview_key(job_id, muted),
        media=from_json(MediaInfo, (ingested or {}).get("media")),
        most_bytes=settings.preview_max_bytes,
        wall_seconds=settings.stage_timeout_seconds,
        muted=muted,
    )
    inside = contextvars.copy_context()
    await asyncio.to_thread(inside.run, make_preview, order, objects, check=work.check)
    if await work.context.database.read(uploads.is_preview_wanted, work.held):
        return None
    # Whoever removes the job's media may have been here already.
    await asyncio.to_thread(objects.delete, order.target_key)
    return _UNWANTED


async def _end(work: Work, status: PreviewStatus, reason: str | None) -> None:
    async with work.context.database.transaction() as connection:
        await uploads.end_preview(connection, work.held.subject_id, status, reason)
        await end(connection, work.held)
