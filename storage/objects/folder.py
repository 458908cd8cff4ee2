"""The object store as files below a folder: the default, on one machine or a shared disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from storage import objects
from storage.objects.local_files import is_at

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Objects as files below ``root``. Picklable; safe with many processes at once.

    A writer holds an advisory lock (flock) on its file, which the system releases with the process:
    so the sweeper detects a dead writer's file, and a second writer of a partial is refused.
    """

    root: Path

    def path(self, key: str) -> Path:
        """Return where ``key`` lies on this machine (whether or not it exists)."""
        return self.root / objects.check_key(key)

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def size_bytes(self, key: str) -> int:
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            raise objects.ObjectNotFoundError(key) from None

    def read_bytes(self, key: str) -> bytes:
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            raise objects.ObjectNotFoundError(key) from None

    def read_range(self, key: str, offset_bytes: int, count_bytes: int) -> bytes:
        try:
            with self.path(key).open("rb") as stream:
                stream.seek(offset_bytes)
                return stream.read(count_bytes)
        except FileNotFoundError:
            raise objects.ObjectNotFoundError(key) from None

    def write_bytes(self, key: str, data: bytes) -> None:
        with self.writer(key) as stream:
            stream.write(data)

    def create(self, key: str, data: bytes) -> bool:
        def link(temporary: Path, target: Path) -> None:
            target.hardlink_to(temporary)
            temporary.unlink()

        with contextlib.suppress(FileExistsError), self._written(key, link) as stream:
            stream.write(data)
            return True
        return False

    def writer(self, key: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A stream that becomes the object when the block ends without an exception.

        Temporary name, fsync, rename, fsync of the folder: after a crash the
        object is the old one or the new one, never a part.
        """
        return self._written(key, Path.replace)

    @contextlib.contextmanager
    def _written(self, key: str, place: Callable[[Path, Path], object]) -> Iterator[BinaryIO]:
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary, stream = _open_temporary(target.parent)
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                place(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_folder(target.parent)

    def copy_to(self, key: str, sink: BinaryIO, *, check: objects.Check | None = None) -> None:
        with self.local_copy(key) as path, path.open("rb") as source:
            shutil.copyfileobj(source, sink, _COPY_BYTES)

    @contextlib.contextmanager
    def local_copy(self, key: str, *, check: objects.Check | None = None) -> Iterator[Path]:
        """The object as a file to read; here the file itself, so do not change it."""
        path = self.path(key)
        if not path.is_file():
            raise objects.ObjectNotFoundError(key)
        yield path

    @contextlib.contextmanager
    def ranged_copy(self, key: str) -> Iterator[objects.RangedCopy]:
        """The file itself, which has all its bytes."""
        with self.local_copy(key) as path:
            yield objects.RangedCopy(path, self.size_bytes(key), None)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield keys below the folder ``prefix``, all if it is empty, sorted."""
        for path in self._files(prefix):
            if not path.name.startswith((objects.TEMPORARY_PREFIX, objects.PARTIAL_PREFIX)):
                yield path.relative_to(self.root).as_posix()

    def _files(self, prefix: str) -> Iterator[Path]:
        top = self.path(prefix) if prefix else self.root
        for path in sorted(top.rglob("*")):
            if path.is_file():
                yield path

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there counts as removed."""
        self.path(key).unlink(missing_ok=True)

    def delete_keys(self, keys: Iterable[str]) -> int:
        """Remove these objects; return how many keys there were."""
        count = 0
        for count, key in enumerate(keys, start=1):  # noqa: B007  (counted after the loop)
            self.delete(key)
        return count

    def delete_prefix(self, prefix: str) -> int:
        """Remove everything below the folder ``prefix``; return how many objects."""
        count = sum(1 for _ in self.list_keys(prefix))
        shutil.rmtree(self.path(prefix), ignore_errors=True)
        return count

    def _partial_path(self, key: str) -> Path:
        target = self.path(key)
        return target.parent / f"{objects.PARTIAL_PREFIX}{target.name}"

    def partial_size_bytes(self, key: str) -> int:
        try:
            return self._partial_path(key).stat().st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def append_partial(self, key: str, offset_bytes: int) -> Iterator[BinaryIO]:
        path = self._partial_path(key)
        if offset_bytes > 0 and not path.exists():
            raise objects.PartialOffsetError(key, expected_bytes=offset_bytes, actual_bytes=0)
        with _open_partial(path, key, create=offset_bytes == 0) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size != offset_bytes:
                raise objects.PartialOffsetError(
                    key, expected_bytes=offset_bytes, actual_bytes=size
                )
            try:
                yield stream
            finally:
                stream.flush()
                os.fsync(stream.fileno())
                if offset_bytes == 0:
                    _fsync_folder(path.parent)

    def truncate_partial(self, key: str, size_bytes: int) -> None:
        with _open_partial(self._partial_path(key), key) as stream:
            stream.truncate(size_bytes)
            os.fsync(stream.fileno())

    def finish_partial(self, key: str) -> None:
        partial, target = self._partial_path(key), self.path(key)
        if not partial.exists() and target.is_file():
            return
        with _open_partial(partial, key) as stream:
            os.fsync(stream.fileno())
            partial.replace(target)
        _fsync_folder(target.parent)

    def discard_partial(self, key: str) -> None:
        self._partial_path(key).unlink(missing_ok=True)

    def list_partials(self, prefix: str) -> Iterator[str]:
        for path in self._files(prefix):
            if path.name.startswith(objects.PARTIAL_PREFIX):
                name = path.name.removeprefix(objects.PARTIAL_PREFIX)
                yield path.with_name(name).relative_to(self.root).as_posix()

    def require_usable(self) -> None:
        """The folder, made where it is missing, must take files."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise objects.ObjectStoreUnavailableError(
                f"object store: {type(error).__name__}"
            ) from error
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
            raise objects.ObjectStoreUnavailableError("object store: the folder cannot be written")

    def free_bytes(self) -> int | None:
        folder = next(path for path in (self.root, *self.root.parents) if path.is_dir())
        return shutil.disk_usage(folder).free

    def remove_leftovers(self, prefix: str) -> int:
        temporary = (p for p in self._files(prefix) if p.name.startswith(objects.TEMPORARY_PREFIX))
        return sum(_remove_if_dead(path) for path in temporary)


def _open_temporary(folder: Path) -> tuple[Path, BinaryIO]:
    """Return a new file that is locked for as long as it is open."""
    while True:
        path = folder / f"{objects.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        stream = path.open("xb")
        fcntl.flock(stream, fcntl.LOCK_EX)
        # A sweeper may have found it in the moment before the lock, and removed it.
        if is_at(stream, path):
            return path, stream
        stream.close()


@contextlib.contextmanager
def _open_partial(path: Path, key: str, *, create: bool = False) -> Iterator[BinaryIO]:
    """The file, opened by its only writer; raises PartialBusyError, ObjectNotFoundError."""
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    except FileNotFoundError:
        raise objects.ObjectNotFoundError(key) from None
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise objects.PartialBusyError(key) from None
        # It may have been finished or discarded between the opening and the lock.
        if not is_at(stream, path):
            raise objects.PartialBusyError(key)
        yield stream


def _remove_if_dead(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
