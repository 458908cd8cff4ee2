"""Removing what lies in the object store of jobs that have ended; their results stay."""

from __future__ import annotations

import asyncio
import logging
import uuid
from datetime import timedelta

from pipelines.execution.chain import is_stop_marker
from serve_app.context import AppContext
from storage import jobs, results
from storage.cleaning import CleaningRound, end_round, lease_rounds
from storage.objects import ObjectStore, ObjectStoreUnavailableError
from storage.types import StageName, StageStatus
from storage.uploads import source_prefix

log = logging.getLogger("vas.removal")

_AT_ONCE = 20


async def remove_due(context: AppContext) -> None:
    """Carry out the rounds that are due; one that fails is taken up again when its lease ends."""
    retention = timedelta(seconds=context.settings.source_retention_seconds)
    async with context.database.transaction() as connection:
        rounds = await lease_rounds(connection, retention=retention, limit=_AT_ONCE)
    for due in rounds:
        try:
            await _carry_out(context, due)
        except ObjectStoreUnavailableError as error:
            log.warning("objects of ended jobs are not removed yet: %s", error)
            return
        except Exception:
            # The others must not wait for the one that cannot be removed.
            log.exception("job %s: its objects could not be removed", due.job_id)


async def _carry_out(context: AppContext, due: CleaningRound) -> None:
    kept = await _results(context, due.job_id)
    await asyncio.to_thread(remove_objects, context.objects, due, kept)
    async with context.database.transaction() as connection:
        await end_round(connection, due)


async def _results(context: AppContext, job_id: uuid.UUID) -> set[str]:
    """Keys of the stills that the job's scenes show."""
    async with context.database.transaction() as connection:
        job = await jobs.find_job(connection, job_id)
        if job is None or job.stages[StageName.VISION].status is not StageStatus.COMPLETED:
            return set()
        scenes = await results.get_scenes(connection, job_id)
    return {scene["thumbnailKey"] for scene in scenes}


def remove_objects(store: ObjectStore, due: CleaningRound, kept: set[str]) -> None:
    """Remove all of a job's objects but ``kept``, with partials and what killed writers left.

    Markers that tell tasks to stop stay as long as such a task may be running.
    """
    prefix = f"jobs/{due.job_id}"
    if due.next_at is None and not kept:
        store.delete_prefix(prefix)
        return
    store.delete_prefix(source_prefix(due.job_id))
    for key in list(store.list_partials(prefix)):
        store.discard_partial(key)
    doomed = [key for key in store.list_keys(prefix) if key not in kept]
    if due.tasks_may_run:
        doomed = [key for key in doomed if not is_stop_marker(key)]
    store.delete_keys(doomed)
    store.remove_leftovers(prefix)
