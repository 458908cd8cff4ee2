"""PostgreSQL goes away under a runner at work, and comes back: the job does not pay for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import text

from models.provider import LocalModels
from serve_app.context import AppContext, build_context
from serve_app.settings import Settings
from serve_app.work import publishing
from serve_app.work import reaper as reaping
from serve_app.work import runner as driving
from serve_app.work.publishing import Lease
from serve_app.work.reaper import Reaper
from serve_app.work.runner import JobDriver
from serve_app.work.stage_work import Calibration, StageWork
from storage import database, jobs, keys, ledger
from storage.database import UNAVAILABLE, embedded_postgres, migrate
from storage.job_records import JobRecord, JobSource, NewJob
from storage.types import JobState, ProcessingMode, StageName, StageStatus
from tests.acceptance.chaos.database_server import DatabaseServer
from tests.contract.runner_side import FOOTAGE
from tests.serve_app.running_api import SECRET
from tests.stopwatch import Stopwatch
from tests.storage.tcp_postgres import tcp_postgres

LEASE_SECONDS = 2.0
DOWN_SECONDS = 3.0
"""Longer than a lease, so that only patience helps."""
LONG_DOWN_SECONDS, SOON_SECONDS = 8.0, 4.0
"""psycopg's pool would try after 1, 3, 7 and 15 s."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseServer]:
    """A server of this module's own, to be killed."""
    folder = tmp_path_factory.mktemp("away") / "pg"
    with tcp_postgres(folder) as url:
        migrate(url)
        yield DatabaseServer(folder, url)


@pytest.fixture
async def context(server: DatabaseServer, tmp_path: Path) -> AsyncIterator[AppContext]:
    settings = Settings(
        data_dir=tmp_path,
        database_url=server.url,
        secret_key=SECRET,
        lease_seconds=LEASE_SECONDS,
        heartbeat_seconds=0.2,
    )
    built = build_context(settings)
    yield built
    await built.database.close()


async def leased(context: AppContext) -> Lease:
    """A job of a new account in the hands of a runner."""
    async with context.database.transaction() as connection:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        await ledger.grant(connection, account.id, 1000, "test")
        source = JobSource(kind="url", base_url="http://test")
        job = NewJob(account.id, JobState.QUEUED, ProcessingMode.ALL, "clip.mp4", source)
        await jobs.insert_job(connection, job)
        taken = await jobs.lease_next(connection, lease=timedelta(minutes=10))
    assert taken is not None
    return Lease(*taken)


async def found(context: AppContext, lease: Lease) -> JobRecord:
    job = await context.database.write(jobs.find_job, lease.job_id)
    assert job is not None
    return job


async def let_lapse(context: AppContext, lease: Lease) -> None:
    """The job may be one that an earlier test gave back: this is its first life."""
    statement = (
        "UPDATE jobs SET lease_count = 1, lease_expires_at = now() - interval '1 minute'"
        " WHERE id = :id"
    )
    async with context.database.transaction() as connection:
        await connection.execute(text(statement), {"id": lease.job_id})


async def ask_until_it_answers(context: AppContext) -> None:
    for _ in range(600):
        with contextlib.suppress(*UNAVAILABLE):
            async with context.database.transaction() as connection:
                await connection.exec_driver_sql("SELECT 1")
            return
        await asyncio.sleep(0.1)


