"""Temporary files and folders: gone after use, and after a killed user too.

Each is locked (flock) by its user, and the system releases the lock with the process: so the next
user finds what a killed process left. They are as large as media files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

Made = TypeVar("Made")

_ABANDONED_SECONDS = 60
"""Between the making of a file and its lock lie microseconds, not this."""

_TRIES = 100
"""The shared folder may be removed, empty, before something was made in it: then once more."""

_LOCK = "lock"
"""In a folder, beside what its user sees."""


@contextlib.contextmanager
def temporary_file() -> Iterator[tuple[Path, BinaryIO]]:
    """A file of this block's own, empty and open for writing; removed when the block ends."""
    descriptor, name = _in_shared_folder(lambda above: tempfile.mkstemp("", "object-", above))
    path = Path(name)
    with os.fdopen(descriptor, "wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield path, stream
        finally:
            path.unlink(missing_ok=True)
            _remove_if_empty(path.parent)


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder of this block's own, empty; removed when the block ends. None: the system's."""

    def made(above: Path) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=prefix, dir=above)

    if parent is None:
        own = _in_shared_folder(made)
    else:
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent)
        own = made(parent)
    try:
        with own as name, (Path(name) / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            folder = Path(name).resolve() / "work"
            folder.mkdir()
            yield folder
    finally:
        if parent is None:
            _remove_if_empty(Path(own.name).parent)


def _in_shared_folder(make: Callable[[Path], Made]) -> Made:
    """Return what ``make`` makes in the user's folder; the last to leave it removes the folder."""
    for attempt in range(1, _TRIES + 1):
        try:
            folder = user_folder(Path(tempfile.gettempdir()), "vas-objects")
            remove_abandoned(folder)
            return make(folder)
        # It goes while it is used, or in the middle of ``mkdir``, which then fails.
        except (FileNotFoundError, FileExistsError):
            if attempt == _TRIES:
                raise
    raise AssertionError


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # others are in it, or have removed it
        folder.rmdir()


def user_folder(parent: Path, name: str) -> Path:
    """Return one a user, so that no other user can put files where ours are expected."""
    folder = parent / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def is_at(stream: BinaryIO, path: Path) -> bool:
    """Return whether the open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_abandoned(folder: Path) -> None:
    """Remove what is not in use any more, as its lock shows; all else stays."""
    for path in folder.iterdir():
        locked = path / _LOCK if path.is_dir() else path
        # A file vanishes while we look where its user is done with it.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), locked.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - locked.stat().st_mtime > _ABANDONED_SECONDS:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
