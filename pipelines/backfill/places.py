"""Where manifests and media come from and results go: a folder, or a prefix of a bucket.

Unlike in the object store, names are the user's own and files lie where they name.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from storage.objects import ObjectNotFoundError, ObjectStore
from storage.objects.folder import FolderStore
from storage.objects.node_cache import NodeCache

if TYPE_CHECKING:
    from storage.objects.s3 import S3Place

S3_SCHEME = "s3://"
WORK_FOLDER = "_work"
"""Of an output: what is there of unfinished items. Readers of Parquet pass over the underscore."""

_NODE_CACHE_BYTES = 16 << 30
"""Most that a node keeps of what its tasks read and write."""
_COPY_BYTES = 4 << 20


class PlaceError(ValueError):
    """A place cannot be used; the message has the reason."""


class OutputError(ValueError):
    """An output cannot be continued; the message has the reason."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to be let into buckets; None for what boto3 finds by itself."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)


class Place(Protocol):
    """Files under relative names; each is written whole or not at all. Picklable."""

    def names(self, folder: str = "") -> Iterator[str]:
        """Of all files below ``folder``, sorted; hidden ones are passed over."""
        ...

    def read_bytes(self, name: str) -> bytes:
        """Raises ObjectNotFoundError."""
        ...

    def write_bytes(self, name: str, data: bytes) -> None: ...
    def create(self, name: str, data: bytes) -> bool:
        """Write the file unless there is one; return whether it was written (``ObjectStore``)."""
        ...

    def delete(self, name: str) -> None: ...

    def delete_folder(self, folder: str) -> None:
        """Everything below it, whatever it is."""
        ...

    def copy_to(self, name: str, sink: BinaryIO) -> None:
        """Raises ObjectNotFoundError."""
        ...

    def work_store(self) -> ObjectStore:
        """Return an object store inside the place, in WORK_FOLDER."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Held by one process at a time, where there is a way; PlaceError if another has it."""
        ...

    def address_of(self, name: str) -> str:
        """Return what names the file from anywhere: an absolute path or an s3:// URL."""
        ...


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder; on a cluster, one that all its nodes share."""

    root: Path

    def names(self, folder: str = "") -> Iterator[str]:
        top = self.root / folder
        for path in sorted(top.rglob("*")):
            name = path.relative_to(self.root)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                yield name.as_posix()

    def read_bytes(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFoundError(name) from None

    def write_bytes(self, name: str, data: bytes) -> None:
        FolderStore(self.root).write_bytes(name, data)

    def create(self, name: str, data: bytes) -> bool:
        return FolderStore(self.root).create(name, data)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def copy_to(self, name: str, sink: BinaryIO) -> None:
        try:
            with (self.root / name).open("rb") as source:
                shutil.copyfileobj(source, sink, _COPY_BYTES)
        except FileNotFoundError:
            raise ObjectNotFoundError(name) from None

    def work_store(self) -> ObjectStore:
        return FolderStore(self.root / WORK_FOLDER)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PlaceError(f"Another backfill is writing to {self.root}.") from None
            yield

    def address_of(self, name: str) -> str:
        return str(self.root / name)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A prefix of a bucket."""

    place: S3Place
    """Its prefix ends with a slash, unless it is empty."""

    @property
    def _s3(self) -> ModuleType:
        """boto3 takes a while to load, and only S3 needs it."""
        from storage.objects import s3

        return s3

    @property
    def _client(self) -> Any:
        return self._s3.client_of(self.place)

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.place.bucket, "Key": self.place.prefix + name}

    def names(self, folder: str = "") -> Iterator[str]:
        prefix = f"{self.place.prefix}{folder}/" if folder else self.place.prefix
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.place.bucket, Prefix=prefix
        )
        with self._s3.named_errors(prefix):
            for page in pages:
                for item in page.get("Contents", []):
                    name = item["Key"][len(self.place.prefix) :]
                    if not name.endswith("/") and not name.startswith(".") and "/." not in name:
                        yield name

    def read_bytes(self, name: str) -> bytes:
        with self._s3.named_errors(name):
            data: bytes = self._client.get_object(**self._at(name))["Body"].read()
        return data

    def write_bytes(self, name: str, data: bytes) -> None:
        with self._s3.named_errors(name):
            self._client.put_object(**self._at(name), Body=data)

    def create(self, name: str, data: bytes) -> bool:
        return bool(self._s3.create_object(self._client, self._at(name), data))

    def delete(self, name: str) -> None:
        with self._s3.named_errors(name):
            self._client.delete_object(**self._at(name))

    def delete_folder(self, folder: str) -> None:
        for name in [*self.names(folder)]:
            self.delete(name)

    def copy_to(self, name: str, sink: BinaryIO) -> None:
        with self._s3.named_errors(name):
            self._client.download_fileobj(Fileobj=sink, **self._at(name))

    def work_store(self) -> ObjectStore:
        place = replace(self.place, prefix=f"{self.place.prefix}{WORK_FOLDER}/")
        store: ObjectStore = self._s3.S3Store(place, NodeCache(_NODE_CACHE_BYTES))
        return store

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """S3 has no lock; of two runs one finds the other's part (see ``Output.commit``)."""
        return contextlib.nullcontext()

    def address_of(self, name: str) -> str:
        return f"{S3_SCHEME}{self.place.bucket}/{self.place.prefix}{name}"


def place_at(address: str, access: S3Access) -> Place:
    """Return the folder or prefix called ``address``. Raises PlaceError."""
    if not address.startswith(S3_SCHEME):
        if "://" in address:
            raise PlaceError(f"{address} is neither a folder nor s3://bucket/prefix.")
        return FolderPlace(Path(address).expanduser().absolute())
    # boto3 takes a while to load, and only S3 needs it.
    from storage.objects.s3 import S3Place

    bucket, key = split_s3(address)
    prefix = key.strip("/")
    return BucketPlace(
        S3Place(
            bucket=bucket,
            prefix=f"{prefix}/" if prefix else "",
            endpoint_url=access.endpoint_url,
            region=access.region,
            access_key_id=access.access_key_id,
            secret_access_key=access.secret_access_key,
        )
    )


def file_at(address: str, access: S3Access) -> tuple[Place, str]:
    """Return the place that holds the file called ``address``, and its name there. Raises
    PlaceError."""
    head, _, name = address.rpartition("/")
    if address.startswith(S3_SCHEME):
        split_s3(address)
        return place_at(head, access), name
    path = Path(address).expanduser().absolute()
    return FolderPlace(path.parent), path.name


def split_s3(address: str) -> tuple[str, str]:
    """Bucket and key of an s3:// URL; the key may be empty. Raises PlaceError."""
    bucket, _, key = address.removeprefix(S3_SCHEME).partition("/")
    if not bucket:
        raise PlaceError(f"{address} names no bucket.")
    return bucket, key
