"""The runner: leases waiting jobs and drives a few at a time; the reaper tidies up beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from models.provider import ModelProvider
from pipelines.execution.chain import release_free_memory
from serve_app.context import AppContext
from serve_app.observability.metrics import LEVEL_SECONDS, DatabaseMetrics, record_disks
from serve_app.periodic import Periodic, repeated
from serve_app.uploads.direct import LOOK_SECONDS, DirectUploadWatcher
from serve_app.worker.calibration import Calibration
from serve_app.worker.driver import JobDriver
from serve_app.worker.indexing import INDEX_SECONDS, SearchIndexer
from serve_app.worker.previews import PREVIEW_SECONDS, Previewer
from serve_app.worker.publishing import Lease
from serve_app.worker.reaper import SWEEP_SECONDS, Reaper
from storage import jobs
from storage.database import DatabaseError
from storage.objects import DirectUploadStore
from storage.types import JobState

log = logging.getLogger("vas.runner")

LEASING_SECONDS = 5
"""How long a stop waits for a lease that is just being taken."""
ENDING_SECONDS = 5
"""How long a stop waits for running jobs to end; they are requeued whether they did or not."""
_THREADS_PER_JOB = 3
"""Vision and transcript side by side, and one to spare for probing."""


class Runner:
    """Runs until ``stop``; any number of runners share the queue."""

    def __init__(self, context: AppContext, models: ModelProvider) -> None:
        self._context = context
        self._models = models
        concurrency = context.settings.runner_concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency * _THREADS_PER_JOB, "pipeline")
        self._calibration = Calibration(context.settings.model_profile)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._leasing = asyncio.Lock()
        self._driving: dict[asyncio.Task[None], JobDriver] = {}

    async def run(self) -> None:
        """Lease and drive jobs until stopped."""
        async with repeated(self._beside_the_jobs()):
            await Periodic("leasing a job", 0.0, self._take_next).run(until=self._stopping)

    def _beside_the_jobs(self) -> list[Periodic]:
        context, reaper = self._context, Reaper(self._context)
        database_metrics = DatabaseMetrics(context.database, context.metrics)
        work = [
            Periodic("listening for jobs", 0.0, self._wake_when_notified),
            Periodic("sweeping the database", SWEEP_SECONDS, reaper.sweep_database),
            # Apart, so that a slow store delays only this.
            Periodic("sweeping the objects", SWEEP_SECONDS, reaper.sweep_objects),
            Periodic("measuring the database", LEVEL_SECONDS, database_metrics.take),
            Periodic("measuring the disks", LEVEL_SECONDS, self._measure_disks),
            Periodic("indexing", INDEX_SECONDS, SearchIndexer(context).step),
        ]
        if context.settings.previews:
            work.append(Periodic("previews", PREVIEW_SECONDS, Previewer(context).step))
        if isinstance(context.objects, DirectUploadStore):
            watcher = DirectUploadWatcher(context, context.objects)
            work.append(Periodic("finding direct uploads", LOOK_SECONDS, watcher.look))
        return work

    async def stop(self) -> None:
        """Requeue running jobs, within LEASING_SECONDS and ENDING_SECONDS.

        A job that has not ended by then is requeued all the same: without its lease it can
        publish nothing, while a lease that runs out counts towards ``jobs.MAX_LEASES``.
        """
        self._stopping.set()
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEASING_SECONDS), self._leasing:
                pass
        running = dict(self._driving)
        await asyncio.gather(*(self._end(task, driver) for task, driver in running.items()))
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._context.tracing is not None:
            await asyncio.to_thread(self._context.tracing.close)

    async def _end(self, task: asyncio.Task[None], driver: JobDriver) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await driver.stop()
                await asyncio.wait([task])
        try:
            async with self._context.database.transaction() as connection:
                job = await jobs.find_job(connection, driver.lease.job_id, for_update=True)
                if job is not None and job.lease_token == driver.lease.token:
                    await jobs.set_state(
                        connection, job.id, expected=JobState.PROCESSING, state=JobState.QUEUED
                    )
                    await jobs.reopen_running_stages(connection, job.id, forgive_lease=True)
        except DatabaseError:
            # The lease runs out by itself, and the job is taken up again a little later.
            log.exception("job %s: could not be requeued", driver.lease.job_id)

    async def _measure_disks(self) -> None:
        context = self._context
        await asyncio.to_thread(record_disks, context.metrics, context.settings.data_dir)

    async def _take_next(self) -> None:
        await self._slots.acquire()
        lease = None
        async with self._leasing:
            try:
                self._wake.clear()
                # A job that is requeued at a stop frees its slot: nothing new is taken then.
                if not self._stopping.is_set():
                    duration = timedelta(seconds=self._context.settings.lease_seconds)
                    async with self._context.database.transaction() as connection:
                        leased = await jobs.lease_next(connection, lease=duration)
                    lease = None if leased is None else Lease(*leased)
            finally:
                if lease is None:
                    self._slots.release()
            if lease is not None:
                driver = JobDriver(
                    self._context, self._models, lease, self._threads, self._calibration
                )
                task = asyncio.create_task(driver.run())
                self._driving[task] = driver
                task.add_done_callback(self._ended)
        if lease is None:
            await self._wait_for_work()

    def _ended(self, task: asyncio.Task[None]) -> None:
        driver = self._driving.pop(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            # The lease runs out and the job is taken up again; nothing was published.
            log.error("job %s: driver broke", driver.lease.job_id, exc_info=task.exception())
        release_free_memory()

    async def _wait_for_work(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), self._context.settings.poll_seconds)
        except TimeoutError:
            return

    async def _wake_when_notified(self) -> None:
        """Polling covers for it whenever this connection is down."""
        async for _ in self._context.database.listen(jobs.QUEUE_CHANNEL):
            self._wake.set()
