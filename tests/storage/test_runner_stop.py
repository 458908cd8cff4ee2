"""A runner that is stopped hands its job back, and takes none of those that still wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from models.sources import LocalModels
from serve_app.runner.runner import Runner
from serve_app.settings import Settings
from serve_app.world import World, build_world
from storage import jobs, keys, ledger
from storage.job_records import JobRecord, NewJob
from storage.types import JobState, ProcessingMode, StageStatus

WAITING = 3
DRIP_SECONDS = 0.05
pytestmark = pytest.mark.timeout(60)


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


async def queued(world: World, url: str) -> list[uuid.UUID]:
    source = {
        "kind": "url",
        "base_url": "http://test",
        "clips": [{"url": url, "provider": None, "sealed_token": None}],
        "audio": [],
        "keyterms": [],
        "speakers_expected": None,
    }
    ids = []
    async with world.database.transaction() as connection:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        await ledger.grant(connection, account.id, 1000, "test")
        for _ in range(1 + WAITING):
            job = NewJob(account.id, JobState.QUEUED, ProcessingMode.ALL, "clip.mp4", source)
            await jobs.insert_job(connection, job)
            ids.append(job.id)
    return ids


async def found(world: World, ids: list[uuid.UUID]) -> list[JobRecord]:
    async with world.database.transaction() as connection:
        return [job for each in ids if (job := await jobs.find_job(connection, each)) is not None]


async def test_a_stop_frees_no_slot_for_another_job(database_url: str, tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        database_url=database_url,
        secret_key="x" * 32,
        runner_concurrency=1,
        allowed_networks=("127.0.0.0/8",),
    )
    world = build_world(settings)
    try:
        async with endless_file() as (url, asked):
            ids = await queued(world, url)
            runner = Runner(world, LocalModels())
            running = asyncio.create_task(runner.run())
            await asked.wait()
            await asyncio.sleep(4 * DRIP_SECONDS)
            await runner.stop()
            await asyncio.wait_for(running, 30)
            left = await found(world, ids)
    finally:
        await world.database.close()
    assert [job.state for job in left] == [JobState.QUEUED] * (1 + WAITING)
    statuses = {stage.status for job in left for stage in job.stages.values()}
    assert statuses == {StageStatus.PENDING}
