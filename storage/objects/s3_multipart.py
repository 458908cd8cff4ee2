"""S3 clients, their errors by our names, and large objects sent in parts."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from storage.objects import ObjectNotFoundError, ObjectStoreUnavailableError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_CONNECT_SECONDS = 5
_READ_SECONDS = 60
_ATTEMPTS = 5
_CONNECTIONS = 32
FIRST_PART_BYTES = 8 * 1024**2
_DEFAULT_REGION = "us-east-1"

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_CONFLICTS = frozenset({"412", "PreconditionFailed", "ConditionalRequestConflict"})
_NO_UPLOAD = frozenset({"NoSuchUpload"})


MIB = 1024**2
MOST_PARTS = 10_000
"""S3's rule for an object."""

_PARTS_A_SIZE = 1000
_MEMORY_BYTES = 16 * MIB
"""Parts larger than this wait in a temporary file instead of in memory."""

_TOKEN = "vas-upload"  # noqa: S105  (the name of a metadata entry)


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, the service's prefix in it, and credentials. Picklable."""

    bucket: str
    prefix: str = ""
    """Ends with a slash unless it is empty."""
    endpoint_url: str | None = None
    """None for Amazon's own."""
    public_endpoint_url: str | None = None
    """What clients reach, where that is another address than the service's."""
    region: str | None = None
    access_key_id: str | None = None
    """None for boto3's chain: its environment, shared files, the machine's role."""
    secret_access_key: str | None = field(default=None, repr=False)
    first_part_bytes: int = FIRST_PART_BYTES
    """How large the first parts of a large object are; S3 takes none below 5 MiB."""


class ConflictError(Exception):
    """A conditional request found the object changed, or gone, since it was read."""


class NoSuchUploadError(Exception):
    """The multipart upload was completed or aborted."""


def client_of(place: S3Place, *, public: bool = False) -> Any:
    """The process's client (safe to share between threads); makes no connection yet."""
    endpoint = place.endpoint_url
    if public and place.public_endpoint_url is not None:
        endpoint = place.public_endpoint_url
    region = place.region or _DEFAULT_REGION
    return _client(endpoint, region, place.access_key_id, place.secret_access_key)


@functools.cache
def _client(endpoint: str | None, region: str, key_id: str | None, secret: str | None) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=_config(path_style=endpoint is not None),
    )


def _config(*, path_style: bool) -> Config:
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        signature_version="s3v4",
        # A bucket in the host name needs a wildcard DNS entry, which own servers seldom have.
        s3={"addressing_style": "path" if path_style else "virtual"},
        # Checksums in trailers, boto3's newer default, are refused by many compatible servers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The bucket's address comes from the settings alone, not from the environment.
        proxies={},
        ignore_configured_endpoint_urls=True,
    )


# A forked child must not share its parent's open connections.
os.register_at_fork(after_in_child=_client.cache_clear)


@contextlib.contextmanager
def named_errors(key: str) -> Iterator[None]:
    """Translate botocore's errors.

    ObjectNotFoundError, ConflictError and NoSuchUploadError by S3's code;
    ObjectStoreUnavailableError for all else, without secrets.
    """
    try:
        yield
    except ClientError as error:
        raise _named(error, key) from error
    except (BotoCoreError, Boto3Error, HTTPError, ConnectionError, TimeoutError) as error:
        raise ObjectStoreUnavailableError(f"object store: {type(error).__name__}") from error


