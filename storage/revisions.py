"""Corrections of a track's transcript: the document as it is now, and what each took the place of.

A change is JSON: ``splices``, each of them the first segment, how many are replaced, and the
segments in their place; ``speakers`` and ``turns`` where they change. What takes a change back is a
change too, so that revisions cost what they change, and revision 0 stays to the byte.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pydantic_core import from_json
from rapidfuzz.distance import Indel
from sqlalchemy import (
    JSON,
    Text,
    Update,
    cast,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)

from storage.database import Connection, Database
from storage.result_parts import Element
from storage.search_index import SearchRow, index_once, replace_rows, transcript_rows
from storage.tables import jobs, transcript_revisions, transcripts
from storage.types import StageName
from storage.work import queue

MOST_REVISIONS = 10_000
"""Of a track."""
MOST_DOCUMENT_BYTES = 64 * 2**20
"""Of a transcript as it is stored after a correction: more than twice what a day of speech has."""
MOST_CHANGE_BYTES = 16 * 2**20
"""Of the segments that a correction replaces, and of those in their place, as they are stored."""
MOST_HISTORY_BYTES = 128 * 2**20
"""Of what all corrections of a job replaced: forty times the words of three hours."""
MOST_ACCOUNT_HISTORY_BYTES = 2 * 2**30
"""Of what all corrections of an account's jobs replaced; requests at the same time may pass it by a
change each. Half a million corrections are summed up in a tenth of a second."""
_READ_AT_ONCE_BYTES = MOST_CHANGE_BYTES
_WRITTEN_AT_ONCE = 100
_SEGMENTS = re.compile(r'"segments"\s*:\s*\[')
"""In texts the quotation marks are escaped: only the field looks so."""

ALIGNMENT = "alignment"
"""Kind of work: words of a correction get measured times; the track is its part."""
_MOST_PAIRS = 10**8
"""Segments of two states that are compared: a tenth of a second."""
_VERSION = cast(literal_column("transcripts.xmin"), Text)

Change = Element
Splice = tuple[int, int, list[Element]]


@dataclass(frozen=True, slots=True)
class ReadTranscript:
    """A transcript as it was read; a change of it is stored only while it is still so."""

    job_id: uuid.UUID
    track_index: int
    revision: int
    language: str | None
    version: str
    """Another one after each change of the row, that of the times of words included."""
    size_bytes: int
    document: Element
    """A TranscriptResult as JSON of ``pipelines.codec``."""


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change of a transcript with all that is to be stored of it."""

    read: ReadTranscript
    change: Change
    document: str
    before: str
    """What takes it back, as JSON."""
    replaced: int
    """Segments, as they were before or after, of which there are more."""
    rows: tuple[list[SearchRow], list[SearchRow]]
    """What a search finds, before and after."""
    size_bytes: int
    """Of the segments before or after, of which there are more."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A correction that was made; ``reverted_to`` where it took others back."""

    revision: int
    created_at: datetime
    reverted_to: int | None
    changed_segments: int
    """As they were before."""


def applied(document: Element, change: Change) -> tuple[Element, Change]:
    """The document with the change, and what takes it back."""
    segments = [*document["segments"]]
    undo = _spliced(segments, change)
    others = {name: change[name] for name in ("speakers", "turns") if name in change}
    before = {"splices": undo} | {name: document.get(name, []) for name in others}
    return document | {"segments": _numbered(segments)} | others, before


def _spliced(segments: list[Element], change: Change) -> list[Splice]:
    """Change the segments in place; what takes it back. Their indices stay."""
    undo, shift = list[Splice](), 0
    for first, count, new in sorted(change["splices"], key=lambda splice: splice[0]):
        at = first + shift
        undo.append((at, len(new), segments[at : at + count]))
        segments[at : at + count] = new
        shift += len(new) - count
    return undo


def _numbered(segments: list[Element]) -> list[Element]:
    return [it if it["index"] == at else it | {"index": at} for at, it in enumerate(segments)]


def difference(present: Element, other: Element) -> Change:
    """The change that makes the other document of the present one."""
    here, there = [
        [{**each, "index": 0} for each in document["segments"]] for document in (present, other)
    ]
    runs = [(0, len(here), 0, len(there))]
    keys = [[json.dumps(each, sort_keys=True) for each in side] for side in (here, there)]
    if len(here) * len(there) <= _MOST_PAIRS:
        found = Indel.opcodes(*keys)
        # Neighbouring runs are one: what is gone and what is new.
        grouped = groupby(found, key=lambda it: it.tag == "equal")
        changed = [[*run] for is_equal, run in grouped if not is_equal]
        runs = [
            (run[0].src_start, run[-1].src_end, run[0].dest_start, run[-1].dest_end)
            for run in changed
        ]
    names = [it for it in ("speakers", "turns") if present.get(it, []) != other.get(it, [])]
    return {
        "splices": [
            (first, end - first, other["segments"][start:stop]) for first, end, start, stop in runs
        ]
    } | {name: other.get(name, []) for name in names}


