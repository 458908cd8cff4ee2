"""Notices files that clients put into the object store themselves, past the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from serve_app.api.upload_urls import arrived_key, direct_key
from serve_app.context import AppContext
from serve_app.errors import ApiError
from serve_app.uploads.access import record_complete
from storage import jobs, uploads
from storage.objects import DirectUpload, DirectUploadStore, ObjectStoreUnavailableError
from storage.types import JobState
from storage.uploads import AwaitedUpload, extend_awaited_upload, lease_awaited_uploads

log = logging.getLogger("vas.arrivals")

Result = TypeVar("Result")

_PAUSE_SECONDS = 0.5
_LOOKS_A_ROUND = 96
_LOOKS_AT_ONCE = 8
_MOVES_AT_ONCE = 4
_MOVE_LEASE = timedelta(minutes=2)
"""The largest file that one PUT can bring is copied inside the store by then."""
_AGAIN = timedelta(seconds=2)


class DirectUploadWatcher:
    """Asks the store for the files that jobs wait for. Several may run: rows are claimed.

    A file is copied before its job is queued: its address stays valid for the
    client, who could otherwise change it under the running job.
    """

    def __init__(self, context: AppContext, store: DirectUploadStore) -> None:
        self._context = context
        self._store = store
        self._threads = ThreadPoolExecutor(_LOOKS_AT_ONCE + _MOVES_AT_ONCE, "arrivals")
        self._free_to_move = asyncio.Semaphore(_MOVES_AT_ONCE)
        self._moving: set[asyncio.Task[None]] = set()

    async def look_and_wait(self) -> None:
        """One round and the pause after it."""
        await self.look()
        await asyncio.sleep(_PAUSE_SECONDS)

    async def look(self) -> None:
        """Look for the files that are due; a store that is away is asked again later."""
        async with self._context.database.transaction() as connection:
            awaited = await lease_awaited_uploads(connection, limit=_LOOKS_A_ROUND)
        for start in range(0, len(awaited), _LOOKS_AT_ONCE):
            some = awaited[start : start + _LOOKS_AT_ONCE]
            try:
                found = await asyncio.gather(*map(self._find, some))
            except ObjectStoreUnavailableError as error:
                log.warning("uploads are not looked for: %s", error)
                return
            for item, arrival in zip(some, found, strict=True):
                if arrival is not None:
                    self._begin(item, arrival)

    async def settle(self) -> None:
        """Wait until every file that was found is dealt with."""
        await asyncio.gather(*self._moving)

    def _begin(self, item: AwaitedUpload, arrival: DirectUpload) -> None:
        # A large file takes a while to move; the others need not wait for it.
        task = asyncio.create_task(self._accept(item, arrival))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def _find(self, item: AwaitedUpload) -> DirectUpload | None:
        key = direct_key(item.job_id, item.slot)
        return await self._in_thread(lambda: self._store.find_direct_upload(key))

    async def _accept(self, item: AwaitedUpload, arrival: DirectUpload) -> None:
        """Deal with a file; whatever fails is looked for again."""
        async with self._free_to_move:
            held = await self._hold(item, _MOVE_LEASE)
            if held is None:
                return
            try:
                if arrival.size_bytes > self._context.settings.max_upload_bytes(item.tier):
                    await self._refuse(item, arrival)
                else:
                    await self._take_over(item, arrival)
            except ApiError as error:
                # The job ended while we looked; the file goes with its other objects.
                log.info("job %s: %s came too late: %s", item.job_id, item.slot, error)
            except Exception:
                log.exception("job %s: %s could not be taken over", item.job_id, item.slot)
            await self._hold(held, _AGAIN)

    async def _hold(self, item: AwaitedUpload, lease: timedelta) -> AwaitedUpload | None:
        async with self._context.database.transaction() as connection:
            return await extend_awaited_upload(connection, item, lease=lease)

    async def _take_over(self, item: AwaitedUpload, arrival: DirectUpload) -> None:
        """Copied, recorded, and only then removed where it was.

        Whatever ends this in between, the file lies where it is looked for until its job
        knows of it; one that is left there afterwards goes with the job's other objects.
        """
        source = direct_key(item.job_id, item.slot)
        target = arrived_key(item.job_id, item.slot, arrival.version)
        if await self._in_thread(lambda: self._store.copy_direct_upload(source, arrival, target)):
            size_bytes = arrival.size_bytes
            await record_complete(self._context, item.job_id, item.slot, size_bytes, target)
            await self._in_thread(lambda: self._context.objects.delete(source))

    async def _refuse(self, item: AwaitedUpload, arrival: DirectUpload) -> None:
        """Let the job run into its end at once: ingest refuses the size that is recorded here.

        There is no request that could be answered with 413, and the state
        machine knows no way from waiting to failed; nothing is kept of the file.
        """
        async with self._context.database.transaction() as connection:
            job = await jobs.find_job(connection, item.job_id, for_update=True)
            if job is None or job.state is not JobState.AWAITING_UPLOAD:
                return
            await uploads.complete_upload(connection, item.job_id, item.slot, arrival.size_bytes)
            await jobs.set_state(
                connection, item.job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
        key = direct_key(item.job_id, item.slot)
        await self._in_thread(lambda: self._context.objects.delete(key))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
