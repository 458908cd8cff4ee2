"""Temporary files for objects that lie elsewhere: gone after use, and after a killed user too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_ABANDONED_SECONDS = 60
"""Between the making of a file and its lock lie microseconds, not this."""


@contextlib.contextmanager
def temporary_file() -> Iterator[tuple[Path, BinaryIO]]:
    """A file of this block's own, empty and open for writing; removed when the block ends.

    An advisory lock on it, which the system drops with its process, tells the
    next user of the folder which files a killed process left.
    """
    folder = _folder()
    _remove_abandoned(folder)
    descriptor, name = tempfile.mkstemp(prefix="object-", dir=folder)
    path = Path(name)
    with os.fdopen(descriptor, "wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield path, stream
        finally:
            path.unlink(missing_ok=True)


def _folder() -> Path:
    """One a user, so that nobody else can put files where ours are expected."""
    folder = Path(tempfile.gettempdir()) / f"vas-objects-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _remove_abandoned(folder: Path) -> None:
    for path in folder.iterdir():
        # A file vanishes while we look where its user is done with it.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
