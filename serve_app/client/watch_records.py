"""What ``vas watch`` keeps beside a file: a folder with a record of its own, and results.

``clip.mp4.vas/job.json`` is how far ``clip.mp4`` is. The folder lies in one that others may write
to. So nothing is followed that is a symbolic link, and nothing is removed but files of the names
that are given here, in a folder that has such a record.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serve_app.client.api import ProcessingMode
from serve_app.client.export import PARTIAL_NAMES, RESULT_NAMES, write_atomically

FOLDER_ENDING = ".vas"
STATE_NAME = "job.json"
ERROR_NAME = "error.json"
"""Of the folder beside a file, and of what lies in it besides the results."""

_OWN_NAMES = rf"{re.escape(STATE_NAME)}|{re.escape(ERROR_NAME)}|{RESULT_NAMES}"
_OWN = re.compile(f"{_OWN_NAMES}|{PARTIAL_NAMES.format(names=_OWN_NAMES)}")
_PARTIAL_RECORD = re.compile(PARTIAL_NAMES.format(names=re.escape(STATE_NAME)))
_KEY_BEGINNING = "vas-watch-"

_OF_ANOTHER_KIND = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EINVAL})
"""Errors of opening a link, or a file for a folder, or what is no file."""


class ForeignResultsError(Exception):
    """What lies in the place of a file's results was not made by this program."""


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies one content of a path: two files of the same name differ in it."""

    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Version:
        """Raises OSError."""
        return cls.found(path.lstat())

    @classmethod
    def found(cls, status: os.stat_result) -> Version:
        """Of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """How far a file is: the content of its ``job.json``."""

    version: Version
    mode: ProcessingMode
    idempotency_key: str = field(default_factory=lambda: f"{_KEY_BEGINNING}{uuid.uuid4()}")
    attempt: int = 1
    job_id: str | None = None
    state: str | None = None
    """``completed`` or ``failed`` once all is done and written."""

    @classmethod
    def read(cls, folder: Path) -> WatchRecord | None:
        """None where there is none; raises ForeignResultsError for what is no record."""
        try:
            with opened(folder / STATE_NAME, os.O_RDONLY) as file:
                stored = json.loads(file.read_bytes())
            record = cls(**stored | {"version": Version(**stored["version"])})
            own = record.idempotency_key.startswith(_KEY_BEGINNING)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ForeignResultsError(str(folder)) from error
        except OSError as error:
            if error.errno not in _OF_ANOTHER_KIND:
                raise
            raise ForeignResultsError(str(folder)) from error
        if not own:
            raise ForeignResultsError(str(folder))
        return record

    def write(self, folder: Path) -> WatchRecord:
        write_atomically(folder / STATE_NAME, f"{json.dumps(asdict(self), indent=1)}\n".encode())
        return self


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[Path]:
    """A path to what lies at ``path`` now, whatever will be put there meanwhile.

    Raises OSError, also for a symbolic link and, unless a folder is expected, for what is no file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Is no file", str(path))
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """The results at ``path``, made where there are none.

    Raises ForeignResultsError for what this program did not make: a folder without a record that
    has anything in it, a link, a file. Raises OSError too.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(opened(path, os.O_RDONLY | os.O_DIRECTORY))
        except OSError as error:
            if error.errno not in _OF_ANOTHER_KIND:
                raise
            raise ForeignResultsError(str(path)) from error
        names = [each.name for each in folder.iterdir()]
        if STATE_NAME not in names and not all(map(_PARTIAL_RECORD.fullmatch, names)):
            raise ForeignResultsError(str(path))
        yield folder


def clear_results(folder: Path) -> None:
    """Remove what an earlier version gave; its record is replaced, all else is not ours."""
    with os.scandir(folder) as entries:
        names = {each.name for each in entries if each.is_file(follow_symlinks=False)}
    for name in names - {STATE_NAME}:
        if _OWN.fullmatch(name):
            (folder / name).unlink()
