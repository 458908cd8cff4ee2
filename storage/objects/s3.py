"""The object store in an S3-compatible bucket.

Layout below the prefix: ``objects/<key>`` are the objects; ``partials/<key>/`` holds the state of
an unfinished upload. Large objects are sent in parts.

S3 cannot append. Full parts go into a multipart upload as they fill; less than a part is stored as
*pieces*, small objects beside it, one a block (as tusd does with its ``.part`` objects). The object
``state`` lists the parts and pieces that count. It is replaced by compare-and-set on its ETag after
every part and every block: a killed process loses at most what it had not sent, any process can go
on, and of two writers one gets PartialBusyError (but where a server ignores ``If-Match``).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from storage.objects import (
    Check,
    DirectUpload,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PartialBusyError,
    PartialOffsetError,
    RangedCopy,
    check_key,
)
from storage.objects.local_files import temporary_file
from storage.objects.node_cache import LEAST_BYTES, NodeCache

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
    """Return the process's client (safe to share between threads); makes no connection yet."""
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
        """Return all parts that arrived: number to (ETag, size in bytes). Raises
        NoSuchUploadError."""
        with named_errors(self.s3_key):
            pages = self.client.get_paginator("list_parts").paginate(**self._named)
            return {
                part["PartNumber"]: (part["ETag"], part["Size"])
                for page in pages
                for part in page.get("Parts", [])
            }

    def complete(self, etags: dict[int, str]) -> str | None:
        """Make the object of these parts, return its ETag; None where that was done before.

        A lost response leads to a second request, which finds no upload; the token on the object
        shows whether it is this upload's.
        Raises NoSuchUploadError or ObjectStoreUnavailableError where it is not.
        """
        parts = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
        try:
            with named_errors(self.s3_key):
                answer = self.client.complete_multipart_upload(
                    **self._named, MultipartUpload={"Parts": parts}
                )
                return str(answer["ETag"])
        except (NoSuchUploadError, ObjectStoreUnavailableError):
            if not self.is_done():
                raise
        return None

    def is_done(self) -> bool:
        """Return whether the object under the key is what this upload became."""
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
    """Return a place for one part: memory, or a temporary file where it grows large."""
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
        self.copy: IO[bytes] | None = None
        """Gets all that is written, too; None once it takes no more, where a disk is full."""

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Take all of ``data``; raises what ``send`` raises."""
        view = memoryview(data).cast("B")
        if self.copy is not None:
            try:
                self.copy.write(view)
            except OSError:
                self.copy = None
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
        """Return what was written and not sent, from its beginning; for reading once."""
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

    def finish(self, stream: PartStream) -> str | None:
        """Make the object of what was sent and what still waits in ``stream``.

        Returns its ETag, where the server still told it.
        """
        if self.upload is None:
            with named_errors(self.s3_key):
                answer = self.client.put_object(
                    Bucket=self.bucket, Key=self.s3_key, Body=stream.rest()
                )
            return str(answer["ETag"])
        if stream.waiting_bytes:
            self.send(stream.rest(), stream.waiting_bytes)
        return self.upload.complete(self.etags)

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self.upload is not None:
            self.upload.abort()


_STATE = "state"
_MOST_PIECES = 32
"""More pieces than this are merged: a part must not need hundreds of reads."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A small object that holds bytes after the last part."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes that count: parts in runs of consecutive numbers, then pieces."""

    runs: tuple[tuple[int, int], ...] = ()
    """``(first number, how many)``; numbers that a lost writer may have used are left out."""
    parts_bytes: int = 0
    next_part: int = 1
    pieces: tuple[Piece, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.parts_bytes + self.pieces_bytes

    @property
    def pieces_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def part_numbers(self) -> list[int]:
        return [first + step for first, count in self.runs for step in range(count)]

    def with_part(self, size_bytes: int) -> Content:
        """After a part that holds all the pieces, and more."""
        *before, last = self.runs or ((self.next_part, 0),)
        if last[0] + last[1] == self.next_part:
            runs = (*before, (last[0], last[1] + 1))
        else:
            runs = (*before, last, (self.next_part, 1))
        return Content(runs, self.parts_bytes + size_bytes, self.next_part + 1)


@dataclass(frozen=True, slots=True)
class State:
    """State of a partial. Immutable; every stored one has a ``revision`` of its own."""

    content: Content = Content()
    before: Content = Content()
    """As it was when the last block began, for ``truncate``."""
    upload_id: str | None = None
    token: str = ""
    open_block: str | None = None
    """Names the writer whose block has begun and not ended."""
    revision: str = ""

    @property
    def settled(self) -> Content:
        """The content, past the part number that a writer without an end may be sending now."""
        if self.open_block is None:
            return self.content
        return replace(self.content, next_part=self.content.next_part + 1)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> State:
        values = json.loads(data)
        contents = {name: _content(values[name]) for name in ("content", "before")}
        return cls(**(values | contents))


def _content(values: dict[str, Any]) -> Content:
    runs = tuple((first, count) for first, count in values["runs"])
    pieces = tuple(Piece(**piece) for piece in values["pieces"])
    return Content(**(values | {"runs": runs, "pieces": pieces}))


@dataclass(frozen=True, slots=True)
class Partials:
    """The partials of one bucket."""

    client: Any
    bucket: str
    prefix: str
    first_part_bytes: int

    def _folder(self, key: str) -> str:
        return f"{self.prefix}partials/{key}/"

    def _at(self, key: str, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._folder(key) + name}

    def upload(self, key: str, state: State) -> Multipart | None:
        """Return the multipart upload that ``state`` names."""
        if state.upload_id is None:
            return None
        return Multipart(
            self.client, self.bucket, f"{self.prefix}objects/{key}", state.upload_id, state.token
        )

    def find(self, key: str) -> tuple[State, str] | None:
        """Return the state and its ETag; None where there is no partial."""
        try:
            with named_errors(key):
                answer = self.client.get_object(**self._at(key, _STATE))
                with answer["Body"] as body:
                    return State.from_json(body.read()), str(answer["ETag"])
        except ObjectNotFoundError:
            return None

    def save(self, key: str, state: State, etag: str | None) -> tuple[State, str]:
        """Replace the state that had ``etag`` (None: there was none). Raises PartialBusyError."""
        state = replace(state, revision=uuid.uuid4().hex)
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            with named_errors(key):
                answer = self.client.put_object(
                    **self._at(key, _STATE), Body=state.to_json(), **condition
                )
        except (ConflictError, ObjectNotFoundError):
            # It may be our own first request, which was carried out but its response lost.
            found = self.find(key)
            if found is None or found[0].revision != state.revision:
                raise PartialBusyError(key) from None
            return found
        return state, str(answer["ETag"])

    def size_bytes(self, key: str) -> int:
        return (self.find(key) or (State(), ""))[0].content.size_bytes

    def upload_id(self, key: str) -> str | None:
        return (self.find(key) or (State(), ""))[0].upload_id

    @contextlib.contextmanager
    def append(self, key: str, offset_bytes: int) -> Iterator[BinaryIO]:
        """A block; the last to open one is the writer, an earlier one loses what it did not send.

        A lost writer cannot be distinguished from a slow one, so the newest counts: a client that
        resumes need not wait for its old connection.
        """
        state, etag = self.find(key) or (State(), None)
        size = state.content.size_bytes
        if size != offset_bytes:
            raise PartialOffsetError(key, expected_bytes=offset_bytes, actual_bytes=size)
        content = state.settled
        block = replace(state, content=content, before=content, open_block=uuid.uuid4().hex)
        writer = BlockWriter(self, key, *self.save(key, block, etag))
        old = {*state.before.pieces, *state.content.pieces}
        with PartStream(writer.next_bytes, writer.send) as stream:
            try:
                yield cast(BinaryIO, stream)
            finally:
                writer.end(stream)
                self._remove_pieces(key, old, writer.state)

    def truncate(self, key: str, size_bytes: int) -> None:
        """Back to a size between the last block's beginning and its end.

        Raises ObjectNotFoundError, and PartialOffsetError for any other size:
        bytes in parts that were sent before cannot be read back.
        """
        found = self.find(key)
        if found is None:
            raise ObjectNotFoundError(key)
        state, etag = found
        content = state.settled
        start = content if size_bytes >= content.parts_bytes else state.before
        if not start.parts_bytes <= size_bytes <= start.size_bytes:
            actual = content.size_bytes
            raise PartialOffsetError(key, expected_bytes=size_bytes, actual_bytes=actual)
        if state.open_block is not None:
            start = replace(start, next_part=content.next_part)
        kept = replace(start, pieces=self._cut(key, start, size_bytes))
        new, _ = self.save(key, replace(state, content=kept, before=kept, open_block=None), etag)
        self._remove_pieces(key, {*state.before.pieces, *state.content.pieces}, new)

    def _cut(self, key: str, content: Content, size_bytes: int) -> tuple[Piece, ...]:
        """Return the pieces of ``content`` as far as ``size_bytes``, the last one cut if need
        be."""
        kept: list[Piece] = []
        left = size_bytes - content.parts_bytes
        for piece in content.pieces:
            if left <= 0:
                break
            if piece.size_bytes > left:
                with spool() as body:
                    self.read_pieces(key, (piece,), body)
                    body.truncate(left)
                    piece = self.put_piece(key, body, left)  # noqa: PLW2901
            kept.append(piece)
            left -= piece.size_bytes
        return tuple(kept)

    def put_piece(self, key: str, body: IO[bytes], size_bytes: int) -> Piece:
        """Store a piece under a name that was never used."""
        piece = Piece(f"piece-{uuid.uuid4().hex}", size_bytes)
        body.seek(0)
        with named_errors(key):
            self.client.put_object(**self._at(key, piece.name), Body=body)
        return piece

    def read_pieces(self, key: str, pieces: tuple[Piece, ...], target: IO[bytes]) -> None:
        """Write the pieces' bytes to ``target``. Raises PartialBusyError where one is gone."""
        for piece in pieces:
            try:
                with named_errors(key):
                    answer = self.client.get_object(**self._at(key, piece.name))
                    with answer["Body"] as body:
                        shutil.copyfileobj(body, target, 1 << 20)
            except ObjectNotFoundError:
                raise PartialBusyError(key) from None

    def _remove_pieces(self, key: str, old: set[Piece], now: State) -> None:
        for piece in old - {*now.content.pieces, *now.before.pieces}:
            with named_errors(key):
                self.client.delete_object(**self._at(key, piece.name))

    def finish(self, key: str) -> None:
        """Make the partial the object. Raises ObjectNotFoundError, PartialBusyError."""
        found = self.find(key)
        if found is None:
            with named_errors(key):
                self.client.head_object(Bucket=self.bucket, Key=f"{self.prefix}objects/{key}")
            return
        state, etag = found
        # From here on no writer can add to it: its next compare-and-set fails.
        claimed = replace(state, content=state.settled, open_block=None)
        state, etag = self.save(key, claimed, etag)
        upload = self.upload(key, state)
        if upload is not None and state.content.runs:
            self._finish_parts(key, upload, state, etag)
        else:
            with spool() as body:
                self.read_pieces(key, state.content.pieces, body)
                body.seek(0)
                with named_errors(key):
                    self.client.put_object(
                        Bucket=self.bucket, Key=f"{self.prefix}objects/{key}", Body=body
                    )
            if upload is not None:  # all its parts were dropped again
                upload.abort()
        self._forget(key)

    def _finish_parts(self, key: str, upload: Multipart, state: State, etag: str) -> None:
        if upload.is_done():
            return
        try:
            arrived = upload.parts()
            if state.content.pieces:
                writer = BlockWriter(self, key, state, etag)
                with spool() as nothing:
                    writer.send(nothing, 0)
                state = writer.state
                arrived = upload.parts()
            numbers = state.content.part_numbers
            if sum(arrived[number][1] for number in numbers) != state.content.parts_bytes:
                raise ObjectStoreUnavailableError(f"object store: parts of {key} have changed")
            upload.complete({number: arrived[number][0] for number in numbers})
        except (NoSuchUploadError, KeyError) as error:
            raise ObjectStoreUnavailableError(f"object store: parts of {key} are lost") from error

    def discard(self, key: str) -> None:
        """Remove the partial and every part of it."""
        found = self.find(key)
        if found is not None:
            upload = self.upload(key, found[0])
            if upload is not None:
                upload.abort()
        self._forget(key)

    def _forget(self, key: str) -> None:
        """Remove state and pieces; the state last, so that a killed removal is done again."""
        folder = self._folder(key)
        with named_errors(key):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=folder, Delimiter="/"
            )
            names = [item["Key"] for page in pages for item in page.get("Contents", [])]
            for name in sorted(names, key=lambda name: name == folder + _STATE):
                self.client.delete_object(Bucket=self.bucket, Key=name)

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield keys of the partials below the folder ``prefix``, sorted."""
        top = len(f"{self.prefix}partials/")
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self._folder(prefix)
        )
        with named_errors(prefix):
            for page in pages:
                for item in page.get("Contents", []):
                    if item["Key"].endswith(f"/{_STATE}"):
                        yield item["Key"][top:].removesuffix(f"/{_STATE}")


@dataclass(slots=True)
class BlockWriter:
    """The open block of one partial."""

    partials: Partials
    key: str
    state: State
    etag: str

    def next_bytes(self) -> int:
        """Return how much more makes the next part, the waiting pieces counted."""
        content = self.state.content
        whole = part_bytes(content.next_part, self.partials.first_part_bytes)
        return max(0, whole - content.pieces_bytes)

    def send(self, body: IO[bytes], size_bytes: int) -> None:
        """Send the pieces and ``body`` as one part, and make it count."""
        partials, content = self.partials, self.state.content
        if content.next_part > MOST_PARTS:
            raise ObjectStoreUnavailableError(f"object store: over {MOST_PARTS} parts")
        known = partials.upload(self.key, self.state)
        upload = known or Multipart.begin(
            partials.client, partials.bucket, f"{partials.prefix}objects/{self.key}"
        )
        longer = content.with_part(content.pieces_bytes + size_bytes)
        try:
            self._put(upload, content.next_part, body)
            self._save(
                replace(self.state, content=longer, upload_id=upload.upload_id, token=upload.token)
            )
        except (NoSuchUploadError, PartialBusyError):
            if known is None:  # no state names it; after any other failure one may
                upload.abort()
            raise PartialBusyError(self.key) from None

    def _put(self, upload: Multipart, number: int, body: IO[bytes]) -> None:
        pieces = self.state.content.pieces
        if not pieces:
            upload.put(number, body)
            return
        with spool() as whole:
            self.partials.read_pieces(self.key, pieces, whole)
            shutil.copyfileobj(body, whole, 1 << 20)
            whole.seek(0)
            upload.put(number, whole)

    def _save(self, state: State) -> None:
        self.state, self.etag = self.partials.save(self.key, state, self.etag)

    def end(self, stream: PartStream) -> None:
        """Make the rest count as a piece; raises PartialBusyError where another has taken over."""
        content = self.state.content
        if stream.waiting_bytes:
            piece = self.partials.put_piece(self.key, stream.rest(), stream.waiting_bytes)
            pieces = (*content.pieces, piece)
            if len(pieces) > _MOST_PIECES:
                with spool() as whole:
                    self.partials.read_pieces(self.key, pieces, whole)
                    size_bytes = sum(each.size_bytes for each in pieces)
                    pieces = (self.partials.put_piece(self.key, whole, size_bytes),)
            content = replace(content, pieces=pieces)
        self._save(replace(self.state, content=content, open_block=None))


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
    cache: NodeCache | None = None
    """Of what is read as files and what is written, where its readers run on this node too."""
    folder: str = "objects/"
    """Where objects lie below the prefix; empty where their keys are a user's own names."""

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
        return f"{self.place.prefix}{self.folder}{check_key(key)}"

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.place.bucket, "Key": self._s3_key(key)}

    def presigned_put_url(self, key: str, *, expires_seconds: int) -> str:
        """Return an address that takes the object with one plain PUT, whatever its Content-Type."""
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
        store = self if len(data) >= LEAST_BYTES else replace(self, cache=None)
        with store.writer(key) as stream:
            stream.write(data)

    def create(self, key: str, data: bytes) -> bool:
        """Put the object unless there is one; return whether it was put."""
        try:
            with named_errors(key):
                self._client.put_object(**self._at(key), Body=data, IfNoneMatch="*")
        except ConflictError:
            return False
        return True

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[BinaryIO]:
        """A stream that becomes the object when the block ends without an exception.

        Sent in parts as it is written; S3 shows the object once all are there.
        """
        place = self.place
        whole = WholeObject(self._client, place.bucket, self._s3_key(key), place.first_part_bytes)
        with contextlib.ExitStack() as used:
            stream = used.enter_context(PartStream(whole.next_bytes, whole.send))
            if self.cache is not None:
                path, stream.copy = used.enter_context(self.cache.incoming())
            try:
                yield cast(BinaryIO, stream)
                etag = whole.finish(stream)
                if self.cache is not None and stream.copy is not None and etag is not None:
                    self.cache.keep(self._cached(key, etag), path, stream.copy)
            except BaseException:
                try:
                    whole.abandon()
                except ObjectStoreUnavailableError as error:
                    # The block's own failure is raised to the caller; the sweeper removes the rest.
                    log.warning("object %s: its unfinished upload remains: %s", key, error)
                raise

    def _cached(self, key: str, etag: str) -> str:
        """Return the name of an object's copy on a node."""
        return f"{self.place.endpoint_url} {self.place.bucket} {self._s3_key(key)} {etag}"

    def copy_to(self, key: str, sink: BinaryIO, *, check: Check | None = None) -> None:
        with named_errors(key):
            self._client.download_fileobj(
                **self._at(key),
                Fileobj=sink,
                Config=_DOWNLOAD,
                Callback=None if check is None else _throttled(check),
            )
        sink.flush()

    @contextlib.contextmanager
    def local_copy(self, key: str, *, check: Check | None = None) -> Iterator[Path]:
        """The object as a temporary file, which goes when the block ends, or as the node's copy."""
        fill = functools.partial(self.copy_to, key, check=check)
        with contextlib.ExitStack() as used:
            with named_errors(key):
                if self.cache is None:
                    path, stream = used.enter_context(temporary_file())
                    fill(stream)
                else:
                    etag = str(self._client.head_object(**self._at(key))["ETag"])
                    path = used.enter_context(self.cache.copy(self._cached(key, etag), fill))
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
        """Yield keys below the folder ``prefix``, sorted."""
        top = f"{self.place.prefix}{self.folder}"
        for s3_key in self._list(f"{self._s3_key(prefix)}/" if prefix else top):
            yield s3_key[len(top) :]

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
