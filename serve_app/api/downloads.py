"""Answers that hold something while a client reads them: how many at once, whose turn, how slowly.

A clip is a file on disk, a table of results lies in memory, and both take work before the first
byte. So each kind of download has places in a process, of which one account gets a share, and
workers that accounts take in turns. A place is held from the request on until the last byte is
sent, the client is gone, or it reads more slowly than ``LEAST_BYTES_A_SECOND``, as every client of
whatever answer must not.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.authentication import CurrentAccount
from serve_app.errors import ApiError, ErrorCode, invalid

log = logging.getLogger("vas.http")

Prepared = TypeVar("Prepared")

LEAST_BYTES_A_SECOND = 16 * 1024
PATIENCE_SECONDS = 60.0
"""How long a client may lag behind the least rate: buffers on the way to it are emptied by bursts,
and a player that has enough for now comes back with a new range."""
_PIECE_BYTES = 256 * 1024
LARGE_CHARACTERS = 256 * 1024
"""Results that are stored in as many take long to be prepared; those of most jobs are shorter."""
_CHARACTERS_A_BYTE = 4
"""As results are compressed in the database, at least."""
_RETRY_AFTER_SECONDS = 5


class Download(StrEnum):
    """What is held."""

    CLIP = "clip"
    MEDIA = "media"
    FILE = "file"
    EVENTS = "events"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Limit:
    """Of one kind of download in a process; ``workers`` prepare answers, the others wait."""

    account: int
    replica: int
    workers: int


LIMITS: dict[Download, Limit] = {
    # A file of up to ten minutes of the source each, cut by a process of its own.
    Download.CLIP: Limit(account=4, replica=16, workers=2),
    # A megabyte each; a page with a player has up to six connections.
    Download.MEDIA: Limit(account=16, replica=64, workers=1),
    # Some megabytes each, of results that take ten times that while they are written.
    Download.FILE: Limit(account=8, replica=24, workers=1),
    # A connection and a little memory each, for minutes; other requests need most of a replica's.
    Download.EVENTS: Limit(account=8, replica=64, workers=1),
    # A model writes each for seconds, in a thread.
    Download.ANSWER: Limit(account=2, replica=16, workers=1),
}


class Turns:
    """``at_once`` at a time; of those that wait, accounts come one after the other."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[uuid.UUID, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, account_id: uuid.UUID) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block."""
        if self._free:
            self._free -= 1
        else:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(account_id, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            account_id = next(iter(self._waiting))
            queue = self._waiting.pop(account_id)
            first = queue.popleft()
            if queue:  # behind all others
                self._waiting[account_id] = queue
            if not first.done():
                first.set_result(None)
                return
        self._free += 1


class Downloads:
    """The places of one kind of download in this process."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._held: Counter[uuid.UUID] = Counter()
        self.turns = Turns(limit.workers)

    @property
    def held(self) -> int:
        """Places that are taken."""
        return self._held.total()

    @contextmanager
    def place(self, account_id: uuid.UUID) -> Iterator[DownloadPlace]:
        """Hold a place for the block; raises RATE_LIMITED where the account or all have none."""
        if self._held[account_id] >= self._limit.account:
            raise _no_place(f"At most {self._limit.account} such answers of an account at once.")
        if self.held >= self._limit.replica:
            raise _no_place("Too many such answers at the moment.")
        self._held[account_id] += 1
        try:
            with ExitStack() as resources:
                yield DownloadPlace(self, account_id, resources)
        finally:
            self._held[account_id] -= 1
            if not self._held[account_id]:
                del self._held[account_id]


def _no_place(message: str) -> ApiError:
    headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
    return ApiError(ErrorCode.RATE_LIMITED, message, headers=headers)


@dataclass(frozen=True, slots=True)
class DownloadPlace:
    """An account's place; ``resources`` are closed when the answer has ended, however it did."""

    downloads: Downloads
    account_id: uuid.UUID
    resources: ExitStack

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """The account's turn to have its answer prepared; not for a client that is gone."""
        async with self.downloads.turns.turn(self.account_id):
            if await request.is_disconnected():
                raise ApiError(ErrorCode.INVALID_REQUEST, "The client is gone.", status=499)
            yield

    def stream(
        self,
        body: AsyncGenerator[str | bytes],
        *,
        media_type: str,
        headers: dict[str, str],
        status: int = 200,
    ) -> Response:
        """Return an answer that is made while it is sent. ``body`` may hold nothing of all accounts
        while it yields, such as a connection of the database: a client may not read on."""
        return _Stream(body, status, headers=headers, media_type=media_type)


class _Stream(StreamingResponse):
    body_iterator: AsyncGenerator[str | bytes]

    async def stream_response(self, send: Send) -> None:
        # Without an explicit end, a generator whose client is gone is closed by the garbage
        # collector: the error's traceback refers to it in a cycle, and minutes may pass.
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


def new_downloads() -> dict[Download, Downloads]:
    """Return the places of a process, kept as ``app.state.downloads``."""
    return {kind: Downloads(limit) for kind, limit in LIMITS.items()}


def downloads_of(request: Request, kind: Download) -> Downloads:
    """This process's places of a kind."""
    found: dict[Download, Downloads] = request.app.state.downloads
    return found[kind]


def _place(kind: Download) -> Any:
    async def held(request: Request, account_id: CurrentAccount) -> AsyncIterator[DownloadPlace]:
        with downloads_of(request, kind).place(account_id) as place:
            yield place

    return Depends(held)


@asynccontextmanager
async def turn_if_large(
    request: Request, account_id: uuid.UUID, stored_bytes: int
) -> AsyncIterator[None]:
    """The account's turn to work on results that take so many bytes in the database, for what is
    no download: it waits, and is not refused."""
    if stored_bytes * _CHARACTERS_A_BYTE < LARGE_CHARACTERS:
        yield
        return
    async with downloads_of(request, Download.FILE).turns.turn(account_id):
        yield


@dataclass(frozen=True, slots=True)
class ResultAnswer:
    """An answer with results. Where these are large it has a place among files, and is prepared in
    the account's turn: small ones are polled, and wait for no large one."""

    request: Request
    account_id: uuid.UUID
    resources: ExitStack

    async def prepared(self, characters: int, prepare: Callable[[], Prepared]) -> Prepared:
        """Return what ``prepare`` returns, in a thread, of stored results of so many
        ``characters``.

        Raises RATE_LIMITED where there is no place.
        """
        async with self._turn(characters):
            return await run_in_threadpool(prepare)

    def turn(self, stored_bytes: int) -> AbstractAsyncContextManager[None]:
        """The account's turn to have results read and prepared that take so many bytes in the
        database: what is refused must not have been read.

        Raises RATE_LIMITED where there is no place.
        """
        return self._turn(stored_bytes * _CHARACTERS_A_BYTE)

    @asynccontextmanager
    async def _turn(self, characters: int) -> AsyncIterator[None]:
        if characters < LARGE_CHARACTERS:
            yield
            return
        files = downloads_of(self.request, Download.FILE)
        place = self.resources.enter_context(files.place(self.account_id))
        async with place.turn(self.request):
            yield


async def _result_answer(
    request: Request, account_id: CurrentAccount
) -> AsyncIterator[ResultAnswer]:
    with ExitStack() as resources:
        yield ResultAnswer(request, account_id, resources)


# FastAPI ends these once the answer is sent, or its client is gone.
ClipPlace = Annotated[DownloadPlace, _place(Download.CLIP)]
FilePlace = Annotated[DownloadPlace, _place(Download.FILE)]
LargeResults = Annotated[ResultAnswer, Depends(_result_answer)]
EventsPlace = Annotated[DownloadPlace, _place(Download.EVENTS)]
AskPlace = Annotated[DownloadPlace, _place(Download.ANSWER)]


class ClientPace:
    """How many seconds a client may still fall behind the least rate, of ``patience_seconds``."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = self.left_seconds = patience_seconds

    def count(self, size_bytes: int, waited_seconds: float) -> None:
        """The client took or sent so much while the service waited for it for so long."""
        left_seconds = self.left_seconds + size_bytes / LEAST_BYTES_A_SECOND - waited_seconds
        self.left_seconds = min(self._patience_seconds, left_seconds)


class _SlowReaderError(Exception):
    """The client reads too slowly."""


class PacingMiddleware:
    """Ends answers whose clients read more slowly than the least rate.

    Long bodies are passed on in pieces, each of which the server takes once the client has read
    most of what came before.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        time = asyncio.get_running_loop().time
        pace, is_long = ClientPace(PATIENCE_SECONDS), False

        async def send_piece(message: Message, piece: bytes) -> None:
            begun = time()
            try:
                async with asyncio.timeout(pace.left_seconds):
                    await send(message)
            except TimeoutError:
                raise _SlowReaderError from None
            pace.count(len(piece), time() - begun)

        async def send_paced(message: Message) -> None:
            nonlocal is_long
            body, more = message.get("body", b""), message.get("more_body", False)
            is_long = is_long or more or len(body) > _PIECE_BYTES
            if not is_long:
                await send(message)
                return
            for start in range(0, max(1, len(body)), _PIECE_BYTES):
                piece = body[start : start + _PIECE_BYTES]
                more_follows = more or start + _PIECE_BYTES < len(body)
                await send_piece({**message, "body": piece, "more_body": more_follows}, piece)

        try:
            await self.app(scope, receive, send_paced)
        except _SlowReaderError:
            # Without its end the server closes the connection.
            log.info("an answer was ended: its client reads too slowly")


_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


@dataclass(frozen=True, slots=True)
class RangedContent:
    """Bytes to read: ``read(first, count)`` runs in a thread, for at most ``block_bytes``."""

    size_bytes: int
    media_type: str
    read: Callable[[int, int], bytes]
    block_bytes: int = 1 << 20


def ranged_response(
    request: Request,
    place: DownloadPlace,
    content: RangedContent,
    headers: dict[str, str],
    *,
    refuse_beyond: bool = True,
) -> Response:
    """Return all of it, or the part that ``Range`` requests.

    A range that begins beyond the end raises 416, or gets all too.
    """
    size = content.size_bytes
    found = _find_range(request.headers.get("range", ""), size)
    beyond = found is not None and found[0] >= size
    if beyond and refuse_beyond:
        error = invalid("The range lies beyond the end.")
        known = {"Content-Range": f"bytes */{size}"}
        raise ApiError(error.code, error.message, status=416, headers=known)
    if beyond:
        found = None
    first, end = found or (0, size)
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - first)}
    if found is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    body = _blocks(content, first, end if request.method == "GET" else first)
    status = 200 if found is None else 206
    return place.stream(body, media_type=content.media_type, headers=headers, status=status)


def _find_range(header: str, size: int) -> tuple[int, int] | None:
    """First byte and end; None for all, as for what is no single range of bytes."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        return max(0, size - int(found[2])), size
    first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    return None if last < first < size else (first, min(last + 1, size))


async def _blocks(content: RangedContent, first: int, end: int) -> AsyncGenerator[bytes]:
    for offset in range(first, end, content.block_bytes):
        yield await run_in_threadpool(content.read, offset, min(content.block_bytes, end - offset))
