"""Results in parts: a page shows a few at a time of what may be ten hours.

Scenes or segments of a job are read once, row by row, and kept compressed: all at once they take
forty times that, and the database would parse the whole document for each part. They are kept by
their version, and those that were not read for longest go first.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic_core import from_json
from sqlalchemy import text

from storage.database import Database

KEPT_BYTES = 32 * 2**20
"""Of all jobs together; ten hours of speech and 10,000 scenes are 6 MB."""
_READ_AT_ONCE = 2

Key = TypeVar("Key")
Value = TypeVar("Value")
Element = dict[str, Any]
"""A scene or a segment, as it is stored."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All scenes of a job, or all segments of a track."""

    version: str
    """Another one whenever the results are stored anew."""
    size: int
    """Elements of each part but the last."""
    count: int
    """Elements of all parts."""
    pieces: tuple[bytes, ...]
    """Each part: a JSON array, compressed by zlib."""
    outline: bytes
    """What a timeline shows of each element: a JSON array, compressed by gzip."""
    texts: bytes
    """The texts of each element, in the order of a page: a JSON array of arrays, by gzip."""
    speakers: tuple[Element, ...]
    """Who speaks, with the labels of before anybody gave them names."""

    def read_json(self, index: int) -> bytes:
        """The part that element ``index`` is in, a JSON array; empty where there is none."""
        if not 0 <= index < self.count:
            return b"[]"
        return zlib.decompress(self.pieces[index // self.size])

    def read(self, index: int) -> list[Element]:
        """As ``read_json``, parsed."""
        part: list[Element] = from_json(self.read_json(index))
        return part

    def read_all(self) -> Iterator[Element]:
        """Each element, a part at a time."""
        for first in range(0, self.count, self.size):
            yield from self.read(first)


@dataclass(frozen=True, slots=True)
class _Kind:
    size: int
    outlined: Callable[[Element], list[Any]]
    texts: Callable[[Element], list[str]]


_SCENES = _Kind(
    24,
    lambda scene: [
        scene["start_ms"] / 1000,
        scene["end_ms"] / 1000,
        scene["color_palette"],
        int(bool(scene.get("on_screen_text"))),
    ],
    lambda scene: [
        scene["description"] or "",
        *(line["text"] for line in scene.get("on_screen_text", [])),
        *scene["objects"],
        *(tag["label"] for tag in scene.get("tags", [])),
    ],
)
_SEGMENTS = _Kind(
    100,
    lambda segment: [segment["start_ms"] / 1000, segment["end_ms"] / 1000, segment["speaker"]],
    lambda segment: [segment["text"]],
)


class Kept(Generic[Key, Value]):
    """Values that take long to make; the least recently used go first."""

    def __init__(self, most: int, size_of: Callable[[Value], int] = lambda _: 1) -> None:
        """``most``: of what ``size_of`` counts, in all; the last value stays, whatever its size."""
        self._most, self._size_of = most, size_of
        self._values = OrderedDict[Key, Value]()
        self._making = WeakValueDictionary[Key, asyncio.Lock]()

    async def get(self, key: Key, make: Callable[[], Awaitable[Value]]) -> Value:
        """The value of the key. Callers that come while it is made wait for that one."""
        async with self._making.setdefault(key, asyncio.Lock()):
            if key not in self._values:
                self._values[key] = await make()
            value = self._values[key]
            self._values.move_to_end(key)
        size = sum(map(self._size_of, self._values.values()))
        while size > self._most and len(self._values) > 1:
            size -= self._size_of(self._values.popitem(last=False)[1])
        return value


class ResultParts:
    """The parts of one database's results, those that were read last kept in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = Kept[tuple[uuid.UUID, int | None, str], Parts](KEPT_BYTES, _kept_bytes)
        self._turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def find_scenes(self, job_id: uuid.UUID) -> Parts | None:
        """The scenes of a job; None where its vision stage has none."""
        for row in await self._database.query(_SCENES_VERSION, job_id=job_id):
            return await self._parts(job_id, None, row["version"])
        return None

    async def read_segments(
        self, job_id: uuid.UUID, track_index: int | None = None
    ) -> dict[int, Parts]:
        """The segments of one or of each track that has a transcript, by its index."""
        rows = await self._database.query(_SEGMENTS_VERSIONS, job_id=job_id, track=track_index)
        return {
            row["track_index"]: await self._parts(job_id, row["track_index"], row["version"])
            for row in rows
        }

    async def _parts(self, job_id: uuid.UUID, track: int | None, version: str) -> Parts:
        async def read() -> Parts:
            async with self._turns:
                return await self._read(job_id, track, version)

        return await self._kept.get((job_id, track, version), read)

    async def _read(self, job_id: uuid.UUID, track: int | None, version: str) -> Parts:
        kind = _SCENES if track is None else _SEGMENTS
        pieces, outlines, texts = list[bytes](), list[Any](), list[list[str]]()
        values = {"job_id": job_id, "track": track}
        async with self._database.transaction() as connection:
            rows = await connection.stream_scalars(
                _SCENE_TEXTS if track is None else _SEGMENT_TEXTS,
                values,
                execution_options={"yield_per": kind.size},
            )
            async for part in rows.partitions(kind.size):
                piece, elements = await asyncio.to_thread(_packed, part)
                pieces.append(piece)
                outlines += map(kind.outlined, elements)
                texts += map(kind.texts, elements)
            found = None if track is None else await connection.scalar(_SPEAKERS, values)
        outline, all_texts = await asyncio.to_thread(lambda: (_gzipped(outlines), _gzipped(texts)))
        return Parts(
            version, kind.size, len(outlines), tuple(pieces), outline, all_texts,
            tuple(found or ()),
        )  # fmt: skip


def _kept_bytes(parts: Parts) -> int:
    return sum(map(len, (*parts.pieces, parts.outline, parts.texts)))


def _packed(texts: Sequence[str]) -> tuple[bytes, list[Element]]:
    content = f"[{','.join(texts)}]".encode()
    return zlib.compress(content), from_json(content)


def _gzipped(content: Any) -> bytes:
    written = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(written.encode(), compresslevel=5, mtime=0)


_SCENES_VERSION = text("SELECT xmin::text AS version FROM scene_lists WHERE job_id = :job_id")
_SEGMENTS_VERSIONS = text(
    "SELECT track_index, xmin::text AS version FROM transcripts"
    " WHERE job_id = :job_id AND track_index = coalesce(CAST(:track AS bigint), track_index)"
    " AND document IS NOT NULL ORDER BY track_index"
)
_SCENE_TEXTS = text(
    "SELECT json_array_elements(scenes)::text FROM scene_lists WHERE job_id = :job_id"
)
_SEGMENT_TEXTS = text(
    "SELECT json_array_elements(document -> 'segments')::text FROM transcripts"
    " WHERE (job_id, track_index) = (:job_id, :track)"
)
_SPEAKERS = text(
    "SELECT document -> 'speakers' FROM transcripts WHERE (job_id, track_index) = (:job_id, :track)"
)
