"""Makes the previews that jobs need, one at a time beside the jobs; a job never waits for its own.

A job that was cancelled, or whose media is removed, ends the making of its preview.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

from pipelines.codec import from_json
from pipelines.ingest.preview import PreviewOrder, make_preview
from pipelines.types import MediaInfo, StageError, StageStoppedError
from serve_app.context import AppContext
from serve_app.observability.logs import log_context
from serve_app.observability.metrics import record_preview
from storage import jobs
from storage.database import UNAVAILABLE
from storage.objects import ObjectNotFoundError, is_outage
from storage.previews import (
    LeasedPreview,
    end_preview,
    extend_preview,
    give_back_preview,
    lease_next_preview,
)
from storage.redactions import find_muted
from storage.types import PreviewStatus
from storage.uploads import preview_key

log = logging.getLogger("vas.previews")

PREVIEW_SECONDS = 2.0
"""Until it is looked again whether a preview is to be made."""
_OUTAGE_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""Seconds between checks that the preview is still needed."""
_LEASE = timedelta(seconds=30)
_UNWANTED = "The job ended without it, or its media was removed first."


@dataclass(slots=True)
class _Halt:
    """Tells the thread that encodes to stop, and why."""

    event: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.event.is_set():
            raise StageStoppedError(_UNWANTED)


class Previewer:
    """Any number may be at work; each makes one preview at a time."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def step(self) -> float | None:
        """Make the oldest pending preview; 0 for another at once, None where there was none."""
        return 0.0 if await self.make_next() else None

    async def make_next(self) -> bool:
        """Make a preview, for better or worse; False where there was nothing to do."""
        held = await lease_next_preview(self._context.database, lease=_LEASE)
        if held is None:
            return False
        with log_context(jobId=held.job_id):
            await self._make(held)
        return True

    async def _make(self, held: LeasedPreview) -> None:
        began, halt = time.monotonic(), _Halt()
        watch = asyncio.create_task(self._watch(held, halt))
        try:
            reason = await self._reason_of_failure(held, halt)
        except BaseException as error:
            # Stopped, or the database or the store is away: somebody makes it later.
            halt.event.set()
            async with self._context.database.transaction() as connection:
                await give_back_preview(connection, held)
            if not isinstance(error, UNAVAILABLE) and not is_outage(error):
                raise
            log.warning("the preview waits: %s", error)
            await asyncio.sleep(_OUTAGE_SECONDS)
            return
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        status = PreviewStatus.MADE if reason is None else PreviewStatus.FAILED
        async with self._context.database.transaction() as connection:
            await end_preview(connection, held, status, reason)
        seconds = time.monotonic() - began
        log.info("preview %s in %.1f s%s", status, seconds, f": {reason}" if reason else "")
        record_preview(self._context.metrics, status, seconds)

    async def _reason_of_failure(self, held: LeasedPreview, halt: _Halt) -> str | None:
        """Make it; None where it is there now. Raises what is the machine's fault alone."""
        if not await self._is_wanted(held):
            return _UNWANTED
        order = await self._order(held)
        inside = contextvars.copy_context()
        try:
            await asyncio.to_thread(
                inside.run, make_preview, order, self._context.objects, check=halt.check
            )
        except (ObjectNotFoundError, StageStoppedError):
            return _UNWANTED
        except StageError as error:
            return error.message
        except Exception as error:
            if isinstance(error, UNAVAILABLE) or is_outage(error):
                raise
            log.exception("the preview broke")
            return f"Making it broke ({type(error).__name__})."
        if not await self._is_wanted(held):
            # Whoever removes the job's media may have been here already.
            await asyncio.to_thread(self._context.objects.delete, order.target_key)
            return _UNWANTED
        return None

    async def _order(self, held: LeasedPreview) -> PreviewOrder:
        async with self._context.database.statement() as connection:
            ingested = await jobs.find_ingest_result(connection, held.job_id)
            muted = await find_muted(connection, held.job_id)
        settings = self._context.settings
        return PreviewOrder(
            source_key=held.source_key,
            target_key=preview_key(held.job_id, muted),
            media=from_json(MediaInfo, (ingested or {}).get("media")),
            most_bytes=settings.preview_max_bytes,
            wall_seconds=settings.stage_timeout_seconds,
            muted=muted,
        )

    async def _is_wanted(self, held: LeasedPreview) -> bool:
        return await extend_preview(self._context.database, held, lease=_LEASE)

    async def _watch(self, held: LeasedPreview, halt: _Halt) -> None:
        """Renew the lease while the preview is needed; stop the work where it is not."""
        last_success = time.monotonic()
        while not halt.event.is_set():
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if not await self._is_wanted(held):
                    halt.event.set()
                last_success = time.monotonic()
            except UNAVAILABLE:
                if time.monotonic() - last_success > _LEASE.total_seconds():
                    halt.event.set()
