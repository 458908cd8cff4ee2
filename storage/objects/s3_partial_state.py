"""What is known of an upload that grows in a bucket: the bytes that count, as a value."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any


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
    """All that is known of a partial. Immutable; every stored one has a ``revision`` of its own."""

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
