"""A runner that is stopped hands its job back, and takes none of those that still wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from models.provider import LocalModels
from serve_app.context import AppContext, build_context
from serve_app.deployment import application
from serve_app.deployment.application import STOP_SECONDS, MachineReplica
from serve_app.jobs.service import end_job
from serve_app.settings import Settings
from serve_app.webhooks import sender
from serve_app.work import runner as running_jobs
from serve_app.work.publishing import Lease
from serve_app.work.runner import JobDriver, Runner
from serve_app.work.stage_work import Calibration
from storage import jobs, keys, ledger
from storage.job_records import JobRecord, JobSource, NewJob, SourceClip
from storage.types import JobState, ProcessingMode, StageStatus
from tests.serve_app.running_api import SECRET

WAITING = 3
DRIP_SECONDS = 0.05


@asynccontextmanager
async def endless_file() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a file that comes byte by byte and never ends, and when it was asked for."""
    asked = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(DRIP_SECONDS)
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/clip.mp4", asked
    finally:
        server.close()


async def queued(context: AppContext, url: str) -> list[uuid.UUID]:
    source = JobSource(kind="url", base_url="http://test", clips=(SourceClip(url=url),))
    ids = []
    async with context.database.transaction() as connection:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        await ledger.grant(connection, account.id, 1000, "test")
        for _ in range(1 + WAITING):
            job = NewJob(account.id, JobState.QUEUED, ProcessingMode.ALL, "clip.mp4", source)
            await jobs.insert_job(connection, job)
            ids.append(job.id)
    return ids


async def found(context: AppContext, ids: list[uuid.UUID]) -> list[JobRecord]:
    async with context.database.transaction() as connection:
        return [job for each in ids if (job := await jobs.find_job(connection, each)) is not None]


@pytest.fixture
async def context(database_url: str, tmp_path: Path) -> AsyncIterator[AppContext]:
    settings = Settings(
        data_dir=tmp_path,
        database_url=database_url,
        secret_key=SECRET,
        runner_concurrency=1,
        model_profile="packaged",
        allowed_networks=("127.0.0.0/8",),
    )
    built = build_context(settings)
    yield built
    await built.database.close()


async def stopped_amid_a_fetch(
    context: AppContext, deaf: Sequence[JobDriver] = ()
) -> list[JobRecord]:
    """What is left of the jobs after a runner was stopped in the middle of the first.

    Drivers that are ``deaf`` hear of the stop when it is over.
    """
    async with endless_file() as (url, asked):
        ids = await queued(context, url)
        runner = Runner(context, LocalModels())
        running = asyncio.create_task(runner.run())
        await asked.wait()
        await asyncio.sleep(4 * DRIP_SECONDS)
        await runner.stop()
        assert len(deaf) <= 1, "a driver was stopped twice, or a second job was begun"
        left = await found(context, ids)
        for driver in deaf:
            driver.stopped = True
        await asyncio.wait_for(running, 120)
    return left


def none_is_lost(left: list[JobRecord]) -> bool:
    """Whether all jobs are queued again and no lease is counted."""
    assert {job.lease_count for job in left} == {0}
    statuses = {stage.status for job in left for stage in job.stages.values()}
    states = [job.state for job in left]
    return states == [JobState.QUEUED] * (1 + WAITING) and statuses == {StageStatus.PENDING}


async def test_a_stop_frees_no_slot_for_another_job(context: AppContext) -> None:
    assert none_is_lost(await stopped_amid_a_fetch(context))


async def test_a_job_that_does_not_end_in_time_is_requeued_too(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[JobDriver] = []

    async def ignored(driver: JobDriver) -> None:
        stopped.append(driver)
        await asyncio.sleep(3600)

    monkeypatch.setattr(JobDriver, "stop", ignored)
    monkeypatch.setattr(running_jobs, "ENDING_SECONDS", 0.2)
    left = await stopped_amid_a_fetch(context, stopped)
    # On a slow machine its heartbeat finds the lease lost, and stops it once more.
    assert len({id(driver) for driver in stopped}) == 1
    assert none_is_lost(left)


async def heartbeat_after(
    context: AppContext, state: JobState, monkeypatch: pytest.MonkeyPatch, *, returns: bool
) -> bool:
    """Whether a job's tasks are told to stop once it is in ``state``, its driver still at work."""
    monkeypatch.setattr(running_jobs, "RETURN_SECONDS", 60 if returns else 0.1)
    await queued(context, "http://test/clip.mp4")
    taken = await context.database.write(jobs.lease_next, lease=timedelta(minutes=10))
    assert taken is not None
    lease = Lease(*taken)
    with ThreadPoolExecutor(1) as threads:
        driver = JobDriver(context, LocalModels(), lease, threads, Calibration("packaged"))
        heartbeat = asyncio.create_task(driver._heartbeat())
        async with context.database.transaction() as connection:
            job = await jobs.find_job(connection, lease.job_id, for_update=True)
            assert job is not None
            code = "PROCESSING_FAILED" if state is JobState.FAILED else None
            await end_job(connection, job, state, error_code=code, error_message=code)
        await asyncio.wait([heartbeat], timeout=5 * context.settings.heartbeat_seconds)
        heartbeat.cancel()
    (stop,) = {driver.stopped, context.objects.exists(driver.workspace.key(f"stop-{lease.token}"))}
    return stop


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
async def test_a_job_that_its_runner_ended_leaves_no_stop_marker(
    context: AppContext, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    assert not await heartbeat_after(context, state, monkeypatch, returns=True)


async def test_tasks_of_a_job_that_another_ended_are_stopped(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await heartbeat_after(context, JobState.CANCELLED, monkeypatch, returns=True)
    assert await heartbeat_after(context, JobState.COMPLETED, monkeypatch, returns=False)


def test_what_a_stop_waits_for_is_less_than_serve_gives_it() -> None:
    """Else Serve ends the replica, and each of its jobs loses a lease."""
    to_answer = 5
    assert running_jobs.LEASING_SECONDS + running_jobs.ENDING_SECONDS + to_answer < STOP_SECONDS
    assert sender.FINISH_SECONDS + sender.FINAL_RECORD_SECONDS + to_answer < STOP_SECONDS


def all_in_one(context: AppContext, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A MachineReplica without Serve, whose runner and sender have begun."""
    monkeypatch.setattr(application, "_searching_context", build_context)
    monkeypatch.setattr(application, "_start_model_actors", lambda _: None)  # without Ray
    without_serve = type("WithoutServe", MachineReplica.__mro__[1:2], {"__del__": lambda _: None})
    replica: Any = without_serve(context.settings)
    replica._beside.start()
    return replica


async def test_a_replica_that_runs_all_requeues_its_job_before_it_ends(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endless_file() as (url, asked):
        ids = await queued(context, url)
        replica = all_in_one(context, monkeypatch)
        await asked.wait()
        replica.check_health()
        await replica.requeue()
        assert none_is_lost(await found(context, ids))
    await replica.requeue()  # Serve ends it in order, too


async def test_a_replica_that_runs_all_is_replaced_when_its_runner_or_sender_has_ended(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: sender.Sender) -> None:
        raise ConnectionError("no way to go on")

    monkeypatch.setattr(sender.Sender, "run", broken)
    replica = all_in_one(context, monkeypatch)
    await asyncio.to_thread(replica._beside.join, 60)
    assert not replica._beside.is_alive()
    with pytest.raises(RuntimeError, match="has ended"):
        replica.check_health()
