"""Drives one leased job through its stages: heartbeat beside, every outcome under the lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import timedelta

from models.provider import ModelProvider
from pipelines.codec import from_json
from pipelines.execution.chain import Workspace
from pipelines.stages import FAILURE_CODES, OUTAGE_PAUSES_SECONDS, StageRunner
from pipelines.types import IngestResult, StageError, StageStoppedError
from serve_app.context import AppContext
from serve_app.observability.logs import log_context, note
from serve_app.observability.metrics import record_job_end, record_stage
from serve_app.observability.tracing import Span, traced
from serve_app.worker import publishing
from serve_app.worker.calibration import Calibration
from serve_app.worker.publishing import Lease
from serve_app.worker.stage_work import StageWork, machine_of
from storage import jobs
from storage.database import UNAVAILABLE
from storage.job_records import JobRecord
from storage.jobs import LeaseLostError
from storage.objects import ObjectStoreUnavailableError, is_outage
from storage.types import ANALYSES, ENDED_STATUSES, JobState, StageName, StageStatus

log = logging.getLogger("vas.runner")

_LONGEST_OUTAGE = sum(OUTAGE_PAUSES_SECONDS)

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

    @property
    def workspace(self) -> Workspace:
        """The job's folder of intermediate objects, with this lease's own stop marker."""
        return Workspace(
            store=self.context.objects,
            prefix=f"jobs/{self.lease.job_id}/work",
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
            await self._run()

    async def _run(self) -> None:
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
        last_success = time.monotonic()
        while not self.stopped:
            await asyncio.sleep(settings.heartbeat_seconds)
            try:
                await self._extend_lease()
                last_success = time.monotonic()
            except LeaseLostError:
                await self.stop()
            except Exception:
                log.exception("job %s: heartbeat failed", self.lease.job_id)
                # Somebody else may hold the job by now; nothing is published without the lease.
                # Where the database is away for everybody, nobody does, and the work is not lost.
                if time.monotonic() - last_success > settings.lease_seconds + _LONGEST_OUTAGE:
                    await self.stop()

    async def _extend_lease(self) -> None:
        async with self.context.database.transaction() as connection:
            await jobs.extend_lease(
                connection,
                self.lease.job_id,
                self.lease.token,
                lease=timedelta(seconds=self.context.settings.lease_seconds),
                progress=dict(self.progress),
            )

    async def _run_stages(self) -> None:
        job = await self.stage_runner.retry_on_outage("reading the job", self._read_job)
        self.traceparent = job.source.traceparent
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
        job, ingested = await self.stage_runner.retry_on_outage(
            "reading the job", self._read_ingested
        )
        if ingested is None:
            return None
        analyses: dict[StageName, Work] = {
            StageName.VISION: lambda work: work.run_vision(job, ingested),
            StageName.TRANSCRIPT: lambda work: work.run_transcript(job, ingested),
        }
        running = [
            self._run_stage(stage, work)
            for stage, work in analyses.items()
            if job.stages[stage].status not in ENDED_STATUSES
        ]
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return ingested

    async def _read_job(self) -> JobRecord:
        async with self.context.database.transaction() as connection:
            return await jobs.lock_leased(connection, self.lease.job_id, self.lease.token)

    async def _read_ingested(self) -> tuple[JobRecord, IngestResult | None]:
        """The job after ingest; None with it where ingest failed and so ended the job."""
        async with self.context.database.transaction() as connection:
            job = await jobs.find_job(connection, self.lease.job_id)
            if job is None or job.lease_token != self.lease.token:
                raise LeaseLostError(str(self.lease.job_id))
            stored = await jobs.find_ingest_result(connection, job.id)
        return job, None if stored is None else from_json(IngestResult, stored)

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
        await self.stage_runner.retry_on_outage(stage, lambda: self._start(stage))
        began = time.monotonic()
        try:
            end = await self.stage_runner.run(stage, lambda: run(self._work(stage)))
        except StageError as error:
            log.info("job %s: %s failed: %s", self.lease.job_id, stage, error)
            span.fail(error.code)
            await self._fail(stage, error, began)
        else:
            self.took[stage] = time.monotonic() - began
            self._record(stage, StageStatus.COMPLETED, began, end)

    async def _fail(self, stage: StageName, error: StageError, began: float) -> None:
        async def publish() -> JobState | None:
            async with self.context.database.transaction() as connection:
                return await publishing.fail_stage(connection, self.lease, stage, error)

        end = await self.stage_runner.retry_on_outage(stage, publish)
        self._record(stage, StageStatus.FAILED, began, end)

    def _record(
        self, stage: StageName, outcome: StageStatus, began: float, end: JobState | None
    ) -> None:
        seconds = time.monotonic() - began
        log.info("job %s: %s %s in %.1f s", self.lease.job_id, stage, outcome, seconds)
        record_stage(self.context.metrics, stage, outcome, seconds)
        record_job_end(self.context.metrics, end)

    async def _start(self, stage: StageName) -> None:
        async with self.context.database.transaction() as connection:
            await publishing.start_stage(connection, self.lease, stage)

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
            control=StageControl(self, stage, deadline),
        )


def _is_outage(error: BaseException) -> bool:
    """Of the database or the object store, or a full disk: worth waiting for its end."""
    return isinstance(error, UNAVAILABLE) or is_outage(error)
