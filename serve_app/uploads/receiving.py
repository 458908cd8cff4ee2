"""Request bodies into the store in bounded memory, and the PUT of a whole file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import queue
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.api import downloads
from serve_app.api.downloads import LEAST_BYTES_A_SECOND, ClientPace
from serve_app.api.envelope import Context, context_of, success
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError, ExpiredSignatureError
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.observability.metrics import NULL_METRICS, UPLOADS_UNDER_WAY, Metrics
from serve_app.settings import Settings
from serve_app.uploads.access import (
    UPLOAD_PURPOSE,
    Slot,
    empty_file,
    open_slot,
    record_complete,
    require_awaiting,
    require_room,
    resumable_key,
    too_large,
    unauthorized,
)
from serve_app.uploads.leases import BEAT_SECONDS
from storage import uploads
from storage.database import UNAVAILABLE

_PIECES_WAITING = 2
"""One is being written while the next comes in; more would only hide a slow disk."""

_PIECE_BYTES = 1024 * 1024
"""Written in pieces of this size: large enough for the disk, small enough for many at once."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

log = logging.getLogger("vas.uploads")

_RECORD_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)

_RANGE = re.compile(r"bytes 0-(?P<last>\d{1,18})/(?P<whole>\d{1,18})", re.IGNORECASE)


class AbortedError(Exception):
    """Raised inside the store's block to end it without an object."""


class PieceWriter:
    """Writes pieces to a stream of the store, in a thread that opens and closes it.

    Everything that may wait for the disk happens there, the final fsync included; the loop waits
    only where the disk is slower than the network. ``observe`` is called with each piece written.
    """

    def __init__(
        self,
        block: AbstractContextManager[BinaryIO],
        threads: Executor,
        observe: Callable[[bytes], None] | None,
    ) -> None:
        self._block = block
        self._observe = observe
        self._is_open = False
        self._pieces: queue.SimpleQueue[bytes | AbortedError | None] = queue.SimpleQueue()
        self._waiting = 0
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.run_in_executor(threads, self._run)
        self._done.add_done_callback(lambda _: self._news.set())

    @classmethod
    async def open(
        cls,
        block: AbstractContextManager[BinaryIO],
        threads: Executor,
        *,
        observe: Callable[[bytes], None] | None = None,
    ) -> PieceWriter:
        """Enter the store's block; raises what the store raises there."""
        writer = cls(block, threads, observe)
        try:
            while not writer._is_open and not writer._done.done():
                await writer._changed()
        except asyncio.CancelledError:
            await writer.abort()
            raise
        if writer._done.done():
            writer._done.result()
        return writer

    async def put(self, piece: bytes) -> None:
        """Queue a piece; raises what writing an earlier one raised."""
        while self._waiting >= _PIECES_WAITING and not self._done.done():
            await self._changed()
        if self._done.done():
            self._done.result()
        self.put_now(piece)

    def put_now(self, piece: bytes) -> None:
        """Queue a last or a small piece without waiting for room."""
        self._waiting += 1
        self._pieces.put(piece)

    async def _changed(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def close(self) -> None:
        """Wait until all is written and the store's block has ended; raises what went wrong."""
        self._pieces.put(None)
        await self._ended()
        self._done.result()

    async def abort(self) -> None:
        """Leave the store's block with an exception; earlier errors in it are dropped."""
        self._pieces.put(AbortedError())
        await self._ended()
        self._done.exception()

    async def _ended(self) -> None:
        # The thread uses the stream: wait for its end even when cancelled.
        cancelled = None
        while not self._done.done():
            try:
                await asyncio.wait([self._done])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _run(self) -> None:
        try:
            with self._block as stream:
                self._loop.call_soon_threadsafe(self._opened)
                while (piece := self._pieces.get()) is not None:
                    if isinstance(piece, AbortedError):
                        raise piece
                    stream.write(piece)
                    stream.flush()
                    if self._observe is not None:
                        self._observe(piece)
                    self._loop.call_soon_threadsafe(self._one_written)
        except AbortedError:
            return

    def _opened(self) -> None:
        self._is_open = True
        self._news.set()

    def _one_written(self) -> None:
        self._waiting -= 1
        self._news.set()


@dataclass(frozen=True, slots=True)
class Rules:
    """How one body is taken.

    ``keep_parts``: what arrived stays where the body broke off or the upload
    was ended; otherwise the store keeps all of it or nothing.
    """

    max_bytes: int
    too_large: Callable[[], ApiError]
    keep_parts: bool = False

    def check(self, received_bytes: int) -> None:
        """Raises what ``too_large`` makes."""
        if received_bytes > self.max_bytes:
            raise self.too_large()


async def receive(
    request: Request, writer: PieceWriter, rules: Rules, heartbeat: UploadHeartbeat
) -> int:
    """Write the body, and end the store's block; return how many bytes it had.

    Raises ClientDisconnect, ``rules.too_large``, what ``heartbeat`` and the store
    raise; 408 for a client that is slower than the least rate; SERVICE_UNAVAILABLE
    where the store is full.
    """
    try:
        received = await _read(request, writer, rules, heartbeat)
        async with heartbeat_running(heartbeat, finishing=True):
            await writer.close()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "There is no room for the file.") from error
    return received


