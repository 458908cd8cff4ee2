"""Corrections of a track's transcript: the document as it is now, and what each took the place of.

A change is JSON: ``splices``, each of them the first segment, how many are replaced, and the
segments in their place; ``speakers`` and ``turns`` where they change. What takes a change back is a
change too, so that revisions cost what they change, and revision 0 stays to the byte.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import from_json
from sqlalchemy import JSON, Text, Update, cast, func, insert, literal, select, text, update

from storage.database import Connection, Database
from storage.older_results import transcript_of_today
from storage.result_parts import Element
from storage.search_index import index_once, replace_rows, transcript_rows
from storage.tables import transcript_revisions, transcripts
from storage.types import StageName

MOST_REVISIONS = 10_000
"""Of a track."""

GIVEN_UP_AFTER = timedelta(hours=1)
"""What could not be aligned for so long after the last correction stays estimated."""

Change = Element
Splice = tuple[int, int, list[Element]]


@dataclass(frozen=True, slots=True)
class LockedTranscript:
    """A transcript that nobody else changes before the transaction ends."""

    job_id: uuid.UUID
    track_index: int
    revision: int
    language: str | None
    document: Element
    """A TranscriptResult as JSON of ``pipelines.codec``."""


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
    segments, undo, shift = [*document["segments"]], list[Splice](), 0
    for first, count, new in sorted(change["splices"], key=lambda splice: splice[0]):
        at = first + shift
        undo.append((at, len(new), segments[at : at + count]))
        segments[at : at + count] = new
        shift += len(new) - count
    for index, segment in enumerate(segments):
        if segment["index"] != index:
            segments[index] = segment | {"index": index}
    others = {name: change[name] for name in ("speakers", "turns") if name in change}
    before = {"splices": undo} | {name: document.get(name, []) for name in others}
    return document | {"segments": segments} | others, before


def difference(present: Element, other: Element) -> Change:
    """The change that makes the other document of the present one."""
    here, there = [
        [{**each, "index": 0} for each in document["segments"]] for document in (present, other)
    ]
    shortest = min(len(here), len(there))
    first = next((at for at in range(shortest) if here[at] != there[at]), shortest)
    most = shortest - first
    same = next((at for at in range(most) if here[-1 - at] != there[-1 - at]), most)
    new = other["segments"][first : len(there) - same]
    splice = (first, len(here) - same - first, new)
    names = [it for it in ("speakers", "turns") if present.get(it, []) != other.get(it, [])]
    return {"splices": [splice] if splice[1] or new else []} | {
        name: other.get(name, []) for name in names
    }


async def lock_transcript(
    connection: Connection, job_id: uuid.UUID, track_index: int
) -> LockedTranscript | None:
    """None without such a transcript. Lock the job before: who erases it does."""
    query = (
        select(
            transcripts.c.revision,
            transcripts.c.language,
            cast(transcripts.c.document, Text).label("document"),
        )
        .where(
            transcripts.c.job_id == job_id,
            transcripts.c.track_index == track_index,
            transcripts.c.document.is_not(None),
        )
        .with_for_update()
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    document = await asyncio.to_thread(lambda: from_json(transcript_of_today(row.document)))
    return LockedTranscript(job_id, track_index, row.revision, row.language, document)


async def store_revision(
    connection: Connection,
    held: LockedTranscript,
    change: Change,
    *,
    reverted_to: int | None = None,
    redacts: bool = False,
) -> int:
    """Store a change and make it searchable; its revision. ``redacts``: those before are hidden."""
    before = await _store(connection, held, change, held.revision + 1)
    await connection.execute(
        insert(transcript_revisions).values(
            job_id=held.job_id,
            track_index=held.track_index,
            revision=held.revision + 1,
            reverted_to=reverted_to,
            changed_segments=sum(max(count, len(old)) for _, count, old in before["splices"]),
            before=before,
        )
    )
    if redacts:
        await hide_revisions(connection, held, held.revision + 1)
    if any(segment.get("estimated_words") for *_, new in change["splices"] for segment in new):
        await connection.execute(_of(held).values(align_after=func.now()))
    return held.revision + 1


async def hide_revisions(connection: Connection, held: LockedTranscript, before: int) -> None:
    """From now on those before that one are original."""
    await connection.execute(_of(held).values(redacted_revision=before))


async def store_redaction(
    connection: Connection, job_id: uuid.UUID, track_index: int, before: Change
) -> None:
    """Of a transcript that is published redacted: its first revision, and what leads back to what
    the machine wrote."""
    row = {"job_id": job_id, "track_index": track_index, "revision": 1}
    await connection.execute(
        insert(transcript_revisions).values(
            changed_segments=len(before["splices"]), before=before, **row
        )
    )
    redacted = {"revision": 1, "redacted_revision": 1}
    await connection.execute(
        update(transcripts)
        .where(transcripts.c.job_id == job_id, transcripts.c.track_index == track_index)
        .values(redacted)
    )


async def _store(
    connection: Connection, held: LockedTranscript, change: Change, revision: int
) -> Change:
    def work() -> tuple[str, Change, list[Any]]:
        document, before = applied(held.document, change)
        rows = [
            [*transcript_rows(held.track_index, held.language, each["segments"])]
            for each in (held.document, document)
        ]
        return json.dumps(document), before, rows

    document, before, rows = await asyncio.to_thread(work)
    await connection.execute(
        _of(held).values(document=cast(literal(document, Text), JSON), revision=revision)
    )
    if not await index_once(connection, held.job_id, StageName.TRANSCRIPT):
        await replace_rows(connection, held.job_id, *rows)
    return before


def _of(held: LockedTranscript | LeasedAlignment) -> Update:
    return update(transcripts).where(
        transcripts.c.job_id == held.job_id, transcripts.c.track_index == held.track_index
    )


async def document_at(
    connection: Connection, job_id: uuid.UUID, track_index: int, document: Element, revision: int
) -> Element:
    """A document as it was at an earlier revision of the track."""
    query = (
        select(transcript_revisions.c.before)
        .where(
            transcript_revisions.c.job_id == job_id,
            transcript_revisions.c.track_index == track_index,
            transcript_revisions.c.revision > revision,
        )
        .order_by(transcript_revisions.c.revision.desc())
    )
    changes = [*(await connection.execute(query)).scalars()]

    def undone() -> Element:
        found = document
        for change in changes:
            found, _ = applied(found, change)
        return found

    return await asyncio.to_thread(undone)


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


@dataclass(frozen=True, slots=True)
class LeasedAlignment:
    """A track whose words are to be aligned, until another may take it over."""

    job_id: uuid.UUID
    track_index: int
    align_after: datetime


_LEASE = text(
    """
    UPDATE transcripts SET align_after = now() + :lease
     WHERE (job_id, track_index) = (
           SELECT job_id, track_index FROM transcripts WHERE align_after <= now()
            ORDER BY align_after LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING job_id, track_index, align_after
    """
)


async def lease_unaligned(database: Database, *, lease: timedelta) -> LeasedAlignment | None:
    """Lease the track that is due for longest; None where none is."""
    rows = await database.query(_LEASE, lease=lease)
    return LeasedAlignment(**rows[0]) if rows else None


async def store_aligned(
    connection: Connection, held: LockedTranscript, made: Sequence[tuple[Element, Element]]
) -> None:
    """Put aligned segments in the place of those that are as they were when they were read. No
    revision: the text is the same."""
    tried = {_content(before): after for before, after in made}
    splices = [
        (at, 1, [after])
        for at, segment in enumerate(held.document["segments"])
        if segment.get("estimated_words") and (after := tried.get(_content(segment))) is not None
    ]
    if splices:
        await _store(connection, held, {"splices": splices}, held.revision)


def _content(segment: Element) -> str:
    return json.dumps(segment | {"index": 0}, sort_keys=True)


async def go_on_aligning(
    connection: Connection, held: LeasedAlignment, *, lease: timedelta
) -> LeasedAlignment | None:
    """Keep the lease; None where the track was corrected meanwhile, and so is due again."""
    statement = _leased(held).values(align_after=func.now() + lease)
    later = await connection.scalar(statement.returning(transcripts.c.align_after))
    return later and replace(held, align_after=later)


async def end_alignment(connection: Connection, held: LeasedAlignment) -> None:
    """All was tried; what was corrected meanwhile stays due."""
    await connection.execute(_leased(held).values(align_after=None))


async def give_up_aligning(connection: Connection, held: LeasedAlignment) -> bool:
    """End it where nothing was corrected for GIVEN_UP_AFTER; False before."""
    newest = select(func.max(transcript_revisions.c.created_at)).where(
        transcript_revisions.c.job_id == held.job_id,
        transcript_revisions.c.track_index == held.track_index,
    )
    stale = newest.scalar_subquery() < func.now() - GIVEN_UP_AFTER
    ended = _leased(held).where(stale).values(align_after=None)
    return bool((await connection.execute(ended)).rowcount)


def _leased(held: LeasedAlignment) -> Update:
    return _of(held).where(transcripts.c.align_after == held.align_after)
