"""A runner as its own process, made to be killed: leases jobs and publishes trivial results.

Only what it publishes is simple; leasing, pricing, publishing and the reaper are
the service's own. It kills itself with SIGKILL right before or right after the
``dies_at``-th statement that it sends to the database: between stages, inside of
transactions, just before and just after a commit.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import event

from pipelines.types import MediaInfo, StageCode, StageError
from serve_app.context import AppContext, build_context
from serve_app.settings import Settings
from serve_app.work import publishing
from serve_app.work.publishing import Lease
from serve_app.work.reaper import Reaper
from storage import jobs
from storage.database import Connection
from storage.jobs import LeaseLostError
from storage.types import ENDED_STATUSES, StageName
from tests.contract.runner_side import FOOTAGE
from tests.serve_app.published_jobs import SCENES, stored, track

LEASE = timedelta(milliseconds=200)
FAILING_FILE = "failing.mp4"
"""Jobs of this name fail in their transcript stage, after whatever else they did."""


@dataclass(slots=True)
class Fuse:
    """Counts statements and commits; kills the process at the chosen one."""

    dies_at: int | None
    after: bool
    count: int = 0

    def attach(self, context: AppContext) -> None:
        engine = context.database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", lambda *_: self._tick())
        event.listen(engine, "after_cursor_execute", lambda *_: self._burn())
        event.listen(engine, "commit", lambda *_: self._tick())

    def _tick(self) -> None:
        self.count += 1
        if self.count == self.dies_at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)

    def _burn(self) -> None:
        if self.count == self.dies_at and self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_done(settings: Settings, seed: int, dies_at: int | None) -> None:
    """Drive jobs until none is left; entry point of the process."""
    chance = random.Random(seed)
    asyncio.run(_run(settings, chance, Fuse(dies_at, chance.random() < 0.5)))


async def _run(settings: Settings, chance: random.Random, fuse: Fuse) -> None:
    context = build_context(settings)
    fuse.attach(context)
    try:
        while await _unfinished(context):
            await Reaper(context).sweep()
            leased = await context.database.write(jobs.lease_next, lease=LEASE)
            if leased is None:
                await asyncio.sleep(0.02)
                continue
            await _drive(context, Lease(*leased), chance)
    finally:
        await context.database.close()


async def _unfinished(context: AppContext) -> bool:
    async with context.database.transaction() as connection:
        query = "SELECT EXISTS (SELECT FROM jobs WHERE completed_at IS NULL)"
        return bool((await connection.exec_driver_sql(query)).scalar_one())


async def _drive(context: AppContext, lease: Lease, chance: random.Random) -> None:
    """One job as the driver of the service goes through it, each stage's work a short sleep."""
    try:
        job = await context.database.write(jobs.lock_leased, lease.job_id, lease.token)
        if job.stages[StageName.INGEST].status not in ENDED_STATUSES:
            await _ingest(context, lease, chance)
        analyses = [StageName.VISION, StageName.TRANSCRIPT]
        chance.shuffle(analyses)
        for stage in analyses:
            if job.stages[stage].status not in ENDED_STATUSES:
                fails = stage is StageName.TRANSCRIPT and job.file_name == FAILING_FILE
                await _analyse(context, lease, stage, chance, fails=fails)
    except LeaseLostError:
        return


async def _ingest(context: AppContext, lease: Lease, chance: random.Random) -> None:
    await _start(context, lease, StageName.INGEST)
    media = _media_of(lease)
    await context.database.write(publishing.raise_hold, lease, media, context.prices)
    await asyncio.sleep(chance.uniform(0, 0.01))
    async with context.database.transaction() as connection:
        await publishing.publish_ingest(
            connection, lease, media=media, result={}, track_names=[], warnings=[], timings={}
        )


def _media_of(lease: Lease) -> MediaInfo:
    """Footage of a length of the job's own, the same for every runner that takes it up."""
    seconds = 30 + lease.job_id.int % 5000
    return MediaInfo("mp4", 1000, float(seconds), FOOTAGE.video, FOOTAGE.audio)


async def _analyse(
    context: AppContext, lease: Lease, stage: StageName, chance: random.Random, *, fails: bool
) -> None:
    await _start(context, lease, stage)
    await asyncio.sleep(chance.uniform(0, 0.01))
    await context.database.write(_publish, lease, stage, fails=fails)


async def _start(context: AppContext, lease: Lease, stage: StageName) -> None:
    await context.database.write(publishing.start_stage, lease, stage)


async def _publish(connection: Connection, lease: Lease, stage: StageName, *, fails: bool) -> None:
    if fails:
        error = StageError(StageCode.TRANSCRIPT_FAILED, "It broke.")
        await publishing.fail_stage(connection, lease, stage, error)
    elif stage is StageName.VISION:
        await publishing.publish_scenes(connection, lease, stored(SCENES), {})
    else:
        await publishing.publish_transcripts(connection, lease, [track(0)], {})
