"""Copies of a bucket's objects on a node's disk, so that their bytes reach the node once.

All processes of a node share them. A copy is named by its object and the object's ETag, so that one
that was replaced in the bucket is not found; it appears complete or not at all. Whoever uses a copy
holds a shared lock (flock) on it, which the system releases with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from storage.objects.local_files import is_at, remove_abandoned, user_folder

LEAST_BYTES = 64 * 1024
"""Smaller objects cost a request either way, and would be many files."""
_UNUSED_SECONDS = 3600
"""A copy that nobody has used for so long goes with the next one to come: it may be of an object
that has been erased."""


@dataclass(frozen=True, slots=True)
class NodeCache:
    """The least recently used copies go where all take more than ``most_bytes``. Picklable.

    Copies in use are not counted out: a reader's file stays until it is done with it.
    """

    most_bytes: int
    folder: Path | None = None
    """None for one of the user's in the system's folder for temporary files."""

    @contextlib.contextmanager
    def copy(self, name: str, fill: Callable[[BinaryIO], None]) -> Iterator[Path]:
        """The copy called ``name`` as a file to read; ``fill`` writes it where there is none."""
        with contextlib.ExitStack() as used:
            path = used.enter_context(self._found(name))
            if path is None:
                path, stream = used.enter_context(self.incoming())
                fill(stream)
                self.keep(name, path, stream)
            yield path

    @contextlib.contextmanager
    def incoming(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A file for a copy, empty and open for writing; gone when the block ends."""
        folder = self._folder() / "incoming"
        folder.mkdir(exist_ok=True)
        remove_abandoned(folder)
        path = folder / uuid.uuid4().hex
        with path.open("xb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH)
                yield path, stream
            finally:
                path.unlink(missing_ok=True)

    def keep(self, name: str, path: Path, stream: IO[bytes]) -> None:
        """Make the complete file at ``path`` the copy called ``name``; one that is there stays."""
        stream.flush()
        with contextlib.suppress(FileExistsError):
            os.link(path, self._path(name))
        self._remove_unused()

    @contextlib.contextmanager
    def _found(self, name: str) -> Iterator[Path | None]:
        path = self._path(name)
        with contextlib.ExitStack() as used:
            found = None
            with contextlib.suppress(FileNotFoundError):
                stream = used.enter_context(path.open("rb"))
                fcntl.flock(stream, fcntl.LOCK_SH)
                # Another process may have removed it between the opening and the lock.
                if is_at(stream, path):
                    os.utime(stream.fileno())
                    found = path
            yield found

    def _folder(self) -> Path:
        return user_folder(self.folder or Path(tempfile.gettempdir()), "vas-node-cache")

    def _path(self, name: str) -> Path:
        return self._folder() / hashlib.sha256(name.encode()).hexdigest()

    def _remove_unused(self) -> None:
        """Remove copies that nobody uses now: the old, and of the others the least recently used,
        until the rest fits."""
        known = []
        with os.scandir(self._folder()) as entries:
            for each in entries:
                with contextlib.suppress(FileNotFoundError):  # another process removes them, too
                    if each.is_file():
                        known.append((each.stat(), Path(each.path)))
        known.sort(key=lambda each: each[0].st_mtime)
        total = sum(stat.st_size for stat, _ in known)
        oldest = time.time() - _UNUSED_SECONDS
        for stat, path in known:
            if total <= self.most_bytes and stat.st_mtime >= oldest:
                break
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(stream, path):
                    path.unlink()
                    total -= stat.st_size