async def _read(
    request: Request, writer: PieceWriter, rules: Rules, heartbeat: UploadHeartbeat
) -> int:
    """Queue the body's pieces; where that fails the store's block has ended too."""
    pending: list[bytes] = []
    """Chunks that do not make a piece yet."""

    def hand_over() -> None:
        """Write what there is, though it is small: no more may follow."""
        if any(pending):
            writer.put_now(b"".join(pending))
            pending.clear()

    if rules.keep_parts:
        heartbeat.on_beat = hand_over
    received = 0
    pace, waiting_since = ClientPace(heartbeat.patience_seconds), time.monotonic()
    try:
        async with heartbeat_running(heartbeat):
            async for chunk in request.stream():
                received += len(chunk)
                rules.check(received)
                heartbeat.arrived()
                pace.count(len(chunk), time.monotonic() - waiting_since)
                _require_pace(pace)
                pending.append(chunk)
                if sum(map(len, pending)) >= _PIECE_BYTES:
                    await heartbeat.check()
                    piece = b"".join(pending)
                    pending.clear()
                    await writer.put(piece)
                waiting_since = time.monotonic()  # without the time that the disk takes
    except BaseException:
        if rules.keep_parts and not heartbeat.lost:
            hand_over()
        await (writer.close() if rules.keep_parts else writer.abort())
        raise
    request.state.body_read = True
    hand_over()
    return received


def _require_pace(pace: ClientPace) -> None:
    if pace.left_seconds < 0:
        message = f"The upload is slower than {LEAST_BYTES_A_SECOND // 1024} KiB a second."
        raise ApiError(ErrorCode.INVALID_REQUEST, message, status=408)


async def put_upload(
    request: Request,
    context: Context,
    job_id: str,
    slot: str,
    expires: str = "",
    signature: str = "",
) -> Response:
    """Take one file of a job. A second complete PUT replaces the first until the job is queued."""
    limiter = upload_limiter(request)
    request.state.answer_headers = ANY_ORIGIN
    with closing_unread(request):
        try:
            check_signature(request, expires, signature)
        except ExpiredSignatureError:
            raise unauthorized() from None
        found = await open_slot(context, job_id, slot)
        require_awaiting(found.job)
        _require_whole_file(request.headers.get("content-range"))
        await _check_declared_size(context, found, content_length(request))
        with limiter.enter(found.job.account_id):
            received = await take(request, context, limiter, found)
    data = {"jobId": str(found.job.id), "receivedBytes": received}
    return success(data, headers=ANY_ORIGIN)


def _require_whole_file(content_range: str | None) -> None:
    """A part of a file must not pass for the file (RFC 9110, section 14.5)."""
    if content_range is None:
        return
    found = _RANGE.fullmatch(content_range.strip())
    if found is None or int(found["last"]) + 1 != int(found["whole"]):
        message = "A PUT takes the whole file; parts go to resumableUploadUrl."
        raise invalid(message)


async def _check_declared_size(context: AppContext, slot: Slot, declared: int | None) -> None:
    """Refuse before a byte is read what cannot succeed."""
    if declared is None:
        return
    if declared > slot.limit_bytes:
        raise too_large(slot)
    _require_promised_size(slot, declared)
    await require_room(context, declared)


def _require_promised_size(slot: Slot, size_bytes: int) -> None:
    """Raises INVALID_REQUEST for an empty file, or another size than at the job's creation."""
    if size_bytes == 0:
        raise empty_file()
    promised = slot.upload.declared_bytes
    if promised is not None and size_bytes != promised:
        message = f"The file has {size_bytes} bytes; the job was created for one of {promised}."
        raise invalid(message, "fileSizeBytes")


async def take(request: Request, context: AppContext, limiter: UploadLimiter, slot: Slot) -> int:
    """Store the body as the job's file; return how many bytes it had."""
    received, key = await keep(request, context, limiter, slot)
    try:
        await _record(context, slot, received, key)
    except ApiError:
        await asyncio.to_thread(context.objects.delete, key)
        raise
    return received


