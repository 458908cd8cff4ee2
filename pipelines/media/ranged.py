"""A file whose bytes are fetched as they are read. Runs in the confined child process.

The child has no network: it names the bytes that it needs in an event, and its parent puts them
into the file before it answers (``storage.objects.RangedCopy``).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 256 << 10
MOST_FETCHED_BYTES = 16 * _BLOCK_BYTES
"""At once, where a file is read from one place on; each fetch is a request to the bucket."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """The event: these bytes are needed, from ``first`` up to, not including, ``end``."""

    first: int
    end: int


class RangedFile(io.RawIOBase):
    """The file at ``path``; ``emit`` sends a Fetch and waits until the bytes are there."""

    def __init__(self, path: Path, emit: Callable[[object], None]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._descriptor).st_size
        self._emit = emit
        self._at = 0
        self._fetched: set[int] = set()
        self._run_blocks = 1

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        for block in range(self._at // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            if block not in self._fetched:
                self._fetch(block)
        data = os.pread(self._descriptor, max(0, end - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, block: int) -> None:
        goes_on = block - 1 in self._fetched
        self._run_blocks = (
            min(MOST_FETCHED_BYTES // _BLOCK_BYTES, self._run_blocks * 2) if goes_on else 1
        )
        run = range(block, block + self._run_blocks)
        end = min(run.stop * _BLOCK_BYTES, self._size)
        self._emit(Fetch(block * _BLOCK_BYTES, end))
        self._fetched |= {*run}

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
