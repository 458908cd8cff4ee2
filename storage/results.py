"""Results as they are now (scene lists, transcripts), in parts too, for pages of long jobs."""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic_core import from_json
from sqlalchemy import Text, cast, delete, func, literal_column, null, select, text, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection, Database
from storage.records import columns, from_row
from storage.tables import TrackTranscript, scene_lists, speaker_labels, summaries, transcripts
from storage.types import StageStatus

__all__ = ["TrackTranscript"]


_USUAL = text(
    """
    SELECT language FROM (
        SELECT t.language FROM (
            SELECT id, created_at FROM jobs
             WHERE account_id = :account AND completed_at < :before
             ORDER BY created_at DESC, id DESC LIMIT 200) AS j JOIN transcripts t ON t.job_id = j.id
         WHERE t.language IS NOT NULL ORDER BY j.created_at DESC, j.id DESC LIMIT 50) AS latest
     GROUP BY language HAVING count(*) >= 5 ORDER BY count(*) DESC, language LIMIT 2
    """
)


async def usual_languages(
    connection: Connection, account_id: uuid.UUID, before: datetime
) -> list[str]:
    """Return the languages, two at most, of five or more of the latest 50 tracks with speech in an
    account's latest 200 jobs.

    Of jobs that had ended ``before`` then, so that a retry of a later one finds the same.
    """
    found = await connection.execute(_USUAL, {"account": account_id, "before": before})
    return [*found.scalars()]


@dataclass(frozen=True, slots=True)
class Track:
    """A track without its transcript."""

    track_index: int
    track_name: str
    status: StageStatus
    error_code: str | None
    language: str | None
    labels: Mapping[str, str]
    """The names that its speakers were given, by their ids."""
    revision: int
    """How often people have corrected it."""
    redacted_revision: int | None
    """Earlier revisions have what was redacted."""


@dataclass(frozen=True, slots=True)
class SceneSpan:
    """When a scene is and what it shows."""

    index: int
    start_ms: int
    end_ms: int
    description: str


async def find_overview(connection: Connection, job_id: uuid.UUID) -> str | None:
    """Return what is seen in a job's whole video, as a Scene in JSON; None without an overview."""
    query = select(cast(scene_lists.c.overview, Text)).where(scene_lists.c.job_id == job_id)
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def get_scenes(connection: Connection, job_id: uuid.UUID) -> str:
    """Return the scenes of a job whose vision stage completed, as JSON of ``pipelines.codec``."""
    query = select(cast(scene_lists.c.scenes, Text)).where(scene_lists.c.job_id == job_id)
    found: str = (await connection.execute(query)).scalar_one()
    return found


async def get_scene_spans(connection: Connection, job_id: uuid.UUID) -> list[SceneSpan]:
    """When each scene is and what it shows, a fifth of all."""
    return [SceneSpan(*row) for row in await connection.execute(_SPANS, {"job_id": job_id})]


_SPANS = text(
    """SELECT index, start_ms, end_ms, description
         FROM scene_lists, json_to_recordset(scenes) AS scene
              (index int, start_ms int, end_ms int, description text)
        WHERE job_id = :job_id ORDER BY index"""
)


async def find_fingerprints(connection: Connection, job_id: uuid.UUID) -> bytes | None:
    """Of the shots of a job's video; None of jobs of before there were any."""
    query = select(scene_lists.c.fingerprints).where(scene_lists.c.job_id == job_id)
    found: bytes | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def stored_bytes(connection: Connection, job_id: uuid.UUID) -> tuple[int, int]:
    """Return how many bytes a job's scenes take, and all its transcripts, as they are stored:
    compressed. None of them is read."""
    found = await connection.execute(_STORED_BYTES, {"job_id": job_id})
    seen, spoken = found.one()
    return seen, spoken


_STORED_BYTES = text(
    """SELECT coalesce((SELECT pg_column_size(scenes) FROM scene_lists WHERE job_id = :job_id), 0),
              coalesce((SELECT sum(pg_column_size(document)) FROM transcripts
                         WHERE job_id = :job_id), 0)"""
)


