"""The contract of object stores: bytes under keys, written atomically.

A key is a relative POSIX path such as ``jobs/<id>/segments/0003.mkv``. Writers
never leave a half-written object behind: an object is there completely or not
at all. An upload that comes in pieces grows as a *partial*, which no reader
sees until ``finish_partial`` makes it the object under the same key.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol, runtime_checkable

TEMPORARY_PREFIX = ".tmp-"
PARTIAL_PREFIX = ".partial-"


class ObjectNotFoundError(KeyError):
    """No object (or partial) is stored under the key."""


class InvalidKeyError(ValueError):
    """The key is empty, absolute, or climbs out of the store."""


class PartialOffsetError(ValueError):
    """The partial has another size than the caller expected."""

    def __init__(self, key: str, *, expected_bytes: int, actual_bytes: int) -> None:
        super().__init__(f"{key}: {actual_bytes} bytes, not {expected_bytes}")
        self.actual_bytes = actual_bytes


class PartialBusyError(RuntimeError):
    """Another writer has the partial open at this moment."""


def check_key(key: str) -> str:
    """Return ``key`` if it is a plain relative path; raise InvalidKeyError otherwise."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in {"", ".", ".."} for part in parts):
        raise InvalidKeyError(key)
    if parts[-1].startswith((TEMPORARY_PREFIX, PARTIAL_PREFIX)):
        raise InvalidKeyError(key)
    return key


class ObjectStoreUnavailableError(Exception):
    """The store cannot be reached, refuses, or fails; it may be back soon."""


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_outage(error: BaseException) -> bool:
    """Return whether a retry may succeed later: the store is unavailable, or a disk is full."""
    if isinstance(error, OSError):
        return error.errno in _DISK_FULL
    return isinstance(error, ObjectStoreUnavailableError)


Check = Callable[[], None]
"""Raises what shall end a long operation."""


@dataclass(frozen=True, slots=True)
class RangedCopy:
    """An object as a file to read, not to change, of which bytes may be missing."""

    path: Path
    size_bytes: int
    fetch: Callable[[int, int], None] | None
    """``fetch(first, end)`` puts these bytes into the file; None where it has all of them."""


class ObjectStore(Protocol):
    """Synchronous; callers on an event loop use a thread. Implementations are picklable."""

    def exists(self, key: str) -> bool: ...
    def size_bytes(self, key: str) -> int: ...
    def read_bytes(self, key: str) -> bytes: ...
    def read_range(self, key: str, offset_bytes: int, count_bytes: int) -> bytes:
        """Return bytes from ``offset_bytes`` on; fewer at the object's end."""
        ...

    def write_bytes(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> bool:
        """Write the object unless there is one, at once; return whether it was written.

        A bucket whose server knows no conditional writes replaces it.
        """
        ...

    def writer(self, key: str) -> contextlib.AbstractContextManager[BinaryIO]: ...
    def copy_to(self, key: str, sink: BinaryIO, *, check: Check | None = None) -> None:
        """Write the object's bytes into ``sink``; ``check`` as for ``local_copy``."""
        ...

    def local_copy(
        self, key: str, *, check: Check | None = None
    ) -> contextlib.AbstractContextManager[Path]:
        """Return the object as a file to read, not to change.

        Where it has to be copied first, ``check`` is called about twice a second and may raise,
        which ends the copying.
        """
        ...

    def ranged_copy(self, key: str) -> contextlib.AbstractContextManager[RangedCopy]:
        """Return the object as a file whose bytes are fetched as they are needed."""
        ...

    def list_keys(self, prefix: str) -> Iterator[str]: ...
    def delete(self, key: str) -> None: ...
    def delete_keys(self, keys: Iterable[str]) -> int: ...
    def delete_prefix(self, prefix: str) -> int: ...

    def partial_size_bytes(self, key: str) -> int:
        """Return bytes kept of the unfinished object; 0 if nothing of it is there."""
        ...

    def append_partial(
        self, key: str, offset_bytes: int
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Return a stream that adds to the partial, which begins to exist with the first block.

        Raises PartialOffsetError where ``offset_bytes`` is not its present
        size, PartialBusyError where the store detects that another writer has it
        open. When the block ends, what was written is durable and counts,
        also when it ends with an exception.
        """
        ...

    def truncate_partial(self, key: str, size_bytes: int) -> None:
        """Drop what the last block added, back to the size at which it began."""
        ...

    def finish_partial(self, key: str) -> None:
        """Make the partial the object, at once and durably, in place of an older one.

        Does nothing where that has been done before. Raises ObjectNotFoundError
        where there is neither partial nor object.
        """
        ...

    def discard_partial(self, key: str) -> None:
        """Remove the partial; one that is not there counts as removed."""
        ...

    def list_partials(self, prefix: str) -> Iterator[str]:
        """Return keys of the partials below the folder ``prefix``, sorted."""
        ...

    def require_usable(self) -> None:
        """Raises ObjectStoreUnavailableError where the store is not there or takes nothing."""
        ...

    def free_bytes(self) -> int | None:
        """Return bytes that still fit; None where that is unknown."""
        ...

    def remove_leftovers(self, prefix: str) -> int:
        """Remove what killed writers left below ``prefix``, return how many; nothing in flight."""
        ...


@dataclass(frozen=True, slots=True)
class DirectUpload:
    """An object uploaded by a client; ``version`` changes with each upload."""

    size_bytes: int
    version: str


@runtime_checkable
class DirectUploadStore(Protocol):
    """A store that clients can upload to directly."""

    largest_put_bytes: ClassVar[int]

    def find_direct_upload(self, key: str) -> DirectUpload | None:
        """Return the complete object under the key, or None."""
        ...

    def copy_direct_upload(self, key: str, found: DirectUpload, target_key: str) -> bool:
        """Copy it to a key that its URL cannot write; False if its version has changed."""
        ...

    def presigned_put_url(self, key: str, *, expires_seconds: int) -> str:
        """Return an address that takes the object with one plain PUT; no network call is made."""
        ...
