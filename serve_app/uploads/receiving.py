"""A request's body into the store, in bounded memory."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from serve_app.errors import ApiError, ErrorCode
from serve_app.uploads.watch import Watch, watched
from serve_app.uploads.writing import PieceWriter

_PIECE_BYTES = 1024 * 1024
"""Written in pieces of this size: large enough for the disk, small enough for many at once."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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


async def receive(request: Request, writer: PieceWriter, rules: Rules, watch: Watch) -> int:
    """Write the body, and end the store's block; return how many bytes it had.

    Raises ClientDisconnect, ``rules.too_large``, what ``watch`` finds and what
    the store raises; SERVICE_UNAVAILABLE where the store is full.
    """
    try:
        received = await _read(request, writer, rules, watch)
        async with watched(watch, finishing=True):
            await writer.close()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        message = "There is no room for the file."
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, message) from error
    return received


async def _read(request: Request, writer: PieceWriter, rules: Rules, watch: Watch) -> int:
    """Hand the body over; where that fails the store's block has ended too."""
    intake = _Intake(writer)
    if rules.keep_parts:
        watch.on_beat = intake.hand_over
    received = 0
    try:
        async with watched(watch):
            async for chunk in request.stream():
                received += len(chunk)
                rules.check(received)
                watch.arrived()
                intake.add(chunk)
                if intake.size_bytes >= _PIECE_BYTES:
                    await watch.check()
                    await writer.put(intake.take())
    except BaseException:
        if rules.keep_parts and not watch.lost:
            intake.hand_over()
        await (writer.close() if rules.keep_parts else writer.abort())
        raise
    request.state.body_read = True
    intake.hand_over()
    return received


class _Intake:
    """What arrived and does not make a piece yet."""

    def __init__(self, writer: PieceWriter) -> None:
        self._writer = writer
        self._chunks: list[bytes] = []
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size_bytes += len(chunk)

    def take(self) -> bytes:
        piece = b"".join(self._chunks)
        self._chunks.clear()
        self.size_bytes = 0
        return piece

    def hand_over(self) -> None:
        """Have it written though it is small: nothing more may come for a while, or ever."""
        if self.size_bytes:
            self._writer.put_now(self.take())
