"""The reaper: lost leases, uploads that never came, objects of jobs that ended."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from serve_app.jobs.lifecycle import end_job
from serve_app.world import World
from storage import access, cleaning, idempotency, jobs, keys, results
from storage.types import JobState, SkipReason, StageName, StageStatus

log = logging.getLogger("vas.reaper")

_SWEEP_SECONDS = 2.0
_CLEAN_AT_ONCE = 20
_FORGET_SECONDS = 60.0


class Reaper:
    """Sweeps every few seconds. Several may run at once: rows are taken with SKIP LOCKED."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._forget_at = 0.0

    async def sweep_and_wait(self) -> None:
        """One sweep and the pause after it."""
        await self.sweep()
        await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Do everything that is due now."""
        await self._requeue_lost()
        await self._expire_uploads()
        await self._clean_ended()
        if time.monotonic() >= self._forget_at:
            await self._forget_old()
            self._forget_at = time.monotonic() + _FORGET_SECONDS

    async def _requeue_lost(self) -> None:
        async with self._world.database.transaction() as connection:
            for job_id, runs_again in await jobs.requeue_lost(connection):
                log.warning("job %s: its runner was lost", job_id)
                if runs_again:
                    continue
                job = await jobs.find_job(connection, job_id)
                if job is None:
                    continue
                await end_job(
                    connection,
                    job,
                    JobState.FAILED,
                    error_code="PROCESSING_FAILED",
                    error_message=f"The job was given up after {jobs.MAX_LEASES} lost runners.",
                )

    async def _expire_uploads(self) -> None:
        async with self._world.database.transaction() as connection:
            for job_id in await jobs.jobs_past_upload(connection):
                job = await jobs.find_job(connection, job_id)
                if job is None:
                    continue
                await end_job(
                    connection,
                    job,
                    JobState.EXPIRED,
                    open_stages=SkipReason.JOB_EXPIRED,
                    stage_error_code="EXPIRED",
                )

    async def _forget_old(self) -> None:
        """Rows whose time is over: remembered answers, rate windows, sign-in links, sessions."""
        async with self._world.database.transaction() as connection:
            await idempotency.forget_old(connection)
            await access.forget_old_windows(connection)
            await keys.forget_old_sign_ins(connection)

    async def _clean_ended(self) -> None:
        async with self._world.database.transaction() as connection:
            for job_id in await cleaning.uncleaned_jobs(connection, limit=_CLEAN_AT_ONCE):
                job = await jobs.find_job(connection, job_id)
                kept: set[str] = set()
                if job and job.stages[StageName.VISION].status is StageStatus.COMPLETED:
                    scenes = await results.get_scenes(connection, job_id)
                    kept = {scene["thumbnailKey"] for scene in scenes}
                await asyncio.to_thread(self._delete_objects, job_id, kept)
                await cleaning.mark_cleaned(connection, job_id)

    def _delete_objects(self, job_id: uuid.UUID, kept: set[str]) -> None:
        store = self._world.objects
        for key in list(store.list_keys(f"jobs/{job_id}")):
            if key not in kept:
                store.delete(key)
