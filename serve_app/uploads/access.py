"""One file of one job behind a signed URL: signing, checks before a byte is read, completion.

URLs are signed, expire, and need no API key. Clients of a bucket put files into it past the
service; those are found and moved out of the signed URL's reach.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from pipelines.types import WarningCode
from serve_app import API_PREFIX
from serve_app.api.urls import parse_job_id, require_active_owner
from serve_app.context import AppContext
from serve_app.crypto import Signer
from serve_app.errors import ApiError, ErrorCode, existing, file_too_large, invalid
from serve_app.settings import Settings
from storage import jobs, objects, uploads
from storage.database import Connection
from storage.job_records import JobRecord
from storage.types import JobState

UPLOAD_PURPOSE = "upload"
UPLOADS_PATH = f"{API_PREFIX}/uploads"
UPLOAD_HEADERS = {"Content-Type": "application/octet-stream"}


def upload_path(upload: uploads.Upload) -> str:
    """Return the path, unsigned, that one file of a job is PUT to."""
    return f"{UPLOADS_PATH}/{upload.job_id}/{upload.slot}"


def resumable_key(job_id: uuid.UUID, slot: str) -> str:
    """Return where in the object store a resumable upload grows, and lies once it is complete."""
    return f"{uploads.source_prefix(job_id)}/{slot}"


def direct_key(job_id: uuid.UUID, slot: str) -> str:
    """Return where a client puts a file past the service; it is moved once it is there."""
    return f"{uploads.source_prefix(job_id)}/direct/{slot}"


async def direct_urls(
    store: objects.ObjectStore, files: list[uploads.Upload], settings: Settings
) -> dict[str, str]:
    """Return addresses in the store itself, by slot, for the files that it takes with one PUT.

    None with a store that clients cannot reach. Signing may have to fetch the
    machine's credentials, so it is done outside any transaction.
    """
    if not isinstance(store, objects.DirectUploadStore):
        return {}
    lifetime = settings.upload_lifetime_seconds
    return {
        item.slot: await asyncio.to_thread(
            store.presigned_put_url, direct_key(item.job_id, item.slot), expires_seconds=lifetime
        )
        for item in files
        if (item.declared_bytes or 0) <= store.largest_put_bytes
    }


def upload_fields(
    job: JobRecord,
    files: list[uploads.Upload],
    *,
    signer: Signer,
    settings: Settings,
    public: str,
    direct: dict[str, str],
) -> dict[str, Any]:
    """Return what ``POST /jobs`` adds to the Job object; ``direct`` is what ``direct_urls``
    made."""
    if job.upload_expires_at is None:
        raise ValueError("The job takes no uploads.")
    expires_at = int(job.upload_expires_at.timestamp())

    def address(path: str) -> str:
        return public + signer.sign_path(UPLOAD_PURPOSE, path, expires_at=expires_at)

    urls = {item.slot: address(upload_path(item)) for item in files} | direct
    resumable = {item.slot: address(f"{upload_path(item)}/resumable") for item in files}
    fields: dict[str, Any] = {
        "uploadUrl": urls.pop(uploads.MEDIA_SLOT),
        "resumableUploadUrl": resumable.pop(uploads.MEDIA_SLOT),
        "uploadMethod": "PUT",
        "uploadHeaders": UPLOAD_HEADERS,
        "expiresInSeconds": settings.upload_lifetime_seconds,
        "maxUploadBytes": settings.max_upload_bytes(job.tier),
    }
    if uploads.AUDIO_SLOT in urls:
        fields |= {
            "audioUploadUrl": urls[uploads.AUDIO_SLOT],
            "audioResumableUploadUrl": resumable[uploads.AUDIO_SLOT],
            "audioUploadHeaders": UPLOAD_HEADERS,
        }
    elif urls:
        fields["audioTrackUploadUrls"] = [
            {
                "trackIndex": int(slot.removeprefix(uploads.TRACK_SLOT)),
                "url": urls[slot],
                "resumableUrl": resumable[slot],
                "headers": UPLOAD_HEADERS,
            }
            for slot in urls
        ]
        fields["audioUploadHeaders"] = UPLOAD_HEADERS
    return fields


_SPARE_BYTES = 64 * 1024 * 1024
"""Space that stays free on the disk, for the database and other processes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A file of a job, as it was when the request came."""

    job: JobRecord
    upload: uploads.Upload
    limit_bytes: int

    @property
    def awaiting(self) -> bool:
        return self.job.state is JobState.AWAITING_UPLOAD


def unauthorized() -> ApiError:
    return ApiError(ErrorCode.UNAUTHORIZED, "The upload URL is not valid or has expired.")


async def open_slot(context: AppContext, job_id: str, slot: str) -> Slot:
    """Return the file that the address names; raises NOT_FOUND, ACCOUNT_SUSPENDED."""
    async with context.database.statement() as connection:
        job = existing(await jobs.find_job(connection, parse_job_id(job_id)), "job")
        await require_active_owner(connection, job.id)
        upload = existing(await uploads.find_upload(connection, job.id, slot), "upload")
    return Slot(job, upload, context.settings.max_upload_bytes(job.tier))


def require_awaiting(job: JobRecord) -> None:
    """Raises 409 for a job that takes no upload any more."""
    if job.state is not JobState.AWAITING_UPLOAD:
        message = f"The job takes no upload any more: it is {job.state}."
        found = {"jobId": str(job.id), "state": str(job.state)}
        raise ApiError(ErrorCode.INVALID_REQUEST, message, status=409, extra=found)


def too_large(slot: Slot) -> ApiError:
    """413, naming the limit."""
    return file_too_large(slot.limit_bytes, slot.job.tier)


def empty_file() -> ApiError:
    """400: nothing can be analysed in no bytes."""
    return invalid("The file is empty.", "fileSizeBytes")


async def require_room(context: AppContext, size_bytes: int) -> None:
    """Raises SERVICE_UNAVAILABLE where the store cannot hold so much more."""
    free = await asyncio.to_thread(context.objects.free_bytes)
    if free is not None and size_bytes > max(0, free - _SPARE_BYTES):
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "There is no room for the file.")


async def warn_of_length(
    connection: Connection, job: JobRecord, upload: uploads.Upload, *, missing: bool
) -> None:
    """Set or clear the warning that bytes of the upload came without its length being stated."""
    message = (
        f"The length of {upload.file_name} is not stated, so that its upload cannot be complete: "
        "give fileSizeBytes when the job is created, or Upload-Length with a PATCH."
    )
    warning = {"code": WarningCode.UPLOAD_LENGTH_MISSING, "message": message}
    if (warning in job.warnings) != missing:
        await jobs.set_warning(connection, job.id, warning, holds=missing)


async def record_complete(
    context: AppContext, job_id: uuid.UUID, slot: str, received_bytes: int, object_key: str
) -> None:
    """The file lies under ``object_key``; one that came before it is removed.

    Raises ApiError 409 where the job takes no upload any more: then the caller
    has to delete its object.
    """
    async with context.database.transaction() as connection:
        # The job's lock makes completions one after the other: only one is the last.
        job = await jobs.find_job(connection, job_id, for_update=True)
        earlier = await uploads.find_upload(connection, job_id, slot)
        if job is None or earlier is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such upload.")
        if (earlier.received_bytes, earlier.object_key) == (received_bytes, object_key):
            return  # recorded already by another request
        require_awaiting(job)
        await warn_of_length(connection, job, earlier, missing=False)
        if await uploads.complete_upload(
            connection, job_id, slot, received_bytes, object_key=object_key
        ):
            await jobs.set_state(
                connection, job_id, expected=JobState.AWAITING_UPLOAD, state=JobState.QUEUED
            )
    if earlier.completed_at is not None and earlier.object_key != object_key:
        await asyncio.to_thread(context.objects.delete, earlier.object_key)


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

    def __init__(self, context: AppContext, store: objects.DirectUploadStore) -> None:
        self._context = context
        self._store = store
        self._threads = ThreadPoolExecutor(_LOOKS_AT_ONCE + _MOVES_AT_ONCE, "direct-uploads")
        self._free_to_move = asyncio.Semaphore(_MOVES_AT_ONCE)
        self._moving: set[asyncio.Task[None]] = set()

    async def look(self) -> None:
        """Look for the files that are due; an unavailable store is retried later."""
        awaited = await self._context.database.write(
            uploads.lease_awaited_uploads, limit=_LOOKS_A_ROUND
        )
        for start in range(0, len(awaited), _LOOKS_AT_ONCE):
            some = awaited[start : start + _LOOKS_AT_ONCE]
            try:
                found = await asyncio.gather(*map(self._find, some))
            except objects.ObjectStoreUnavailableError as error:
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

    async def _find(self, item: uploads.AwaitedUpload) -> objects.DirectUpload | None:
        key = direct_key(item.job_id, item.slot)
        return await self._in_thread(lambda: self._store.find_direct_upload(key))

    async def _accept(self, item: uploads.AwaitedUpload, upload: objects.DirectUpload) -> None:
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
                    # Each version of it is moved elsewhere.
                    mark = hashlib.sha256(upload.version.encode()).hexdigest()[:16]
                    target = f"{uploads.source_prefix(item.job_id)}/arrived/{item.slot}-{mark}"
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

    async def _hold(
        self, item: uploads.AwaitedUpload, lease: timedelta
    ) -> uploads.AwaitedUpload | None:
        return await self._context.database.write(uploads.extend_awaited_upload, item, lease=lease)

    async def _refuse(self, item: uploads.AwaitedUpload, upload: objects.DirectUpload) -> None:
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