async def keep(
    request: Request, context: AppContext, limiter: UploadLimiter, slot: Slot
) -> tuple[int, str]:
    """Store the body beside the job's other files, and return how many bytes it had and its key;
    it becomes the job's file once it is recorded."""
    # A key of its own: a PUT that loses a race has not touched the other's file.
    key = f"{resumable_key(slot.job.id, slot.upload.slot)}-{uuid.uuid4().hex}"
    try:
        arrives = functools.partial(_keep_arriving, context, slot)
        if not await arrives(True):
            require_awaiting((await open_slot(context, str(slot.job.id), slot.upload.slot)).job)
        limit = slot.limit_bytes
        if slot.upload.declared_bytes is not None:
            limit = min(limit, slot.upload.declared_bytes)
        rules = Rules(limit, functools.partial(_over, slot, limit))
        writer = await PieceWriter.open(context.objects.writer(key), limiter.threads)
        heartbeat = UploadHeartbeat(arrives, context.settings, exclusive=False)
        received = await receive(request, writer, rules, heartbeat)
        _require_promised_size(slot, received)
    except ApiError:
        await asyncio.to_thread(context.objects.delete, key)
        raise
    except ClientDisconnect:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The upload broke off.") from None
    return received, key


async def _record(context: AppContext, slot: Slot, received: int, key: str) -> None:
    """Record the file; a database that is away for a moment must not cost all that was sent."""
    for pause_seconds in _RECORD_PAUSES_SECONDS:
        try:
            await record_complete(context, slot.job.id, slot.upload.slot, received, key)
        except UNAVAILABLE as error:
            log.warning("job %s: its file is there, recording waits: %s", slot.job.id, error)
            await asyncio.sleep(pause_seconds)
        else:
            return
    await record_complete(context, slot.job.id, slot.upload.slot, received, key)


def _over(slot: Slot, limit_bytes: int) -> ApiError:
    if limit_bytes == slot.limit_bytes:
        return too_large(slot)
    message = f"The file has more than the {limit_bytes} bytes that the job was created for."
    return invalid(message, "fileSizeBytes")


async def _keep_arriving(context: AppContext, slot: Slot, arriving: bool) -> bool:
    lease = timedelta(seconds=context.settings.upload_lease_seconds)
    return await context.database.read(
        uploads.keep_arriving, slot.job.id, slot.upload.slot, lease=lease, arriving=arriving
    )


_EXPOSED = (
    "Location, Retry-After, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, "
    "Tus-Version, Upload-Defer-Length, Upload-Expires, Upload-Length, Upload-Offset, X-Request-Id"
)

_SENT = (
    "Content-Type, Tus-Resumable, Upload-Checksum, Upload-Length, Upload-Offset, "
    "X-HTTP-Method-Override, X-Request-Id, X-Requested-With"
)

ANY_ORIGIN = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED}
"""On every answer of an upload's address."""

_DISCARDED_BYTES = 64 * 1024
"""The rest of so small a body is read and dropped; for a larger one the connection is closed."""


def preflight(methods: str) -> dict[str, str]:
    """Return the answer to a browser's preflight request."""
    return ANY_ORIGIN | {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": "86400",
    }


async def put_options(request: Request) -> Response:
    """Return the preflight of a plain PUT."""
    return Response(status_code=204, headers=preflight("PUT, OPTIONS") | {"Allow": "PUT, OPTIONS"})


def check_signature(request: Request, expires: str, signature: str) -> None:
    """Raises UNAUTHORIZED; ExpiredSignatureError for an address whose time is over."""
    # The path that was routed by, not one put together from it and the Host header.
    path, signer = request.scope["path"], context_of(request).signer
    try:
        signer.check_path(UPLOAD_PURPOSE, path, expires=expires, signature=signature)
    except ExpiredSignatureError:
        raise
    except BadSignatureError:
        raise unauthorized() from None


def content_length(request: Request) -> int | None:
    """Return the length that the body declares; None for one that comes in chunks."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdigit() else None


@contextlib.contextmanager
def closing_unread(request: Request) -> Iterator[None]:
    """A refusal closes the connection if more than _DISCARDED_BYTES of the body may follow."""
    try:
        yield
    except ApiError as error:
        read = getattr(request.state, "body_read", False)
        length = content_length(request)
        chunked = "transfer-encoding" in request.headers
        if not read and (chunked or (length or 0) > _DISCARDED_BYTES):
            error.headers.setdefault("Connection", "close")
        raise


_TRUSTED_SHARE = 0.5
"""Nothing is written on a lease renewed longer ago: the rest of it is left for the disk."""

Keep = Callable[[bool], Awaitable[bool]]
"""Renew the upload's lease (true: bytes came); false once the upload must end."""


