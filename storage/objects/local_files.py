"""Temporary files and folders: gone after use, and after a killed user too.

Each is locked (flock) by its user, which the system undoes with the process: that is how the
next one to come finds what a killed process left. What lies here is as large as footage.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_ABANDONED_SECONDS = 60
"""Between the making of a file and its lock lie microseconds, not this."""

_LOCK = "lock"
"""In a folder, beside what its user sees."""


@contextlib.contextmanager
def temporary_file() -> Iterator[tuple[Path, BinaryIO]]:
    """A file of this block's own, empty and open for writing; removed when the block ends."""
    folder = _folder()
    remove_abandoned(folder)
    descriptor, name = tempfile.mkstemp(prefix="object-", dir=folder)
    path = Path(name)
    with os.fdopen(descriptor, "wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield path, stream
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder of this block's own, empty; removed when the block ends. None: the system's."""
    above = _folder() if parent is None else parent
    above.mkdir(parents=True, exist_ok=True)
    remove_abandoned(above)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=above) as name,
        (Path(name) / _LOCK).open("wb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(name).resolve() / "work"
        folder.mkdir()
        yield folder


def _folder() -> Path:
    """One a user, so that nobody else can put files where ours are expected."""
    folder = Path(tempfile.gettempdir()) / f"vas-objects-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def remove_abandoned(folder: Path) -> None:
    """Remove what nobody uses any more; what is not ours to judge by its lock stays."""
    for path in folder.iterdir():
        locked = path / _LOCK if path.is_dir() else path
        # A file vanishes while we look where its user is done with it.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), locked.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - locked.stat().st_mtime > _ABANDONED_SECONDS:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
