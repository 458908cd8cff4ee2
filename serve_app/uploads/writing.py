"""From the event loop to the disk: a thread an upload, and at most two pieces between them."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import BinaryIO

_PIECES_WAITING = 2
"""One is being written while the next comes in; more would only hide a slow disk."""


class AbortedError(Exception):
    """Raised inside the store's block, so that it keeps nothing (or what it keeps)."""


class PieceWriter:
    """Writes pieces to a stream of the store, in a thread that opens and closes it.

    Everything that may wait for the disk happens there, the final fsync
    included; the loop hands pieces over and waits only where the disk is
    slower than the network. ``observe`` sees each piece after it is written.
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
        """Hand a piece over; raises what writing an earlier one raised."""
        while self._waiting >= _PIECES_WAITING and not self._done.done():
            await self._changed()
        if self._done.done():
            self._done.result()
        self.put_now(piece)

    def put_now(self, piece: bytes) -> None:
        """Hand a last or a small piece over without waiting for room."""
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
        """Leave the store's block with an exception; what went wrong there is no news any more."""
        self._pieces.put(AbortedError())
        await self._ended()
        self._done.exception()

    async def _ended(self) -> None:
        # The thread uses the stream: nobody may leave before it has, cancelled or not.
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
                self._write_all(stream)
        except AbortedError:
            return

    def _write_all(self, stream: BinaryIO) -> None:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, AbortedError):
                raise piece
            stream.write(piece)
            stream.flush()
            if self._observe is not None:
                self._observe(piece)
            self._loop.call_soon_threadsafe(self._one_written)

    def _opened(self) -> None:
        self._is_open = True
        self._news.set()

    def _one_written(self) -> None:
        self._waiting -= 1
        self._news.set()