class UploadLimiter:
    """At most ``limit`` uploads at once in this process, half of them of one account; more get 503.

    Each upload writes from a thread of its own (``threads``), so that a slow disk delays no other.
    """

    def __init__(self, limit: int, metrics: Metrics = NULL_METRICS) -> None:
        self._limit = limit
        self._held = Counter[uuid.UUID]()
        self._metrics = metrics
        self.threads = ThreadPoolExecutor(limit, thread_name_prefix="upload")

    @contextlib.contextmanager
    def enter(self, account_id: uuid.UUID) -> Iterator[None]:
        """Hold a place for the block; raises SERVICE_UNAVAILABLE where the account or all have
        none."""
        if self._held[account_id] >= max(1, self._limit // 2):
            message = "Too many uploads of this account are running."
            raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, message)
        if self._held.total() >= self._limit:
            raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "Too many uploads are running.")
        self._held[account_id] += 1
        try:
            yield
        finally:
            self._held[account_id] -= 1
            if not self._held[account_id]:
                del self._held[account_id]

    async def report(self) -> None:
        """Record how many uploads are under way. Ray drops a gauge once it is exported."""
        self._metrics.record(UPLOADS_UNDER_WAY, self._held.total(), {})


def upload_limiter(request: Request) -> UploadLimiter:
    """This process's limiter."""
    limiter: UploadLimiter = request.app.state.upload_limiter
    return limiter


class UploadHeartbeat:
    """The heartbeat of one upload, run by ``heartbeat_running``.

    ``reason`` is why the upload must end, once it must; ``lost`` whether others may write now;
    ``patience_seconds`` how far it may fall behind the least rate.
    ``on_beat`` is called after each successful beat.
    """

    def __init__(self, keep: Keep, settings: Settings, *, exclusive: bool = True) -> None:
        """``exclusive``: others may write to the same place once the lease is over."""
        self._keep = keep
        self._exclusive = exclusive
        self._idle_seconds = settings.upload_idle_seconds
        self.patience_seconds = max(downloads.PATIENCE_SECONDS, self._idle_seconds)
        self._trusted_seconds = settings.upload_lease_seconds * _TRUSTED_SHARE
        self._kept_at = self._arrived_at = time.monotonic()
        self._arrived = False
        self.reason: ApiError | None = None
        self.lost = False
        self.on_beat: Callable[[], None] = lambda: None

    def arrived(self) -> None:
        """Bytes came."""
        self._arrived = True

    async def check(self) -> None:
        """Call before writing; raises ApiError where the upload must end."""
        if time.monotonic() - self._kept_at > self._trusted_seconds:
            try:
                await self._beat()
            except UNAVAILABLE:
                if self._exclusive:
                    raise
        if self.reason is not None:
            raise self.reason

    async def run(self, limit: asyncio.Timeout, *, finishing: bool = False) -> None:
        """Beat until cancelled; let ``limit`` expire where the upload must end."""
        while self.reason is None:
            await asyncio.sleep(BEAT_SECONDS)
            self._arrived |= finishing
            try:
                await self._beat()
            except UNAVAILABLE as error:
                # The next beat may get through; ``check`` guards what is written until then.
                log.warning("an upload's heartbeat failed: %s", error)
                continue
            if self.reason is None:
                self.on_beat()
        limit.reschedule(asyncio.get_running_loop().time())

    async def _beat(self) -> None:
        now, arrived = time.monotonic(), self._arrived
        self._arrived = False
        if arrived:
            self._arrived_at = now
        if not await self._keep(arrived):
            self.lost = True
            message = (
                "The upload was ended: its job takes no upload any more, or another request has "
                "taken over."
            )
            self.reason = ApiError(ErrorCode.INVALID_REQUEST, message, status=409)
        elif now - self._arrived_at > self._idle_seconds:
            message = f"Nothing arrived for {self._idle_seconds:g} seconds."
            self.reason = ApiError(ErrorCode.INVALID_REQUEST, message, status=408)
        else:
            self._kept_at = now


@contextlib.asynccontextmanager
async def heartbeat_running(
    heartbeat: UploadHeartbeat, *, finishing: bool = False
) -> AsyncIterator[None]:
    """Run the heartbeat during the block, which gets ApiError once the upload must end.

    ``finishing``: no more bytes are expected, the disk is at work.
    """
    try:
        async with asyncio.timeout(None) as limit:
            beating = asyncio.create_task(heartbeat.run(limit, finishing=finishing))
            try:
                yield
            finally:
                beating.cancel()
                await asyncio.wait([beating])
                if not beating.cancelled():
                    beating.result()
    except TimeoutError:
        if heartbeat.reason is None:
            raise
        raise heartbeat.reason from None
