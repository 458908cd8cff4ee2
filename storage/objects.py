"""Object store: bytes under keys, written atomically.

A key is a relative POSIX path such as ``jobs/<id>/segments/0003.mkv``. Writers
never leave a half-written object behind: an object is there completely or not
at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

_TEMPORARY_PREFIX = ".tmp-"


class ObjectNotFoundError(KeyError):
    """No object is stored under the key."""


class InvalidKeyError(ValueError):
    """The key is empty, absolute, or climbs out of the store."""


def check_key(key: str) -> str:
    """Return ``key`` if it is a plain relative path; raise InvalidKeyError otherwise."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in {"", ".", ".."} for part in parts):
        raise InvalidKeyError(key)
    if parts[-1].startswith(_TEMPORARY_PREFIX):
        raise InvalidKeyError(key)
    return key


class ObjectStore(Protocol):
    """What pipelines and the API need of a store. Implementations are picklable."""

    def exists(self, key: str) -> bool: ...
    def size_bytes(self, key: str) -> int: ...
    def read_bytes(self, key: str) -> bytes: ...
    def write_bytes(self, key: str, data: bytes) -> None: ...
    def writer(self, key: str) -> contextlib.AbstractContextManager[BinaryIO]: ...
    def local_copy(self, key: str) -> contextlib.AbstractContextManager[Path]: ...
    def list_keys(self, prefix: str) -> Iterator[str]: ...
    def delete(self, key: str) -> None: ...
    def delete_prefix(self, prefix: str) -> int: ...


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Objects as files below ``root``. Picklable; safe with many processes at once."""

    root: Path

    def path(self, key: str) -> Path:
        """Where ``key`` lies on this machine (whether or not it exists)."""
        return self.root / check_key(key)

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def size_bytes(self, key: str) -> int:
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None

    def read_bytes(self, key: str) -> bytes:
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None

    def write_bytes(self, key: str, data: bytes) -> None:
        with self.writer(key) as stream:
            stream.write(data)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        """A stream that becomes the object when the block ends without an exception.

        Temporary name, fsync, rename, fsync of the folder: after a crash the
        object is the old one or the new one, never a part.
        """
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_folder(target.parent)

    @contextlib.contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        """The object as a file to read; here the file itself, so do not change it."""
        path = self.path(key)
        if not path.is_file():
            raise ObjectNotFoundError(key)
        yield path

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Keys below the folder ``prefix``, sorted."""
        top = self.path(prefix)
        for path in sorted(top.rglob("*")):
            if path.is_file() and not path.name.startswith(_TEMPORARY_PREFIX):
                yield path.relative_to(self.root).as_posix()

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there counts as removed."""
        self.path(key).unlink(missing_ok=True)

    def delete_prefix(self, prefix: str) -> int:
        """Remove everything below the folder ``prefix``; return how many objects."""
        count = sum(1 for _ in self.list_keys(prefix))
        shutil.rmtree(self.path(prefix), ignore_errors=True)
        return count


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