async def read_transcript(
    connection: Connection, job_id: uuid.UUID, track_index: int
) -> ReadTranscript | None:
    """None without such a transcript."""
    query = select(
        transcripts.c.revision,
        transcripts.c.language,
        _VERSION.label("version"),
        cast(transcripts.c.document, Text).label("document"),
    ).where(
        transcripts.c.job_id == job_id,
        transcripts.c.track_index == track_index,
        transcripts.c.document.is_not(None),
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    document = await asyncio.to_thread(document_of, row.document)
    size_bytes = len(row.document)
    return ReadTranscript(
        job_id, track_index, row.revision, row.language, row.version, size_bytes, document
    )


def document_of(text: str) -> Element:
    """What ``text`` holds, its segments decoded one after the other: for threads, because no other
    one runs while a value is decoded, and ten hours take a third of a second."""
    begins = _SEGMENTS.search(text)
    if begins is None:
        return Element(from_json(text))
    scan, segments, at = json.JSONDecoder().raw_decode, list[Element](), begins.end()
    while text[at := _after_gap(text, at)] != "]":
        segment, at = scan(text, at)
        segments.append(segment)
    others: Element = from_json(text[: begins.end()] + text[at:])
    return others | {"segments": segments}


def _after_gap(text: str, at: int) -> int:
    while text[at] in " \t\r\n,":
        at += 1
    return at


def text_of(document: Element) -> str:
    """The document as JSON, some segments after the others: for threads, as above."""
    segments = document["segments"]
    places = range(0, len(segments), _WRITTEN_AT_ONCE)
    parts = (json.dumps(segments[at : at + _WRITTEN_AT_ONCE])[1:-1] for at in places)
    before, begin, after = json.dumps(document | {"segments": []}).partition('"segments": [')
    return f"{before}{begin}{', '.join(parts)}{after}"


def prepare(read: ReadTranscript, change: Change) -> PreparedChange:
    """What is to be stored of a change: seconds of a processor for a day of speech, and no
    database."""
    document, before = applied(read.document, change)
    rows = (
        [*transcript_rows(read.track_index, read.language, read.document["segments"])],
        [*transcript_rows(read.track_index, read.language, document["segments"])],
    )
    taken_back = json.dumps(before)
    return PreparedChange(
        read,
        change,
        text_of(document),
        taken_back,
        sum(max(count, len(old)) for _, count, old in before["splices"]),
        rows,
        max(len(taken_back), len(json.dumps(change))),
    )


async def store_revision(
    connection: Connection,
    made: PreparedChange,
    *,
    reverted_to: int | None = None,
    redacts: bool = False,
) -> int | None:
    """Store a change and make it searchable; its revision, or None where the transcript was changed
    since it was read. ``redacts``: those before are hidden."""
    read, revision = made.read, made.read.revision + 1
    if not await _store(connection, made, revision):
        return None
    await connection.execute(
        insert(transcript_revisions).values(
            job_id=read.job_id,
            track_index=read.track_index,
            revision=revision,
            reverted_to=reverted_to,
            changed_segments=made.replaced,
            before=cast(literal(made.before, Text), JSON),
            size_bytes=len(made.before),
        )
    )
    if redacts:
        await hide_revisions(connection, read, revision)
    if any(segment.get("estimated_words") for *_, new in made.change["splices"] for segment in new):
        await queue(connection, ALIGNMENT, read.job_id, str(read.track_index))
    return revision


async def history_bytes(connection: Connection, job_id: uuid.UUID) -> int:
    """What all corrections of a job's tracks replaced, as it is stored."""
    query = select(func.coalesce(func.sum(transcript_revisions.c.size_bytes), 0))
    return int(await connection.scalar(query.where(transcript_revisions.c.job_id == job_id)) or 0)


async def account_history_bytes(connection: Connection, account_id: uuid.UUID) -> int:
    """What all corrections of an account's jobs replaced, as it is stored."""
    query = (
        select(func.coalesce(func.sum(transcript_revisions.c.size_bytes), 0))
        .join(jobs, jobs.c.id == transcript_revisions.c.job_id)
        .where(jobs.c.account_id == account_id)
    )
    return int(await connection.scalar(query) or 0)


async def hide_revisions(connection: Connection, held: ReadTranscript, before: int) -> None:
    """From now on those before that one are original."""
    await connection.execute(_of(held).values(redacted_revision=before))


async def store_redaction(
    connection: Connection, job_id: uuid.UUID, track_index: int, before: Change
) -> None:
    """Of a transcript that is published redacted: its first revision, and what leads back to what
    the machine wrote."""
    row = {"job_id": job_id, "track_index": track_index, "revision": 1}
    stored = json.dumps(before)
    await connection.execute(
        insert(transcript_revisions).values(
            changed_segments=len(before["splices"]),
            before=cast(literal(stored, Text), JSON),
            size_bytes=len(stored),
            **row,
        )
    )
    redacted = {"revision": 1, "redacted_revision": 1}
    await connection.execute(
        update(transcripts)
        .where(transcripts.c.job_id == job_id, transcripts.c.track_index == track_index)
        .values(redacted)
    )


async def _store(connection: Connection, made: PreparedChange, revision: int) -> bool:
    """False where the transcript was changed since it was read."""
    read = made.read
    statement = _of(read).where(_VERSION.is_not_distinct_from(read.version))
    document = cast(literal(made.document, Text), JSON)
    stored = await connection.execute(statement.values(document=document, revision=revision))
    if not stored.rowcount:
        return False
    if not await index_once(connection, read.job_id, StageName.TRANSCRIPT):
        await replace_rows(connection, read.job_id, *made.rows)
    return True


def _of(held: ReadTranscript) -> Update:
    return update(transcripts).where(
        transcripts.c.job_id == held.job_id, transcripts.c.track_index == held.track_index
    )


async def document_at(
    database: Database,
    job_id: uuid.UUID,
    track_index: int,
    document: str | Element,
    present: int,
    revision: int,
) -> Element | None:
    """The document of the ``present`` revision as it was at an earlier one; None where it was
    erased meanwhile. Changes are read a few at a time, and no connection waits while they are
    undone."""
    found = document
    if isinstance(found, str):
        found = await asyncio.to_thread(document_of, found)
    segments, at = [*found["segments"]], present
    others: Element = {}
    change = transcript_revisions.c
    own = change.job_id == job_id, change.track_index == track_index, change.revision > revision

    def undo(changes: list[str]) -> None:
        for each in changes:
            taken_back = from_json(each)
            _spliced(segments, taken_back)
            others.update({it: taken_back[it] for it in ("speakers", "turns") if it in taken_back})

    while at > revision:
        newer = func.sum(change.size_bytes).over(order_by=change.revision.desc())
        sizes = (
            select(change.revision, (newer - change.size_bytes).label("newer_bytes"))
            .where(*own, change.revision <= at)
            .subquery()
        )
        query = (
            select(cast(change.before, Text))
            .join(sizes, sizes.c.revision == change.revision)
            .where(*own, sizes.c.newer_bytes < _READ_AT_ONCE_BYTES)
            .order_by(change.revision.desc())
        )
        async with database.statement() as connection:
            changes = [*(await connection.execute(query)).scalars()]
        if not changes:
            return None
        await asyncio.to_thread(undo, changes)
        at -= len(changes)
    return found | {"segments": await asyncio.to_thread(_numbered, segments)} | others


async def list_revisions(
    connection: Connection, job_id: uuid.UUID, track_index: int, *, before: int, limit: int
) -> list[Revision]:
    """Corrections of a track before a revision, the latest first."""
    query = (
        select(*[transcript_revisions.c[name] for name in Revision.__dataclass_fields__])
        .where(
            transcript_revisions.c.job_id == job_id,
            transcript_revisions.c.track_index == track_index,
            transcript_revisions.c.revision < before,
        )
        .order_by(transcript_revisions.c.revision.desc())
        .limit(limit)
    )
    return [Revision(**row) for row in (await connection.execute(query)).mappings()]


def prepare_aligned(
    read: ReadTranscript, made: Sequence[tuple[Element, Element]]
) -> PreparedChange:
    """What is to be stored to put aligned segments in the place of those that are as they were when
    they were read."""
    tried = {_content(before): after for before, after in made}
    splices = [
        (at, 1, [after])
        for at, segment in enumerate(read.document["segments"])
        if segment.get("estimated_words") and (after := tried.get(_content(segment))) is not None
    ]
    return prepare(read, {"splices": splices})


async def store_aligned(connection: Connection, made: PreparedChange) -> bool:
    """Store what ``prepare_aligned`` made; False where the transcript was changed since it was
    read. No revision: the text is the same."""
    return await _store(connection, made, made.read.revision)


def _content(segment: Element) -> str:
    return json.dumps(segment | {"index": 0}, sort_keys=True)