async def has_fingerprints(connection: Connection, job_id: uuid.UUID) -> bool:
    """Return whether the shots of a job's video can be compared."""
    query = select(scene_lists.c.fingerprints.is_not(None)).where(scene_lists.c.job_id == job_id)
    return bool(await connection.scalar(query))


async def find_people(
    connection: Connection, job_id: uuid.UUID, *, locked: bool = False
) -> str | None:
    """Return who is seen in a job's video, as Persons in JSON; None without the option."""
    query = select(cast(scene_lists.c.people, Text)).where(scene_lists.c.job_id == job_id)
    query = query.with_for_update() if locked else query
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def delete_people(connection: Connection, job_id: uuid.UUID) -> None:
    """Delete who is seen; the caller has removed their pictures."""
    gone = update(scene_lists).where(scene_lists.c.job_id == job_id).values(people=null())
    await connection.execute(gone)


async def list_thumbnail_keys(connection: Connection, job_id: uuid.UUID) -> set[str]:
    """Return the object keys of the stills of a job's scenes, its overview and its people."""
    return set((await connection.execute(_STILLS, {"job_id": job_id})).scalars())


_STILLS = text(
    """WITH each AS MATERIALIZED (
         SELECT seen FROM scene_lists,
                LATERAL (SELECT json_array_elements(scenes) UNION ALL SELECT overview) AS a (seen)
          WHERE job_id = :job_id AND seen IS NOT NULL)
       SELECT seen ->> 'thumbnail_key' FROM each
       UNION ALL
       SELECT still ->> 'key' FROM each, json_array_elements(seen -> 'stills') AS still
       UNION ALL
       SELECT person ->> 'still_key' FROM scene_lists, json_array_elements(people) AS person
        WHERE job_id = :job_id"""
)


# The names given to a track's speakers, {speaker id: label}; null where none has one.
SPEAKER_LABELS = (
    select(func.jsonb_object_agg(speaker_labels.c.speaker_id, speaker_labels.c.label))
    .where(
        speaker_labels.c.job_id == transcripts.c.job_id,
        speaker_labels.c.track_index == transcripts.c.track_index,
    )
    .correlate(transcripts)
    .scalar_subquery()
)

_VOICES = (
    select(func.jsonb_object_agg(speaker_labels.c.speaker_id, speaker_labels.c.voice_id))
    .where(
        speaker_labels.c.job_id == transcripts.c.job_id,
        speaker_labels.c.track_index == transcripts.c.track_index,
        speaker_labels.c.voice_id.is_not(None),
    )
    .correlate(transcripts)
    .scalar_subquery()
)

_VERSION = func.md5(func.concat(literal_column("transcripts.xmin"), SPEAKER_LABELS, _VOICES))


# Words are most of a transcript: ten times its text.
_WITHOUT_WORDS = literal_column(
    """CASE WHEN document IS NOT NULL THEN (
        SELECT json_build_object('language', NULL, 'speakers', part.speakers, 'segments', (
            SELECT coalesce(json_agg(segment::jsonb || '{"words": []}'), '[]')
              FROM json_array_elements(part.segments) AS segment))
          FROM json_to_record(document) AS part (speakers json, segments json)) END::text""",
    Text,
)


async def list_transcripts(
    connection: Connection, job_id: uuid.UUID, *, words: bool = True
) -> list[TrackTranscript]:
    """Return all tracks of a job by index; empty before the transcript stage completed.

    Without ``words`` segments have none.
    """
    document = cast(transcripts.c.document, Text) if words else _WITHOUT_WORDS
    query = (
        select(
            *columns(TrackTranscript, "document"),
            document.label("document"),
            SPEAKER_LABELS.label("labels"),
            _VOICES.label("voices"),
            _VERSION.label("version"),
        )
        .where(transcripts.c.job_id == job_id)
        .order_by(transcripts.c.track_index)
    )
    rows = (await connection.execute(query)).mappings()
    return [
        from_row(
            TrackTranscript,
            {**row, "labels": row["labels"] or {}, "voices": row["voices"] or {}},
        )
        for row in rows
    ]


