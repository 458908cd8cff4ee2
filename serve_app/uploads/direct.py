"""Direct uploads: files that clients put into the object store, past the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from serve_app.context import AppContext
from serve_app.errors import ApiError
from serve_app.uploads.access import record_complete
from serve_app.uploads.urls import arrived_key, direct_key
from storage import jobs, uploads
from storage.objects import DirectUpload, DirectUploadStore, ObjectStoreUnavailableError
from storage.types import JobState
from storage.uploads import AwaitedUpload, extend_awaited_upload, lease_awaited_uploads

log = logging.getLogger("vas.uploads")

Result = TypeVar("Result")

LOOK_SECONDS = 0.5
_LOOKS_A_ROUND = 96
_LOOKS_AT_ONCE = 8
_MOVES_AT_ONCE = 4
_MOVE_LEASE = timedelta(minutes=2)
"""The largest file that one PUT can store is copied inside the store by then."""
_AGAIN = timedelta(seconds=2)


class DirectUploadWatcher:
    """Looks in the store for the files that jobs wait for. Several may run: rows are leased.

    A file is copied before its job is queued: its URL stays valid, so that the client could
    otherwise change the file under the running job.
    """

    def __init__(self, context: AppContext, store: DirectUploadStore) -> None:
        self._context = context
        self._store = store
        self._threads = ThreadPoolExecutor(_LOOKS_AT_ONCE + _MOVES_AT_ONCE, "direct-uploads")
        self._free_to_move = asyncio.Semaphore(_MOVES_AT_ONCE)
        self._moving: set[asyncio.Task[None]] = set()

    async def look(self) -> None:
        """Look for the files that are due; an unavailable store is retried later."""
        async with self._context.database.transaction() as connection:
            awaited = await lease_awaited_uploads(connection, limit=_LOOKS_A_ROUND)
        for start in range(0, len(awaited), _LOOKS_AT_ONCE):
            some = awaited[start : start + _LOOKS_AT_ONCE]
            try:
                found = await asyncio.gather(*map(self._find, some))
            except ObjectStoreUnavailableError as error:
                log.warning("uploads are not looked for: %s", error)
                return
            for item, upload in zip(some, found, strict=True):
                if upload is not None:
                    task = asyncio.create_task(self._accept(item, upload))
                    self._moving.add(task)
                    task.add_done_callback(self._moving.discard)

    async def settle(self) -> None:
        """Wait until every file that was found is processed."""
        await asyncio.gather(*self._moving)

    async def _find(self, item: AwaitedUpload) -> DirectUpload | None:
        key = direct_key(item.job_id, item.slot)
        return await self._in_thread(lambda: self._store.find_direct_upload(key))

    async def _accept(self, item: AwaitedUpload, upload: DirectUpload) -> None:
        """Accept or refuse a file; after any failure it is looked for again."""
        async with self._free_to_move:
            held = await self._hold(item, _MOVE_LEASE)
            if held is None:
                return
            try:
                if upload.size_bytes > self._context.settings.max_upload_bytes(item.tier):
                    await self._refuse(item, upload)
                else:
                    # Copy and record it, and only then remove the original. Whatever ends this in
                    # between, the file can be found until it is recorded; one that is left
                    # afterwards is removed with the job's other objects.
                    source = direct_key(item.job_id, item.slot)
                    target = arrived_key(item.job_id, item.slot, upload.version)
                    if await self._in_thread(
                        lambda: self._store.copy_direct_upload(source, upload, target)
                    ):
                        size_bytes = upload.size_bytes
                        await record_complete(
                            self._context, item.job_id, item.slot, size_bytes, target
                        )
                        await self._in_thread(lambda: self._context.objects.delete(source))
            except ApiError as error:
                # The job has ended; the file is removed with its other objects.
                log.info("job %s: %s came too late: %s", item.job_id, item.slot, error)
            except Exception:
                log.exception("job %s: %s could not be taken over", item.job_id, item.slot)
            await self._hold(held, _AGAIN)

    async def _hold(self, item: AwaitedUpload, lease: timedelta) -> AwaitedUpload | None:
        async with self._context.database.transaction() as connection:
            return await extend_awaited_upload(connection, item, lease=lease)

    async def _refuse(self, item: AwaitedUpload, upload: DirectUpload) -> None:
        """Queue the job, which ingest fails for the size that is recorded here; delete the file.

        There is no request to answer with 413, and no transition from awaiting_upload to failed.
        """
        async with self._context.database.transaction() as connection:
            job = await jobs.find_job(connection, item.job_id, for_update=True)
            if job is None or job.state is not JobState.AWAITING_UPLOAD:
                return
            await uploads.complete_upload(connection, item.job_id, item.slot, upload.size_bytes)
            await jobs.set_state(
                connection, item.job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
        key = direct_key(item.job_id, item.slot)
        await self._in_thread(lambda: self._context.objects.delete(key))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