def _named(error: ClientError, key: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return ObjectNotFoundError(key)
    if code in _CONFLICTS:
        return ConflictError(key)
    if code in _NO_UPLOAD:
        return NoSuchUploadError(key)
    return ObjectStoreUnavailableError(f"object store: {error.operation_name}: {code}")


def part_bytes(number: int, first: int = FIRST_PART_BYTES) -> int:
    """Size of part ``number`` (from 1): the first one's, doubled every 1000 parts.

    From 8 MiB on, 10,000 parts make 8 TiB, more than S3's 5 TiB for an object;
    the first 8 GiB are in parts of equal size, as some compatible servers require.
    """
    return int(first << ((number - 1) // _PARTS_A_SIZE))


@dataclass(frozen=True, slots=True)
class Multipart:
    """A multipart upload under way. ``token`` is written on the object that it becomes."""

    client: Any
    bucket: str
    s3_key: str
    upload_id: str
    token: str

    @classmethod
    def begin(cls, client: Any, bucket: str, s3_key: str) -> Multipart:
        token = uuid.uuid4().hex
        with named_errors(s3_key):
            answer = client.create_multipart_upload(
                Bucket=bucket, Key=s3_key, Metadata={_TOKEN: token}
            )
        return cls(client, bucket, s3_key, answer["UploadId"], token)

    @property
    def _named(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.s3_key, "UploadId": self.upload_id}

    def put(self, number: int, body: IO[bytes]) -> str:
        """Send a part; return its ETag. Raises NoSuchUploadError."""
        with named_errors(self.s3_key):
            answer = self.client.upload_part(**self._named, PartNumber=number, Body=body)
        return str(answer["ETag"])

    def parts(self) -> dict[int, tuple[str, int]]:
        """All parts that arrived: number to (ETag, size in bytes). Raises NoSuchUploadError."""
        with named_errors(self.s3_key):
            pages = self.client.get_paginator("list_parts").paginate(**self._named)
            return {
                part["PartNumber"]: (part["ETag"], part["Size"])
                for page in pages
                for part in page.get("Parts", [])
            }

    def complete(self, etags: dict[int, str]) -> None:
        """Make the object of these parts; does nothing where that was done before.

        A lost response leads to a second request, which finds no upload; the token on the object
        shows whether it is this upload's.
        Raises NoSuchUploadError or ObjectStoreUnavailableError where it is not.
        """
        parts = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
        try:
            with named_errors(self.s3_key):
                self.client.complete_multipart_upload(
                    **self._named, MultipartUpload={"Parts": parts}
                )
        except (NoSuchUploadError, ObjectStoreUnavailableError):
            if not self.is_done():
                raise

    def is_done(self) -> bool:
        """Whether the object under the key is what this upload became."""
        try:
            with named_errors(self.s3_key):
                found = self.client.head_object(Bucket=self.bucket, Key=self.s3_key)
        except ObjectNotFoundError:
            return False
        return bool(found["Metadata"].get(_TOKEN) == self.token)

    def abort(self) -> None:
        """Give it up with all its parts; one that is over counts as given up."""
        try:
            with named_errors(self.s3_key):
                self.client.abort_multipart_upload(**self._named)
        except (NoSuchUploadError, ObjectNotFoundError):
            return


def spool() -> IO[bytes]:
    """A place for one part: memory, or a temporary file where it grows large."""
    return SpooledTemporaryFile(max_size=_MEMORY_BYTES)


class PartStream(io.RawIOBase):
    """A sink that sends every full part and keeps the rest.

    ``next_bytes()`` returns the size of the next part; ``send(body, size)`` sends it. A part that
    could not be sent stays, so that nothing is lost.
    """

    def __init__(
        self, next_bytes: Callable[[], int], send: Callable[[IO[bytes], int], None]
    ) -> None:
        super().__init__()
        self._next_bytes = next_bytes
        self._send = send
        self._body = spool()
        self.waiting_bytes = 0
        """Bytes written and not sent."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Take all of ``data``; raises what ``send`` raises."""
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            room = self._next_bytes() - self.waiting_bytes
            if room <= 0:
                self._send(self.rest(), self.waiting_bytes)
                self._body.close()
                self._body = spool()
                self.waiting_bytes = 0
                continue
            piece = view[taken : taken + room]
            self._body.seek(0, io.SEEK_END)
            self._body.write(piece)
            self.waiting_bytes += len(piece)
            taken += len(piece)
        return taken

    def rest(self) -> IO[bytes]:
        """What was written and not sent, from its beginning; for reading once."""
        self._body.seek(0)
        return self._body

    def close(self) -> None:
        self._body.close()
        super().close()


@dataclass(slots=True)
class WholeObject:
    """An object being written by one writer: one request if it is small, parts if not."""

    client: Any
    bucket: str
    s3_key: str
    first_part_bytes: int
    upload: Multipart | None = None
    etags: dict[int, str] = field(default_factory=dict)

    def next_bytes(self) -> int:
        return part_bytes(len(self.etags) + 1, self.first_part_bytes)

    def send(self, body: IO[bytes], size_bytes: int) -> None:
        """Add a part of ``size_bytes``."""
        if self.upload is None:
            self.upload = Multipart.begin(self.client, self.bucket, self.s3_key)
        number = len(self.etags) + 1
        if number > MOST_PARTS:
            raise ObjectStoreUnavailableError(f"object store: over {MOST_PARTS} parts")
        self.etags[number] = self.upload.put(number, body)

    def finish(self, stream: PartStream) -> None:
        """Make the object of what was sent and what still waits in ``stream``."""
        if self.upload is None:
            with named_errors(self.s3_key):
                self.client.put_object(Bucket=self.bucket, Key=self.s3_key, Body=stream.rest())
            return
        if stream.waiting_bytes:
            self.send(stream.rest(), stream.waiting_bytes)
        self.upload.complete(self.etags)

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self.upload is not None:
            self.upload.abort()
