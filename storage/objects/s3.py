"""The object store in an S3-compatible bucket.

Layout below the prefix: ``objects/<key>`` are the objects; ``partials/<key>/``
holds the state of an unfinished upload (see ``s3_partials``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from boto3.s3.transfer import TransferConfig

from storage.objects import (
    Check,
    DirectUpload,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    RangedCopy,
    check_key,
)
from storage.objects.local_files import temporary_file
from storage.objects.s3_multipart import (
    MIB,
    ConflictError,
    Multipart,
    PartStream,
    S3Place,
    WholeObject,
    client_of,
    named_errors,
)
from storage.objects.s3_partials import Partials

log = logging.getLogger("vas.objects")

_DELETE_AT_ONCE = 1000
"""S3's limit for one request."""

_LEFTOVER_AGE = timedelta(days=1)
"""A killed writer's upload looks like a slow one; no writer takes this long."""

_CHECK_SECONDS = 0.5

_READ_ATTEMPTS = 3
"""botocore does not retry a body that breaks off."""

_DOWNLOAD = TransferConfig(
    multipart_threshold=16 * MIB, multipart_chunksize=16 * MIB, max_concurrency=4
)

_COPY = TransferConfig(
    multipart_threshold=512 * MIB, multipart_chunksize=256 * MIB, max_concurrency=4
)


