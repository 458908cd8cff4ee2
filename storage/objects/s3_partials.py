"""Uploads that grow, over S3 multipart; their state lies in the bucket itself.

S3 cannot append. Full parts go into a multipart upload as they fill; less than a part is stored as
*pieces*, small objects beside it, one a block (as tusd does with its ``.part`` objects). The object
``state`` lists the parts and pieces that count. It is replaced by compare-and-set on its ETag after
every part and every block: a killed process loses at most what it had not sent, any process can go
on, and of two writers one gets PartialBusyError (but where a server ignores ``If-Match``).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, BinaryIO, cast

from storage.objects import (
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PartialBusyError,
    PartialOffsetError,
)
from storage.objects.s3_multipart import (
    MOST_PARTS,
    ConflictError,
    Multipart,
    NoSuchUploadError,
    PartStream,
    named_errors,
    part_bytes,
    spool,
)

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
        """The multipart upload that ``state`` names."""
        if state.upload_id is None:
            return None
        return Multipart(
            self.client, self.bucket, f"{self.prefix}objects/{key}", state.upload_id, state.token
        )

    def find(self, key: str) -> tuple[State, str] | None:
        """The state and its ETag; None where there is no partial."""
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
        """The pieces of ``content`` as far as ``size_bytes``, the last one cut if need be."""
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
        """Keys of the partials below the folder ``prefix``, sorted."""
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
        """How much more makes the next part, the waiting pieces counted."""
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
