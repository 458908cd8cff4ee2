"""The runner: leases waiting jobs and drives a few at a time through their stages, with a heartbeat
beside each and every outcome under its lease; the reaper tidies up beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from models.provider import ModelProvider
from pipelines.across.redaction import Known
from pipelines.codec import from_json
from pipelines.execution.chain import Workspace, release_free_memory
from pipelines.stages import FAILURE_CODES, OUTAGE_PAUSES_SECONDS, StageRunner
from pipelines.types import IngestResult, StageError, StageStoppedError
from serve_app.context import AppContext
from serve_app.jobs.service import announce_progress
from serve_app.observability import metrics
from serve_app.observability.logs import Span, log_context, note, traced
from serve_app.periodic import Periodic, repeated
from serve_app.results.redaction import known_of
from serve_app.uploads.access import LOOK_SECONDS, DirectUploadWatcher
from serve_app.work import (
    alignment,
    archives,
    comparing,
    previews,
    publishing,
    reaper,
    redacting,
    translating,
)
from serve_app.work.indexing import INDEX_SECONDS, SearchIndexer
from serve_app.work.publishing import Lease
from serve_app.work.queue import WorkQueue
from serve_app.work.reaper import OBJECTS_SECONDS, SWEEP_SECONDS, Reaper
from serve_app.work.redacting import Findings
from serve_app.work.stage_work import Calibration, StageWork, machine_of, made_with
from storage import history, jobs
from storage.database import UNAVAILABLE, DatabaseError
from storage.endpoints import PROGRESS_SECONDS
from storage.job_records import JobRecord
from storage.jobs import LeaseLostError
from storage.objects import DirectUploadStore, ObjectStoreUnavailableError, is_outage
from storage.types import ANALYSES, ENDED_STATUSES, JobState, StageName, StageStatus

log = logging.getLogger("vas.runner")

LEASING_SECONDS = 5
"""How long a stop waits for a lease that is just being taken."""
ENDING_SECONDS = 5
"""How long a stop waits for running jobs to end; they are requeued whether they did or not."""
VERSIONS_SECONDS = 3600
"""Until it is recorded again what stages are made with."""
RETURN_SECONDS = 5.0
"""How long a driver may need to return from the stage that ended its job."""
_THREADS_PER_JOB = 3
"""Vision and transcript side by side, and one to spare for probing."""
_LONGEST_OUTAGE = sum(OUTAGE_PAUSES_SECONDS)

KINDS = (
    alignment.align,
    archives.read_archive,
    comparing.compare_cuts,
    comparing.seek_duplicates,
    previews.make_job_preview,
    reaper.clean,
    redacting.redact,
    translating.translate,
)
"""What is done beside the jobs."""


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
        context, sweeper = self._context, Reaper(self._context)
        database_metrics = metrics.DatabaseMetrics(context.database, context.metrics)
        kinds = [
            kind for kind in KINDS if context.settings.previews or kind != previews.make_job_preview
        ]
        beside = WorkQueue(context, self._models, kinds)
        work = [
            Periodic("listening for jobs", 0.0, self._wake_when_notified),
            Periodic("listening for work", 0.0, beside.wake_when_notified),
            Periodic("doing work", 0.0, beside.run),
            Periodic("sweeping the database", SWEEP_SECONDS, sweeper.sweep_database),
            # Apart, so that a slow store delays only this.
            Periodic("sweeping the objects", OBJECTS_SECONDS, sweeper.sweep_objects),
            Periodic("measuring the database", metrics.DATABASE_SECONDS, database_metrics.take),
            Periodic("measuring the disks", metrics.LEVEL_SECONDS, self._measure_disks),
            Periodic("recording versions", VERSIONS_SECONDS, self._record_versions),
            Periodic("indexing", INDEX_SECONDS, SearchIndexer(context).step),
        ]
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

    async def _record_versions(self) -> None:
        await self._context.database.write(history.publish_versions, made_with(self._context))

    async def _measure_disks(self) -> None:
        context = self._context
        await asyncio.to_thread(metrics.record_disks, context.metrics, context.settings.data_dir)

    async def _take_next(self) -> None:
        await self._slots.acquire()
        lease = None
        async with self._leasing:
            try:
                self._wake.clear()
                # A job that is requeued at a stop frees its slot: nothing new is taken then.
                if not self._stopping.is_set():
                    duration = timedelta(seconds=self._context.settings.lease_seconds)
                    leased = await self._context.database.write(jobs.lease_next, lease=duration)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._context.settings.poll_seconds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        driver = self._driving.pop(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            # The lease runs out and the job is taken up again; nothing was published.
            log.error("job %s: driver broke", driver.lease.job_id, exc_info=task.exception())
        release_free_memory()

    async def _wake_when_notified(self) -> None:
        """Polling covers for it whenever this connection is down."""
        async for _ in self._context.database.listen(jobs.QUEUE_CHANNEL):
            self._wake.set()


Work = Callable[[StageWork], Awaitable[JobState | None]]
"""Runs a stage to its published end; gives the job's, if this was it."""


