"""The reaper: lost leases, uploads that never came, objects of jobs that ended."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

from pipelines.execution.chain import is_stop_marker
from serve_app.context import AppContext
from serve_app.jobs.service import end_job, erase_job
from serve_app.observability.metrics import record_job_end
from serve_app.uploads.access import direct_key
from serve_app.uploads.leases import finish_for_lost_writers
from serve_app.work.queue import Work, work
from storage import access, cleaning, comparisons, jobs, keys, results, uploads
from storage.database import UNAVAILABLE
from storage.objects import DirectUploadStore, ObjectStore, ObjectStoreUnavailableError
from storage.types import JobState, SkipReason, StageName, StageStatus
from storage.uploads import ERASED_PREFIX, JOBS_PREFIX, list_expired_awaited_uploads, source_prefix
from storage.work import adopt

log = logging.getLogger("vas.reaper")

SWEEP_SECONDS = 8.0
OBJECTS_SECONDS = 30.0
"""Until objects and uploads are looked at again, whose times are hours and days."""
_FORGET_SECONDS = 60.0
_LEFTOVERS_SECONDS = 3600.0
_LOOKS_A_SWEEP = 100
_ROUNDS_A_SWEEP = 20
_KEYS_A_STEP = 100
"""Removed at once; a legal hold is looked for in between."""
_UNSEEN = timedelta(seconds=30)
"""A file that a client put into the store in time may be noticed so much later."""


def _clock() -> float:
    """Return seconds that go on while the machine sleeps (on macOS the monotonic ones do)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Reaper:
    """Sweeps every few seconds. Several may run at once."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._forget_at = 0.0
        self._leftovers_at = 0.0
        self._leases_count_from = self._erase_at = self._expire_at = 0.0
        self._swept_at = _clock()
        self._direct = isinstance(context.objects, DirectUploadStore)
        self._grace = _UNSEEN if self._direct else timedelta(0)

    async def sweep(self) -> None:
        """Do everything that is due now."""
        await self.sweep_database()
        await self.sweep_objects()

    async def sweep_objects(self) -> None:
        """Queue the removal of objects that is due, and settle what lost writers left."""
        await finish_for_lost_writers(self._context)
        database, retention = self._context.database, self._context.settings.retention
        due = await database.read(cleaning.list_due_rounds, retention, limit=_ROUNDS_A_SWEEP)
        for job_id in due:
            await database.write(cleaning.queue_round, job_id, retention)
        if self._direct and time.monotonic() >= self._leftovers_at:
            # Nothing else records a multipart upload that a killed writer left in a bucket.
            await asyncio.to_thread(self._context.objects.remove_leftovers, JOBS_PREFIX)
            self._leftovers_at = time.monotonic() + _LEFTOVERS_SECONDS

    async def sweep_database(self) -> None:
        """Do everything that is due now and that the database alone is needed for."""
        late = _clock() - self._swept_at - SWEEP_SECONDS
        if late > self._context.settings.lease_seconds / 2:
            # The machine slept, or the sweeps before failed: runners get the time to report first.
            self._wait_for_runners()
        try:
            await self._requeue_lost()
        except UNAVAILABLE:
            # No runner could renew its lease either: they get the time to do so.
            self._wait_for_runners()
            raise
        if time.monotonic() >= self._expire_at:
            await self._expire_uploads()
            self._expire_at = time.monotonic() + OBJECTS_SECONDS
        await self._erase_due()
        if time.monotonic() >= self._forget_at:
            # Rows whose time is over: remembered answers, rate windows, sign-in links, sessions.
            async with self._context.database.transaction() as connection:
                await access.forget_old_answers(connection)
                await access.forget_old_windows(connection)
                await keys.forget_old_sign_ins(connection)
                await comparisons.forget_old(connection)
                await adopt(connection)
            self._forget_at = time.monotonic() + _FORGET_SECONDS
        self._swept_at = _clock()

    def _wait_for_runners(self) -> None:
        self._leases_count_from = time.monotonic() + self._context.settings.lease_seconds

    async def _requeue_lost(self) -> None:
        ended = 0
        if time.monotonic() < self._leases_count_from:
            return
        async with self._context.database.transaction() as connection:
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
        try:
            among = await self._never_arrived()
        except ObjectStoreUnavailableError as error:
            log.warning("no upload expires while the store cannot say what is there: %s", error)
            return
        database = self._context.database
        expired = await database.read(uploads.list_expired_jobs, grace=self._grace, among=among)
        for job_id in expired:
            async with database.transaction() as connection:
                job = await jobs.find_job(connection, job_id, for_update=True)
                # As it is now that nobody else changes it.
                still = await uploads.list_expired_jobs(
                    connection, grace=self._grace, among=[job_id]
                )
                if job is None or not still:
                    continue
                ended += await end_job(
                    connection,
                    job,
                    JobState.EXPIRED,
                    open_stages=SkipReason.JOB_EXPIRED,
                    stage_error_code="EXPIRED",
                )
        self._record_ends(JobState.EXPIRED, ended)

    async def _erase_due(self) -> None:
        """Erase jobs whose retention is over, or whose accounts are erased; twice does no harm."""
        if time.monotonic() < self._erase_at:
            return
        due = await self._context.database.read(
            cleaning.list_due_erasures, self._context.settings.retention, limit=_ROUNDS_A_SWEEP
        )
        for account_id, job_id in due:
            async with self._context.database.transaction() as connection:
                before = await jobs.find_job(connection, job_id, for_update=True)
                erased = await erase_job(connection, account_id, str(job_id))
            self._record_ends(erased.state, before is not None and before.completed_at is None)
        if len(due) < _ROUNDS_A_SWEEP:
            self._erase_at = time.monotonic() + _FORGET_SECONDS

    async def _never_arrived(self) -> set[uuid.UUID] | None:
        """Return jobs whose time is over and that have no unseen file in the bucket; None without
        one.

        What lies there came in time, as its address is no longer good: who looks for such files
        may have been away, or copies a large one. Raises ObjectStoreUnavailableError.
        """
        store = self._context.objects
        if not isinstance(store, DirectUploadStore):
            return None
        missing = await self._context.database.read(
            list_expired_awaited_uploads, grace=self._grace, limit=_LOOKS_A_SWEEP
        )
        arrived = {
            job_id
            for job_id, slot, too_late in missing
            if not too_late
            and await asyncio.to_thread(store.find_direct_upload, direct_key(job_id, slot))
            is not None
        }
        return {job_id for job_id, _, _ in missing} - arrived

    def _record_ends(self, state: JobState, count: int) -> None:
        for _ in range(count):
            record_job_end(self._context.metrics, state)


@work(cleaning.KIND, lease=timedelta(minutes=2), attempts=None, pause=timedelta(minutes=2))
async def clean(work: Work) -> None:
    """Remove the objects of a job that are not kept any more."""
    context, job_id = work.context, work.held.subject_id
    loop = asyncio.get_running_loop()

    def is_stopped() -> bool:
        if work.stopped.is_set():
            return True
        looking = context.database.read(cleaning.find_round, job_id)
        return asyncio.run_coroutine_threadsafe(looking, loop).result() is None

    due = await context.database.read(cleaning.find_round, job_id)
    if due is None:
        return
    kept = await _results(context, job_id)
    if await asyncio.to_thread(remove_objects, context.objects, due, kept, is_stopped):
        await context.database.write(cleaning.end_round, work.held, due)


async def _results(context: AppContext, job_id: uuid.UUID) -> set[str]:
    """Return keys of the stills that the job's scenes and its overview show."""
    async with context.database.transaction() as connection:
        job = await jobs.find_job(connection, job_id)
        if job is None or job.stages[StageName.VISION].status is not StageStatus.COMPLETED:
            return set()
        return await results.list_thumbnail_keys(connection, job_id)


def remove_objects(
    store: ObjectStore, due: cleaning.CleaningRound, kept: set[str], is_stopped: Callable[[], bool]
) -> bool:
    """Remove all of a job's objects but ``kept``, with partials and what killed writers left.

    Markers that stop tasks stay as long as such a task may be running. False where the round is
    stopped, by a legal hold or the end of its lease: ``is_stopped`` is called before each step.
    """
    prefix = f"jobs/{due.job_id}"
    if is_stopped():
        return False
    if due.erased_at is not None:
        store.write_bytes(f"{ERASED_PREFIX}/{due.job_id}", due.erased_at.isoformat().encode())
    if due.next_at is None and not kept:
        store.delete_prefix(prefix)
        return True
    store.delete_prefix(source_prefix(due.job_id))
    for key in list(store.list_partials(prefix)):
        store.discard_partial(key)
    doomed = [key for key in store.list_keys(prefix) if key not in kept]
    if due.tasks_may_run:
        doomed = [key for key in doomed if not is_stop_marker(key)]
    for at in range(0, len(doomed), _KEYS_A_STEP):
        if is_stopped():
            return False
        store.delete_keys(doomed[at : at + _KEYS_A_STEP])
    store.remove_leftovers(prefix)
    return True
