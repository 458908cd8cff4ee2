"""Drives one leased job through its stages: heartbeat beside, every outcome under the lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TypeVar

from models.sources import ModelSource
from pipelines.chains import Workspace
from pipelines.contracts import (
    AudioTrack,
    IngestResult,
    StageCode,
    StageError,
    StageStoppedError,
)
from pipelines.ingest import (
    IngestConfig,
    ingest,
    ingest_result_from_json,
    ingest_result_to_json,
    probe_source,
)
from pipelines.transcript import TranscriptConfig, transcribe_track
from pipelines.vision import VisionConfig, analyse_vision
from serve_app.runner import publishing
from serve_app.runner.documents import scene_document, transcript_document
from serve_app.runner.publishing import Lease
from serve_app.world import World
from storage import jobs
from storage.jobs import JobRecord, LeaseLostError
from storage.results import TrackTranscript
from storage.types import StageName, StageStatus
from storage.uploads import MEDIA_SLOT, list_uploads

log = logging.getLogger("vas.runner")
Result = TypeVar("Result")

FAILURE_CODES = {
    StageName.INGEST: StageCode.INGEST_FAILED,
    StageName.VISION: StageCode.VISION_FAILED,
    StageName.TRANSCRIPT: StageCode.TRANSCRIPT_FAILED,
}
"""The code of a stage that fails in a way that names none of its own."""

STAGE_ATTEMPTS = 2
"""A stage that breaks for a reason of the machine's, not the media's, is run once more."""


@dataclass(slots=True)
class StageControl:
    """A running stage's line to its driver (pipelines.chains.Control)."""

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
    """One job in the hands of one runner.

    ``threads`` runs the pipelines, which are plain synchronous code, off the
    event loop.
    """

    world: World
    models: ModelSource
    lease: Lease
    threads: Executor
    progress: dict[StageName, float] = field(default_factory=dict)
    stopped: bool = False

    @property
    def workspace(self) -> Workspace:
        """The job's folder of intermediate objects, with this lease's own stop marker."""
        return Workspace(
            store=self.world.objects,
            prefix=work_prefix(self.lease),
            stop_name=f"stop-{self.lease.token}",
        )

    async def run(self) -> None:
        """Run every stage that has not ended; return when the job ended or the lease is lost."""
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            await self._run_stages()
        except (LeaseLostError, StageStoppedError):
            log.info("job %s: no longer ours", self.lease.job_id)
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def stop(self) -> None:
        """Make the running stages stop; their tasks on other nodes hear it through the store."""
        self.stopped = True
        await asyncio.to_thread(self.workspace.request_stop)

    async def _heartbeat(self) -> None:
        settings = self.world.settings
        lease = timedelta(seconds=settings.lease_seconds)
        last_success = time.monotonic()
        while True:
            await asyncio.sleep(settings.heartbeat_seconds)
            try:
                async with self.world.database.transaction() as connection:
                    await jobs.extend_lease(
                        connection,
                        self.lease.job_id,
                        self.lease.token,
                        lease=lease,
                        progress=dict(self.progress),
                    )
                last_success = time.monotonic()
            except LeaseLostError:
                await self.stop()
                return
            except Exception:
                log.exception("job %s: heartbeat failed", self.lease.job_id)
                # Somebody else may hold the job by now: what we computed is not ours to publish.
                if time.monotonic() - last_success > settings.lease_seconds:
                    await self.stop()
                    return

    async def _run_stages(self) -> None:
        job = await self._read_job()
        result = await self._ingest(job)
        if result is None:
            return
        job = await self._read_job()
        analyses = [
            self._guarded(stage, analyse(job, result))
            for stage, analyse in (
                (StageName.VISION, self._vision),
                (StageName.TRANSCRIPT, self._transcript),
            )
            if job.stages[stage].status in {StageStatus.PENDING, StageStatus.RUNNING}
        ]
        outcomes = await asyncio.gather(*analyses, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _read_job(self) -> JobRecord:
        async with self.world.database.transaction() as connection:
            return await jobs.lock_leased(connection, self.lease.job_id, self.lease.token)

    async def _guarded(self, stage: StageName, work: Callable[[], Awaitable[None]]) -> bool:
        """Run a stage to its published end; whether it completed."""
        async with self.world.database.transaction() as connection:
            await publishing.start_stage(connection, self.lease, stage)
        for attempt in range(1, STAGE_ATTEMPTS + 1):
            try:
                await work()
            except (LeaseLostError, StageStoppedError):
                raise
            except StageError as error:
                await self._fail(stage, error)
                return False
            except Exception as error:
                log.exception("job %s: %s broke", self.lease.job_id, stage)
                if attempt == STAGE_ATTEMPTS:
                    message = f"The {stage} stage broke ({type(error).__name__})."
                    await self._fail(stage, StageError(FAILURE_CODES[stage], message))
                    return False
            else:
                return True
        raise AssertionError("unreachable")

    async def _fail(self, stage: StageName, error: StageError) -> None:
        log.info("job %s: %s failed: %s", self.lease.job_id, stage, error)
        async with self.world.database.transaction() as connection:
            await publishing.fail_stage(connection, self.lease, stage, error)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    def _control(self, stage: StageName) -> StageControl:
        timeout = self.world.settings.stage_timeout_seconds
        return StageControl(self, stage, time.monotonic() + timeout)

    async def _ingest(self, job: JobRecord) -> IngestResult | None:
        """The ingest result, from this run or an earlier one; None if ingest failed."""
        done = job.stages[StageName.INGEST].status is StageStatus.COMPLETED
        if not done and not await self._guarded(StageName.INGEST, lambda: self._run_ingest(job)):
            return None
        async with self.world.database.transaction() as connection:
            stored = await jobs.get_ingest_result(connection, job.id)
        return ingest_result_from_json(stored)

    async def _run_ingest(self, job: JobRecord) -> None:
        timings = Timings()
        async with self.world.database.transaction() as connection:
            uploads = {upload.slot: upload for upload in await list_uploads(connection, job.id)}
        source_key = uploads[MEDIA_SLOT].object_key
        config = IngestConfig(segment_seconds=self.world.settings.segment_seconds)
        store = self.world.objects
        with timings.measure("probe"):
            media = await self._in_thread(
                lambda: probe_source(source_key, store=store, config=config)
            )
        async with self.world.database.transaction() as connection:
            await publishing.raise_hold(connection, self.lease, media)
        control = self._control(StageName.INGEST)
        wanted = publishing.analyses_to_run(job, media)
        with timings.measure("cut"):
            result = await self._in_thread(
                lambda: ingest(
                    source_key,
                    workspace=self.workspace,
                    control=control,
                    config=config,
                    wants_video=StageName.VISION in wanted,
                    wants_audio=StageName.TRANSCRIPT in wanted,
                    media=media,
                )
            )
        async with self.world.database.transaction() as connection:
            await publishing.publish_ingest(
                connection,
                self.lease,
                media=media,
                result=ingest_result_to_json(result),
                track_names=[track.name for track in result.tracks],
                warnings=[asdict(warning) for warning in result.warnings],
                timings=timings.seconds,
            )

    def _vision(self, job: JobRecord, ingested: IngestResult) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            video = ingested.video
            if video is None:
                raise StageError(StageCode.VISION_FAILED, "The picture could not be read.")
            control = self._control(StageName.VISION)
            timings = Timings()
            with timings.measure("analyse"):
                found = await self._in_thread(
                    lambda: analyse_vision(
                        video,
                        workspace=self.workspace,
                        models=self.models,
                        control=control,
                        config=VisionConfig(),
                    )
                )
            counts = {
                "shards_computed": float(found.shards_computed),
                "shards_reused": float(found.shards_reused),
            }
            documents = [scene_document(scene) for scene in found.scenes]
            async with self.world.database.transaction() as connection:
                await publishing.publish_scenes(
                    connection, self.lease, documents, timings.seconds | counts
                )

        return work

    def _transcript(self, job: JobRecord, ingested: IngestResult) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            timings = Timings()
            tracks: list[TrackTranscript] = []
            errors: list[StageError] = []
            keyterms = tuple(job.source.get("keyterms", []))
            for position, track in enumerate(ingested.tracks):
                share = TrackShare(self._control(StageName.TRANSCRIPT), position, ingested.tracks)
                with timings.measure("analyse"):
                    outcome = await self._transcribe_one(track, ingested, share, timings, keyterms)
                if isinstance(outcome, StageError):
                    errors.append(outcome)
                    outcome = _failed_track(track, outcome)
                tracks.append(outcome)
            if len(errors) == len(ingested.tracks):
                raise (
                    errors[0]
                    if errors
                    else StageError(StageCode.TRANSCRIPT_FAILED, "The sound could not be read.")
                )
            async with self.world.database.transaction() as connection:
                await publishing.publish_transcripts(
                    connection, self.lease, tracks, timings.seconds
                )

        return work

    async def _transcribe_one(
        self,
        track: AudioTrack,
        ingested: IngestResult,
        control: TrackShare,
        timings: Timings,
        keyterms: tuple[str, ...],
    ) -> TrackTranscript | StageError:
        duration_ms = round(ingested.media.duration_seconds * 1000)
        config = TranscriptConfig(keyterms=keyterms)
        try:
            result = await self._in_thread(
                lambda: transcribe_track(
                    track,
                    workspace=self.workspace,
                    models=self.models,
                    control=control,
                    config=config,
                    media_duration_ms=duration_ms,
                )
            )
        except StageError as error:
            return error
        timings.add("shards_computed", result.shards_computed)
        timings.add("shards_reused", result.shards_reused)
        return TrackTranscript(
            track_index=track.index,
            track_name=track.name,
            status=StageStatus.COMPLETED,
            error_code=None,
            language=result.language,
            document=transcript_document(result),
        )


@dataclass(slots=True)
class TrackShare:
    """The part of the transcript stage's progress that one of its tracks makes up."""

    control: StageControl
    position: int
    tracks: tuple[AudioTrack, ...]

    def check(self) -> None:
        self.control.check()

    def progress(self, fraction: float) -> None:
        self.control.progress((self.position + fraction) / len(self.tracks))


@dataclass(slots=True)
class Timings:
    """Seconds and counts of a stage, for whoever asks where the time went."""

    seconds: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str) -> _Measured:
        return _Measured(self, name)

    def add(self, name: str, amount: float) -> None:
        self.seconds[name] = round(self.seconds.get(name, 0.0) + amount, 4)


@dataclass(slots=True)
class _Measured:
    timings: Timings
    name: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.timings.add(self.name, time.perf_counter() - self.start)


def work_prefix(lease: Lease) -> str:
    """Where a job's intermediate objects lie."""
    return f"jobs/{lease.job_id}/work"


def _failed_track(track: AudioTrack, error: StageError) -> TrackTranscript:
    return TrackTranscript(
        track_index=track.index,
        track_name=track.name,
        status=StageStatus.FAILED,
        error_code=str(error.code),
        language=None,
        document=None,
    )