@dataclass(slots=True)
class StageControl:
    """Stop, deadline and progress of a running stage (pipelines.execution.chain.Control)."""

    driver: JobDriver
    stage: StageName
    deadline: float

    def check(self) -> None:
        if self.driver.stopped:
            raise StageStoppedError(str(self.driver.lease.job_id))
        if time.monotonic() > self.deadline:
            raise StageError(FAILURE_CODES[self.stage], "The stage took too long.")

    def progress(self, fraction: float) -> None:
        self.driver.progress[self.stage] = min(1.0, max(0.0, fraction))


@dataclass(slots=True)
class JobDriver:
    """One job in the hands of one runner."""

    context: AppContext
    models: ModelProvider
    lease: Lease
    threads: Executor
    calibration: Calibration
    progress: dict[StageName, float] = field(default_factory=dict)
    took: dict[StageName, float] = field(default_factory=dict)
    """Seconds of the stages that were completed."""
    stopped: bool = False
    traceparent: str | None = None
    rerun_of: UUID | None = None
    findings: Findings = field(default_factory=lambda: Findings(Known()))

    @property
    def workspace(self) -> Workspace:
        """The job's folder of intermediate objects, a rerun's that of the first job, with this
        lease's own stop marker."""
        return Workspace(
            store=self.context.settings.with_node_cache(self.context.objects),
            prefix=f"jobs/{self.rerun_of or self.lease.job_id}/work",
            stop_name=f"stop-{self.lease.token}",
        )

    @property
    def stage_runner(self) -> StageRunner:
        """Of this job's stages; ends with the lease."""
        return StageRunner(
            name=f"job {self.lease.job_id}",
            is_stopped=lambda: self.stopped,
            is_outage=_is_outage,
            not_repeated=(LeaseLostError,),
            pauses_seconds=OUTAGE_PAUSES_SECONDS,
        )

    async def run(self) -> None:
        """Run every stage that has not ended; return when the job ended or the lease is lost."""
        with log_context(jobId=self.lease.job_id):
            heartbeat = asyncio.create_task(self._heartbeat())
            try:
                await self._run_stages()
            except (LeaseLostError, StageStoppedError):
                log.info("job %s: no longer ours", self.lease.job_id)
            finally:
                heartbeat.cancel()
                await asyncio.gather(heartbeat, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the running stages; their tasks on other nodes read the marker in the store."""
        self.stopped = True
        try:
            await asyncio.to_thread(self.workspace.request_stop)
        except (ObjectStoreUnavailableError, OSError) as error:
            # Tasks cannot read or write then either; what they find is published by nobody.
            log.warning(
                "job %s: the stop marker could not be written: %s", self.lease.job_id, error
            )

    async def _heartbeat(self) -> None:
        settings = self.context.settings
        last_success = announced_at = time.monotonic()
        while not self.stopped:
            await asyncio.sleep(settings.heartbeat_seconds)
            try:
                try:
                    await self.context.database.write(
                        jobs.extend_lease,
                        self.lease.job_id,
                        self.lease.token,
                        lease=timedelta(seconds=self.context.settings.lease_seconds),
                        progress=dict(self.progress),
                    )
                except LeaseLostError:
                    job = await self.context.database.read(jobs.find_job, self.lease.job_id)
                    if job is not None and job.state in (JobState.COMPLETED, JobState.FAILED):
                        # As a rule its own end, with no task left to stop: ``run`` cancels this
                        # meanwhile.
                        await asyncio.sleep(RETURN_SECONDS)
                    raise
                last_success = time.monotonic()
                if last_success - announced_at >= PROGRESS_SECONDS:
                    announced_at = last_success
                    async with self.context.database.transaction() as connection:
                        held = self.lease.job_id, self.lease.token
                        await announce_progress(
                            connection, await jobs.lock_leased(connection, *held)
                        )
            except LeaseLostError:
                await self.stop()
            except Exception:
                log.exception("job %s: heartbeat failed", self.lease.job_id)
                # Somebody else may hold the job by now; nothing is published without the lease.
                # Where the database is away for everybody, nobody does, and the work is not lost.
                if time.monotonic() - last_success > settings.lease_seconds + _LONGEST_OUTAGE:
                    await self.stop()

    async def _run_stages(self) -> None:
        held, write = (self.lease.job_id, self.lease.token), self.context.database.write
        job = await self.stage_runner.retry_on_outage(
            "reading the job", lambda: write(jobs.lock_leased, *held)
        )
        self.traceparent, self.rerun_of = job.source.traceparent, job.rerun_of
        note(accountId=job.account_id)
        is_new = job.stages[StageName.INGEST].status is not StageStatus.COMPLETED
        if is_new:
            await self._run_stage(StageName.INGEST, lambda work: work.run_ingest(job))
        ingested = await self._run_analyses()
        if is_new and ingested is not None:
            # Of a job taken up again, much was there already.
            machine = machine_of(self.context.settings)
            took = {stage: self.took[stage] for stage in ANALYSES if stage in self.took}
            self.calibration.learn(machine.work_seconds(ingested), took, machine)

    async def _run_analyses(self) -> IngestResult | None:
        """Vision and transcript side by side; one failing does not stop the other.

        Gives what ingest found; None where it failed.
        """
        job, known, ingested = await self.stage_runner.retry_on_outage(
            "reading the job", self._read_ingested
        )
        if ingested is None:
            return None
        analyses: dict[StageName, Work] = {
            StageName.VISION: lambda work: work.run_vision(job, ingested),
            StageName.TRANSCRIPT: lambda work: work.run_transcript(job, ingested),
        }
        to_run = [each for each in analyses if job.stages[each].status not in ENDED_STATUSES]
        self.findings = Findings(known, to_run)
        running = (self._run_analysis(stage, analyses[stage]) for stage in to_run)
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        errors = [each for each in outcomes if isinstance(each, BaseException)]
        if errors:  # one that was stopped because of another is not the reason
            raise min(errors, key=lambda each: isinstance(each, StageStoppedError))
        return ingested

    async def _run_analysis(self, stage: StageName, run: Work) -> None:
        try:
            await self._run_stage(stage, run)
        except BaseException as error:
            self.findings.end(stage, error)
            raise
        self.findings.end(stage)

    async def _read_ingested(self) -> tuple[JobRecord, Known, IngestResult | None]:
        """Return the job after ingest, and what was found in its texts; None with it where ingest
        failed and so ended the job."""
        async with self.context.database.transaction() as connection:
            job = await jobs.find_job(connection, self.lease.job_id)
            if job is None or job.lease_token != self.lease.token:
                raise LeaseLostError(str(self.lease.job_id))
            stored = await jobs.find_ingest_result(connection, job.id)
            known = await known_of(connection, job)
        return job, known, None if stored is None else from_json(IngestResult, stored)

    async def _run_stage(self, stage: StageName, run: Work) -> None:
        """Run a stage to its published end, good or bad."""
        with traced(
            self.context.tracing,
            f"stage {stage}",
            {"vas.job_id": str(self.lease.job_id), "vas.stage": str(stage)},
            parent=self.traceparent,
        ) as span:
            await self._run_in_span(stage, run, span)

    async def _run_in_span(self, stage: StageName, run: Work, span: Span) -> None:
        write = self.context.database.write
        await self.stage_runner.retry_on_outage(
            stage, lambda: write(publishing.start_stage, self.lease, stage)
        )
        began = time.monotonic()
        try:
            end = await self.stage_runner.run(stage, lambda: run(self._work(stage)))
        except StageError as error:
            log.info("job %s: %s failed: %s", self.lease.job_id, stage, error)
            span.fail(error.code)
            failure = error
            end = await self.stage_runner.retry_on_outage(
                stage, lambda: write(publishing.fail_stage, self.lease, stage, failure)
            )
            self._record(stage, StageStatus.FAILED, began, end)
        else:
            took = time.monotonic() - began
            self.took[stage] = took - self.findings.waited_seconds.get(stage, 0.0)
            self._record(stage, StageStatus.COMPLETED, began, end)

    def _record(
        self, stage: StageName, outcome: StageStatus, began: float, end: JobState | None
    ) -> None:
        seconds = time.monotonic() - began
        log.info("job %s: %s %s in %.1f s", self.lease.job_id, stage, outcome, seconds)
        metrics.record_stage(self.context.metrics, stage, outcome, seconds)
        metrics.record_job_end(self.context.metrics, end)

    def _work(self, stage: StageName) -> StageWork:
        deadline = time.monotonic() + self.context.settings.stage_timeout_seconds
        return StageWork(
            context=self.context,
            models=self.models,
            lease=self.lease,
            workspace=self.workspace,
            threads=self.threads,
            calibration=self.calibration,
            runner=self.stage_runner,
            findings=self.findings,
            control=StageControl(self, stage, deadline),
        )


def _is_outage(error: BaseException) -> bool:
    """Of the database or the object store, or a full disk: worth waiting for its end."""
    return isinstance(error, UNAVAILABLE) or is_outage(error)
