"""The runner: leases waiting jobs and drives a few at a time; the reaper tidies up beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg

from models.provider import ModelProvider
from pipelines.execution.memory import release_free_memory
from serve_app.context import AppContext
from serve_app.observability.metrics import LEVEL_SECONDS, DatabaseMetrics, record_disks
from serve_app.uploads.direct import DirectUploadWatcher
from serve_app.worker.calibration import Calibration
from serve_app.worker.driver import JobDriver
from serve_app.worker.indexing import SearchIndexer
from serve_app.worker.previews import Previewer
from serve_app.worker.publishing import Lease
from serve_app.worker.reaper import Reaper
from storage import jobs
from storage.database import DatabaseError, keepalive_options
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
        reaper = Reaper(self._context)
        database_metrics = DatabaseMetrics(self._context.database, self._context.metrics)
        helpers = [
            asyncio.create_task(self._forever(self._listen)),
            asyncio.create_task(self._forever(reaper.sweep_and_wait)),
            asyncio.create_task(self._forever(reaper.clean_and_wait)),
            asyncio.create_task(self._forever(database_metrics.take_and_wait)),
            asyncio.create_task(self._forever(self._look_at_disks)),
            asyncio.create_task(self._forever(SearchIndexer(self._context).index_and_wait)),
        ]
        if self._context.settings.previews:
            previewer = Previewer(self._context)
            helpers.append(asyncio.create_task(self._forever(previewer.make_and_wait)))
        store = self._context.objects
        if isinstance(store, DirectUploadStore):
            watch = DirectUploadWatcher(self._context, store)
            helpers.append(asyncio.create_task(self._forever(watch.look_and_wait)))
        try:
            await self._forever(self._take_next)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

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
        await self._try_to_requeue(driver.lease)

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``step``; a failure (say, of the database) is logged and tried again."""
        while not self._stopping.is_set():
            try:
                await step()
            except Exception:
                log.exception("runner: %s failed", step.__name__)
                await asyncio.sleep(1)

    async def _look_at_disks(self) -> None:
        await asyncio.to_thread(
            record_disks, self._context.metrics, self._context.settings.data_dir
        )
        await asyncio.sleep(LEVEL_SECONDS)

    async def _take_next(self) -> None:
        await self._slots.acquire()
        lease = None
        async with self._leasing:
            try:
                self._wake.clear()
                # A job that is requeued at a stop frees its slot: nothing new is taken then.
                if not self._stopping.is_set():
                    lease = await self._lease()
            finally:
                if lease is None:
                    self._slots.release()
            if lease is not None:
                self._drive(lease)
        if lease is None:
            await self._wait_for_work()

    async def _lease(self) -> Lease | None:
        duration = timedelta(seconds=self._context.settings.lease_seconds)
        async with self._context.database.transaction() as connection:
            leased = await jobs.lease_next(connection, lease=duration)
        return None if leased is None else Lease(*leased)

    def _drive(self, lease: Lease) -> None:
        driver = JobDriver(self._context, self._models, lease, self._threads, self._calibration)
        task = asyncio.create_task(driver.run())
        self._driving[task] = driver
        task.add_done_callback(self._ended)

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

    async def _listen(self) -> None:
        """Wake on NOTIFY; polling covers for it whenever this connection is down."""
        url = self._context.settings.database_url or ""
        connection = await psycopg.AsyncConnection.connect(
            url, autocommit=True, **keepalive_options(url)
        )
        async with connection:
            await connection.execute(f"LISTEN {jobs.QUEUE_CHANNEL}")
            async for _ in connection.notifies():
                self._wake.set()

    async def _try_to_requeue(self, lease: Lease) -> None:
        try:
            await self._requeue(lease)
        except DatabaseError:
            # The lease runs out by itself, and the job is taken up again a little later.
            log.exception("job %s: could not be requeued", lease.job_id)

    async def _requeue(self, lease: Lease) -> None:
        async with self._context.database.transaction() as connection:
            job = await jobs.find_job(connection, lease.job_id, for_update=True)
            if job is not None and job.lease_token == lease.token:
                await jobs.set_state(
                    connection, job.id, expected=JobState.PROCESSING, state=JobState.QUEUED
                )
                await jobs.reopen_running_stages(connection, job.id, forgive_lease=True)
