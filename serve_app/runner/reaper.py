"""The reaper: lost leases, uploads that never came, objects of jobs that ended."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from serve_app.jobs.lifecycle import end_job
from serve_app.jobs.plans import JOBS_PREFIX
from serve_app.observing.jobs import record_job_end
from serve_app.runner.removal import remove_due
from serve_app.uploads.sweeping import settle_lost_writers
from serve_app.world import World
from storage import access, idempotency, jobs, keys, uploads
from storage.database import UNAVAILABLE
from storage.objects import TakesDirectUploads
from storage.types import JobState, SkipReason

log = logging.getLogger("vas.reaper")

_SWEEP_SECONDS = 2.0
_FORGET_SECONDS = 60.0
_LEFTOVERS_SECONDS = 3600.0
_UNSEEN = timedelta(seconds=30)
"""A file that a client put into the store in time may be noticed so much later."""


class Reaper:
    """Sweeps every few seconds. Several may run at once: rows are taken with SKIP LOCKED."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._forget_at = 0.0
        self._leftovers_at = 0.0
        self._leases_count_from = 0.0
        self._direct = isinstance(world.objects, TakesDirectUploads)
        self._grace = _UNSEEN if self._direct else timedelta(0)

    async def sweep_and_wait(self) -> None:
        """One sweep of the database and the pause after it."""
        await self.sweep_database()
        await asyncio.sleep(_SWEEP_SECONDS)

    async def clean_and_wait(self) -> None:
        """One round of removing objects and the pause after it; a slow store delays only this."""
        await self._sweep_objects()
        await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Do everything that is due now."""
        await self.sweep_database()
        await self._sweep_objects()

    async def _sweep_objects(self) -> None:
        await settle_lost_writers(self._world)
        await remove_due(self._world)
        if self._direct and time.monotonic() >= self._leftovers_at:
            # Nothing else tells of a multipart upload that a killed writer left in a bucket.
            await asyncio.to_thread(self._world.objects.remove_leftovers, JOBS_PREFIX)
            self._leftovers_at = time.monotonic() + _LEFTOVERS_SECONDS

    async def sweep_database(self) -> None:
        """Do everything that is due now and that the database alone is needed for."""
        try:
            await self._requeue_lost()
        except UNAVAILABLE:
            # No runner could renew its lease either: they get the time to do so.
            self._leases_count_from = time.monotonic() + self._world.settings.lease_seconds
            raise
        await self._expire_uploads()
        if time.monotonic() >= self._forget_at:
            await self._forget_old()
            self._forget_at = time.monotonic() + _FORGET_SECONDS

    async def _requeue_lost(self) -> None:
        ended = 0
        if time.monotonic() < self._leases_count_from:
            return
        async with self._world.database.transaction() as connection:
            for job_id, runs_again in await jobs.requeue_lost(connection):
                log.warning("job %s: its runner was lost", job_id)
                if runs_again:
                    continue
                job = await jobs.find_job(connection, job_id)
                if job is None:
                    continue
                ended += await end_job(
                    connection,
                    job,
                    JobState.FAILED,
                    error_code="PROCESSING_FAILED",
                    error_message=f"The job was given up after {jobs.MAX_LEASES} lost runners.",
                )
        self._record_ends(JobState.FAILED, ended)

    async def _expire_uploads(self) -> None:
        ended = 0
        async with self._world.database.transaction() as connection:
            for job_id in await uploads.jobs_past_upload(connection, grace=self._grace):
                job = await jobs.find_job(connection, job_id)
                if job is None:
                    continue
                ended += await end_job(
                    connection,
                    job,
                    JobState.EXPIRED,
                    open_stages=SkipReason.JOB_EXPIRED,
                    stage_error_code="EXPIRED",
                )
        self._record_ends(JobState.EXPIRED, ended)

    def _record_ends(self, state: JobState, count: int) -> None:
        for _ in range(count):
            record_job_end(self._world.meters, state)

    async def _forget_old(self) -> None:
        """Rows whose time is over: remembered answers, rate windows, sign-in links, sessions."""
        async with self._world.database.transaction() as connection:
            await idempotency.forget_old(connection)
            await access.forget_old_windows(connection)
            await keys.forget_old_sign_ins(connection)