async def test_a_stage_whose_database_goes_away_is_published_when_it_is_back(
    context: AppContext, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "OUTAGE_PAUSES_SECONDS", (0.3,) * 60)
    lease = await leased(context)
    with ThreadPoolExecutor(1) as threads:
        driver = JobDriver(context, LocalModels(), lease, threads, Calibration("packaged"))
        crash = threading.Thread(target=server.crash, args=(DOWN_SECONDS,))

        async def ingest(_: StageWork) -> JobState | None:
            if crash.ident is None:
                crash.start()
                await asyncio.sleep(0.5)
            async with context.database.transaction() as connection:
                await publishing.raise_hold(connection, lease, FOOTAGE, context.prices)
                return await publishing.publish_ingest(
                    connection,
                    lease,
                    media=FOOTAGE,
                    result={},
                    track_names=[],
                    warnings=[],
                    timings={},
                )

        heartbeat = asyncio.create_task(driver._heartbeat())
        await driver._run_stage(StageName.INGEST, ingest)
        heartbeat.cancel()
        await asyncio.to_thread(crash.join)
    job = await found(context, lease)
    assert job.stages[StageName.INGEST].status is StageStatus.COMPLETED
    assert job.state is JobState.PROCESSING


async def test_leases_that_could_not_be_renewed_get_the_time_to_be(
    context: AppContext, server: DatabaseServer
) -> None:
    """The lease is over before the outage is; the time that it gets is longer than the test."""
    patient = context.settings.model_copy(update={"lease_seconds": 600.0})
    lease, reaper = await leased(context), Reaper(replace(context, settings=patient))
    await let_lapse(context, lease)
    with server.away(), pytest.raises(UNAVAILABLE):
        await reaper.sweep_database()
    await ask_until_it_answers(context)
    await reaper.sweep_database()
    job = await found(context, lease)
    assert (job.state, job.lease_token) == (JobState.PROCESSING, lease.token)


async def test_a_runner_that_does_not_come_back_with_the_database_is_lost_all_the_same(
    context: AppContext, server: DatabaseServer
) -> None:
    lease, reaper = await leased(context), Reaper(context)
    await reaper.sweep_database()
    await asyncio.to_thread(server.restart)
    await ask_until_it_answers(context)
    await let_lapse(context, lease)
    async with asyncio.timeout(60):
        while (await found(context, lease)).state is not JobState.QUEUED:
            await asyncio.sleep(0.2)
            await reaper.sweep_database()


async def test_after_the_machine_slept_runners_report_before_anybody_counts_them_lost(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, reaper = await leased(context), Reaper(context)
    await reaper.sweep_database()
    asleep = 60.0
    # The database's clock went on as well: by it the lease is long over.
    await let_lapse(context, lease)
    real = reaping._clock
    monkeypatch.setattr(reaping, "_clock", lambda: real() + asleep)
    await reaper.sweep_database()
    job = await found(context, lease)
    assert (job.state, job.lease_token) == (JobState.PROCESSING, lease.token)
    async with asyncio.timeout(60):
        while (await found(context, lease)).state is not JobState.QUEUED:
            await asyncio.sleep(0.2)
            await reaper.sweep_database()


async def test_queries_are_answered_soon_after_an_outage_however_long_it_was(
    context: AppContext, server: DatabaseServer
) -> None:
    """A pool that tries ever more seldom would let them wait for as long again."""
    query = text("SELECT 1 AS one")
    assert await context.database.query(query) == [{"one": 1}]
    outage = threading.Thread(target=server.crash, args=(LONG_DOWN_SECONDS,))
    outage.start()
    while outage.is_alive():
        with contextlib.suppress(TimeoutError, *UNAVAILABLE):
            await asyncio.wait_for(context.database.query(query), 0.5)
    with Stopwatch() as watch:
        await ask_until_it_answers(context)
    assert watch.seconds < SOON_SECONDS
    assert await context.database.query(query) == [{"one": 1}]


def test_a_server_that_ended_is_started_again_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOOK_SECONDS", 0.2)
    folder = tmp_path / "pg"
    with embedded_postgres(folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
        everything = [postmaster, *postmaster.children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, 30)
        assert rows_when_up(url) == [(7,)]
        again = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    # Whoever is to reap it may take a while.
    assert not again.is_running() or again.status() == psutil.STATUS_ZOMBIE


def rows_when_up(url: str) -> list[tuple[int]]:
    for _ in range(1200):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
            return connection.execute("SELECT n FROM kept").fetchall()
        time.sleep(0.1)
    raise AssertionError("no server")