async def transcript_versions(
    connection: Connection, job_id: uuid.UUID, *, for_update: bool = False
) -> list[tuple[int, str]]:
    """Index and version of each track's transcript, without the transcripts. ``for_update``: lock
    the job before; who corrects them, or names speakers, does."""
    query = (
        select(transcripts.c.track_index, _VERSION)
        .where(transcripts.c.job_id == job_id)
        .order_by(transcripts.c.track_index)
    )
    found = await connection.execute(query.with_for_update() if for_update else query)
    return [(index, version) for index, version in found]


async def list_tracks(connection: Connection, job_id: uuid.UUID) -> list[Track]:
    """As ``list_transcripts``, however long these are."""
    names = [name for name in Track.__dataclass_fields__ if name != "labels"]
    query = (
        select(*[transcripts.c[name] for name in names], SPEAKER_LABELS.label("labels"))
        .where(transcripts.c.job_id == job_id)
        .order_by(transcripts.c.track_index)
    )
    rows = (await connection.execute(query)).mappings()
    return [from_row(Track, {**row, "labels": row["labels"] or {}}) for row in rows]


async def name_speaker(
    connection: Connection,
    job_id: uuid.UUID,
    track_index: int,
    speaker_id: str,
    label: str,
    voice_id: uuid.UUID | None = None,
) -> None:
    """Give a speaker of a transcribed track a label, that of a named voice or people's own; an
    empty one gives back its first."""
    row = {"job_id": job_id, "track_index": track_index, "speaker_id": speaker_id}
    if label:
        given = {"label": label, "voice_id": voice_id}
        statement = insert(speaker_labels).values(**given, **row)
        await connection.execute(
            statement.on_conflict_do_update(index_elements=list(row), set_=given)
        )
    else:
        await connection.execute(delete(speaker_labels).filter_by(**row))


async def find_thumbnail_key(connection: Connection, job_id: uuid.UUID, index: int) -> str | None:
    """Return the object key of a scene's still; None without such a scene."""
    query = select(scene_lists.c.scenes[index]["thumbnail_key"].astext).where(
        scene_lists.c.job_id == job_id
    )
    key: str | None = (await connection.execute(query)).scalar_one_or_none()
    return key


async def find_summary(connection: Connection, job_id: uuid.UUID) -> str | None:
    """Return the sentences of a job's summary, as JSON of ``pipelines.codec``; None without one."""
    query = select(cast(summaries.c.sentences, Text)).where(summaries.c.job_id == job_id)
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


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
        """Return the part that element ``index`` is in, a JSON array; empty where there is none."""
        if not 0 <= index < self.count:
            return b"[]"
        return zlib.decompress(self.pieces[index // self.size])

    def read(self, index: int) -> list[Element]:
        """As ``read_json``, parsed."""
        part: list[Element] = from_json(self.read_json(index))
        return part

    def read_all(self) -> Iterator[Element]:
        """Yield each element, a part at a time."""
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
        """Return the value of the key. Callers that come while it is made wait for that one."""
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
        self._kept = Kept[tuple[uuid.UUID, int | None, str], Parts](
            KEPT_BYTES, lambda parts: sum(map(len, (*parts.pieces, parts.outline, parts.texts)))
        )
        self._turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def find_scenes(self, job_id: uuid.UUID) -> Parts | None:
        """Return the scenes of a job; None where its vision stage has none."""
        for row in await self._database.query(_SCENES_VERSION, job_id=job_id):
            return await self._parts(job_id, None, row["version"])
        return None

    async def read_segments(
        self, job_id: uuid.UUID, track_index: int | None = None
    ) -> dict[int, Parts]:
        """Return the segments of one or of each track that has a transcript, by its index."""
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
            tuple(found or ()))  # fmt: skip


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