@dataclass(frozen=True, slots=True)
class S3Store:
    """Objects in a bucket. Picklable; connects when it is first used in a process."""

    place: S3Place

    largest_put_bytes: ClassVar[int] = 5 * 1024**3
    """S3's limit for one plain PUT."""

    @property
    def _client(self) -> Any:
        return client_of(self.place)

    @property
    def _partials(self) -> Partials:
        place = self.place
        return Partials(self._client, place.bucket, place.prefix, place.first_part_bytes)

    def _s3_key(self, key: str) -> str:
        return f"{self.place.prefix}objects/{check_key(key)}"

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.place.bucket, "Key": self._s3_key(key)}

    def presigned_put_url(self, key: str, *, expires_seconds: int) -> str:
        """An address that takes the object with one plain PUT, whatever its Content-Type."""
        with named_errors(key):
            url: str = client_of(self.place, public=True).generate_presigned_url(
                "put_object", Params=self._at(key), ExpiresIn=expires_seconds
            )
        return url

    def find_direct_upload(self, key: str) -> DirectUpload | None:
        try:
            with named_errors(key):
                found = self._client.head_object(**self._at(key))
        except ObjectNotFoundError:
            return None
        return DirectUpload(int(found["ContentLength"]), str(found["ETag"]))

    def copy_direct_upload(self, key: str, found: DirectUpload, target_key: str) -> bool:
        """Copied inside the store, in parts where it is large."""
        try:
            with named_errors(key):
                self._client.copy(
                    self._at(key),
                    self.place.bucket,
                    self._s3_key(target_key),
                    ExtraArgs={"CopySourceIfMatch": found.version},
                    Config=_COPY,
                )
        except (ConflictError, ObjectNotFoundError):
            return False
        return True

    def exists(self, key: str) -> bool:
        try:
            self.size_bytes(key)
        except ObjectNotFoundError:
            return False
        return True

    def size_bytes(self, key: str) -> int:
        with named_errors(key):
            return int(self._client.head_object(**self._at(key))["ContentLength"])

    def read_bytes(self, key: str) -> bytes:
        for _ in range(_READ_ATTEMPTS - 1):
            with contextlib.suppress(ObjectStoreUnavailableError):
                return self._read(key)
        return self._read(key)

    def _read(self, key: str) -> bytes:
        with named_errors(key), self._client.get_object(**self._at(key))["Body"] as body:
            return bytes(body.read())

    def read_range(self, key: str, offset_bytes: int, count_bytes: int) -> bytes:
        span = f"bytes={offset_bytes}-{offset_bytes + count_bytes - 1}"
        with (
            named_errors(key),
            self._client.get_object(**self._at(key), Range=span)["Body"] as body,
        ):
            return bytes(body.read())

    def write_bytes(self, key: str, data: bytes) -> None:
        with self.writer(key) as stream:
            stream.write(data)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        """A stream that becomes the object when the block ends without an exception.

        Sent in parts as it is written; S3 shows the object once all are there.
        """
        place = self.place
        whole = WholeObject(self._client, place.bucket, self._s3_key(key), place.first_part_bytes)
        with PartStream(whole.next_bytes, whole.send) as stream:
            try:
                yield cast(BinaryIO, stream)
                whole.finish(stream)
            except BaseException:
                try:
                    whole.abandon()
                except ObjectStoreUnavailableError as error:
                    # The block's own failure is raised to the caller; the sweeper removes the rest.
                    log.warning("object %s: its unfinished upload remains: %s", key, error)
                raise

    @contextlib.contextmanager
    def local_copy(self, key: str, *, check: Check | None = None) -> Iterator[Path]:
        """The object as a temporary file, which goes when the block ends."""
        callback = None if check is None else _throttled(check)
        with temporary_file() as (path, stream):
            with named_errors(key):
                self._client.download_fileobj(
                    self.place.bucket,
                    self._s3_key(key),
                    stream,
                    Config=_DOWNLOAD,
                    Callback=callback,
                )
            stream.flush()
            yield path

    @contextlib.contextmanager
    def ranged_copy(self, key: str) -> Iterator[RangedCopy]:
        """A temporary file of the object's size, all holes, which goes when the block ends."""
        size_bytes = self.size_bytes(key)
        with temporary_file() as (path, stream):
            stream.truncate(size_bytes)

            def fetch(first: int, end: int) -> None:
                os.pwrite(stream.fileno(), self.read_range(key, first, end - first), first)

            yield RangedCopy(path, size_bytes, fetch)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Keys below the folder ``prefix``, sorted."""
        top = len(f"{self.place.prefix}objects/")
        for s3_key in self._list(f"{self._s3_key(prefix)}/"):
            yield s3_key[top:]

    def _list(self, s3_prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.place.bucket, Prefix=s3_prefix
        )
        with named_errors(s3_prefix):
            for page in pages:
                yield from (item["Key"] for item in page.get("Contents", []))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there counts as removed."""
        with named_errors(key):
            self._client.delete_object(**self._at(key))

    def delete_keys(self, keys: Iterable[str]) -> int:
        """Remove these objects, a thousand in a request; return how many keys there were."""
        return self._delete_all(self._s3_key(key) for key in keys)

    def delete_prefix(self, prefix: str) -> int:
        """Remove all below the folder ``prefix``, partials and unfinished writers' parts included.

        Returns how many objects there were.
        """
        for key in self.list_partials(prefix):
            self.discard_partial(key)
        for upload in self._unfinished(prefix):
            upload.abort()
        self._delete_all(self._list(f"{self.place.prefix}partials/{check_key(prefix)}/"))
        return self._delete_all(self._list(f"{self._s3_key(prefix)}/"))

    def _delete_all(self, s3_keys: Iterable[str]) -> int:
        count, left = 0, iter(s3_keys)
        while batch := list(islice(left, _DELETE_AT_ONCE)):
            objects = [{"Key": s3_key} for s3_key in batch]
            with named_errors(batch[0]):
                answer = self._client.delete_objects(
                    Bucket=self.place.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            if answer.get("Errors"):
                first = answer["Errors"][0]
                raise ObjectStoreUnavailableError(f"object store: delete: {first.get('Code')}")
            count += len(batch)
        return count

    def _unfinished(
        self, prefix: str, *, older_than: timedelta = timedelta(0)
    ) -> Iterator[Multipart]:
        """Multipart uploads below ``prefix`` that began so long ago."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.place.bucket, Prefix=f"{self._s3_key(prefix)}/"
        )
        latest = datetime.now(UTC) - older_than
        with named_errors(prefix):
            for page in pages:
                for item in page.get("Uploads", []):
                    if item["Initiated"] <= latest or not older_than:
                        yield Multipart(
                            self._client, self.place.bucket, item["Key"], item["UploadId"], ""
                        )

    def partial_size_bytes(self, key: str) -> int:
        return self._partials.size_bytes(check_key(key))

    def append_partial(
        self, key: str, offset_bytes: int
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        return self._partials.append(check_key(key), offset_bytes)

    def truncate_partial(self, key: str, size_bytes: int) -> None:
        self._partials.truncate(check_key(key), size_bytes)

    def finish_partial(self, key: str) -> None:
        self._partials.finish(check_key(key))

    def discard_partial(self, key: str) -> None:
        self._partials.discard(check_key(key))

    def list_partials(self, prefix: str) -> Iterator[str]:
        return self._partials.list_keys(check_key(prefix))

    def require_usable(self) -> None:
        """The bucket must be there and answer to our key."""
        place = self.place
        try:
            with named_errors(place.bucket):
                self._client.head_bucket(Bucket=place.bucket)
        except ObjectNotFoundError as error:
            raise ObjectStoreUnavailableError("object store: there is no such bucket") from error

    def free_bytes(self) -> None:
        """A bucket has no limit."""
        return

    def remove_leftovers(self, prefix: str) -> int:
        """Abort multipart uploads a day old that no partial holds; return how many."""
        held = {self._partials.upload_id(key) for key in self.list_partials(prefix)}
        left = [
            upload
            for upload in self._unfinished(prefix, older_than=_LEFTOVER_AGE)
            if upload.upload_id not in held
        ]
        for upload in left:
            upload.abort()
        return len(left)


def _throttled(check: Check) -> Callable[[int], None]:
    """``check`` as a callback of a download's pieces, called at most every _CHECK_SECONDS."""
    checked_at = -math.inf

    def on_bytes(_: int) -> None:
        nonlocal checked_at
        now = time.monotonic()
        if now - checked_at >= _CHECK_SECONDS:
            checked_at = now
            check()

    return on_bytes
