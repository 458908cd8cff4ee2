"""The versions of results: what people correct, what is redacted, what a rerun renews.

A stage publishes the first version, which ``storage.results`` reads. Corrections change a track's
transcript and lead back; redaction takes personal data out of all results; a rerun exchanges the
results of its stages with the first job's. Whoever stores a version calls ``result_changed`` in its
transaction, and what depends on results follows: ``FOLLOWERS`` are all of it.

A correction is JSON: ``splices``, each of them the first segment, how many are replaced, and the
segments in their place; ``speakers`` and ``turns`` where they change. What takes a change back is a
change too, so that revisions cost what they change, and revision 0 stays to the byte.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from pydantic_core import from_json
from rapidfuzz.distance import Indel
from sqlalchemy import (
    JSON,
    Text,
    TextClause,
    Update,
    cast,
    func,
    literal,
    literal_column,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from storage import comparisons, duplicates, search_index, translations
from storage.database import Connection, Database, run
from storage.job_records import JobRecord
from storage.records import columns, read
from storage.results import Element, TrackTranscript
from storage.search_index import SearchRow, scene_rows, transcript_rows
from storage.tables import (
    Revision,
    hidden_phrases,
    jobs,
    scene_lists,
    stage_versions,
    stages,
    summaries,
    transcript_revisions,
    transcripts,
)
from storage.types import ANALYSES, Cause, JobState, ResultChange, StageName, StageStatus
from storage.uploads import MEDIA_SLOT, find_upload, source_prefix
from storage.work import Held, end, queue

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

FOLLOWERS = (search_index.follow, duplicates.follow, comparisons.follow, translations.follow)
"""What depends on results, and keeps in step with them in the transaction of their change.

What is computed when it is read follows by itself: captions, chapters, reviews and receipts.
"""


async def result_changed(connection: Connection, change: ResultChange) -> None:
    """Have all that depends on a result follow its new version, which the caller has stored."""
    for follow in FOLLOWERS:
        await follow(connection, change)


# The first version.


async def store_scenes(
    connection: Connection,
    job_id: uuid.UUID,
    scenes: Sequence[Mapping[str, Any]],
    overview: Mapping[str, Any] | None = None,
    people: Sequence[Mapping[str, Any]] | None = None,
    fingerprints: bytes | None = None,
) -> None:
    """Publish the scenes of a job and its overview, once.

    As ``pipelines.codec`` writes a Scene, and a Person.
    """
    values: dict[str, object] = {"scenes": scenes, "scene_count": len(scenes)}
    values |= {"fingerprints": fingerprints}
    values |= {} if overview is None else {"overview": overview}
    values |= {} if people is None else {"people": people}
    await connection.execute(insert(scene_lists).values(job_id=job_id, **values))
    await _made(connection, job_id, StageName.VISION, scene_rows(scenes, overview))


async def store_transcripts(
    connection: Connection, job_id: uuid.UUID, tracks: list[TrackTranscript]
) -> None:
    """Publish the transcripts of all tracks of a job, once."""
    names = ("track_index", "track_name", "status", "error_code", "language")
    segments = list[SearchRow]()
    for track in tracks:
        row: dict[str, Any] = {"job_id": job_id, **{name: getattr(track, name) for name in names}}
        if track.document is not None:
            row["document"] = cast(literal(track.document, Text), JSON)
            said = from_json(track.document)["segments"]
            segments += transcript_rows(track.track_index, track.language, said)
        await connection.execute(insert(transcripts).values(row))
    await _made(connection, job_id, StageName.TRANSCRIPT, segments)


async def store_summary(
    connection: Connection, job_id: uuid.UUID, sentences: Sequence[Mapping[str, Any]]
) -> None:
    """Publish the summary of a job's transcripts, once."""
    await connection.execute(insert(summaries).values(job_id=job_id, sentences=sentences))


async def _made(
    connection: Connection, job_id: uuid.UUID, stage: StageName, rows: Iterable[SearchRow]
) -> None:
    change = ResultChange(job_id, frozenset({stage}), Cause.MADE, ([], [*rows]))
    await result_changed(connection, change)


# Corrections.


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


def applied(document: Element, change: Change) -> tuple[Element, Change]:
    """Return the document with the change, and what takes it back."""
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
    """Return the change that makes the other document of the present one."""
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
    """Return None without such a transcript."""
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
    """Return what ``text`` holds, its segments decoded one after the other: for threads, because no
    other one runs while a value is decoded, and ten hours take a third of a second."""
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
    """Return the document as JSON, some segments after the others: for threads, as above."""
    segments = document["segments"]
    places = range(0, len(segments), _WRITTEN_AT_ONCE)
    parts = (json.dumps(segments[at : at + _WRITTEN_AT_ONCE])[1:-1] for at in places)
    before, begin, after = json.dumps(document | {"segments": []}).partition('"segments": [')
    return f"{before}{begin}{', '.join(parts)}{after}"


def prepare(read: ReadTranscript, change: Change) -> PreparedChange:
    """Return what is to be stored of a change: seconds of a processor for a day of speech, and no
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
    """Return what all corrections of a job's tracks replaced, as it is stored."""
    query = select(func.coalesce(func.sum(transcript_revisions.c.size_bytes), 0))
    return int(await connection.scalar(query.where(transcript_revisions.c.job_id == job_id)) or 0)


async def account_history_bytes(connection: Connection, account_id: uuid.UUID) -> int:
    """Return what all corrections of an account's jobs replaced, as it is stored."""
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
    """Return False where the transcript was changed since it was read."""
    read = made.read
    statement = _of(read).where(_VERSION.is_not_distinct_from(read.version))
    document = cast(literal(made.document, Text), JSON)
    stored = await connection.execute(statement.values(document=document, revision=revision))
    if not stored.rowcount:
        return False
    await _edited(connection, read.job_id, StageName.TRANSCRIPT, made.rows)
    return True


async def _edited(
    connection: Connection,
    job_id: uuid.UUID,
    stage: StageName,
    rows: tuple[list[SearchRow], list[SearchRow]],
) -> None:
    change = ResultChange(job_id, frozenset({stage}), Cause.EDITED, rows)
    await result_changed(connection, change)


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
    """Return the document of the ``present`` revision as it was at an earlier one; None where it
    was erased meanwhile. Changes are read a few at a time, and no connection waits while they are
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


_CORRECTED = text(
    """
    SELECT job_id, track_index, pg_column_size(document)
      FROM transcripts JOIN (
           SELECT job_id, track_index, max(revision.created_at) AS corrected_at
             FROM transcript_revisions AS revision JOIN jobs ON jobs.id = job_id
            WHERE account_id = :account_id AND erased_at IS NULL AND NOT source ? 'redact'
            GROUP BY job_id, track_index) AS corrected USING (job_id, track_index)
     WHERE redacted_revision IS NULL AND document IS NOT NULL
     ORDER BY corrected_at DESC LIMIT :most
    """
)


async def list_corrected(
    connection: Connection, account_id: uuid.UUID, *, most: int
) -> list[tuple[uuid.UUID, int, int]]:
    """Return job, track and stored bytes of the transcripts that people corrected last; of no job
    that is redacted, or to be."""
    found = await connection.execute(_CORRECTED, {"account_id": account_id, "most": most})
    return [(job_id, index, size) for job_id, index, size in found]


async def list_revisions(
    connection: Connection, job_id: uuid.UUID, track_index: int, *, before: int, limit: int
) -> list[Revision]:
    """Corrections of a track before a revision, the latest first."""
    query = (
        select(*columns(Revision))
        .where(
            transcript_revisions.c.job_id == job_id,
            transcript_revisions.c.track_index == track_index,
            transcript_revisions.c.revision < before,
        )
        .order_by(transcript_revisions.c.revision.desc())
        .limit(limit)
    )
    return await read(connection, Revision, query)


def prepare_aligned(
    read: ReadTranscript, made: Sequence[tuple[Element, Element]]
) -> PreparedChange:
    """Return what is to be stored to put aligned segments in the place of those that are as they
    were when they were read."""
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


# Redaction.

REDACTION = "redaction"
"""Kind of work."""
MOST_PHRASES = 100_000
"""That are hidden of a job, from where on no correction adds any; a day of speech has a tenth."""
Span = tuple[int, int]
"""Milliseconds of the media."""
Phrase = tuple[int, bytes]
"""How many words it has, and their digest."""


async def request_redaction(
    connection: Connection, job_id: uuid.UUID, kinds: Sequence[str]
) -> None:
    """Make an ended job due for redaction of all these kinds, unless it was erased."""
    merged = jobs.c.source.op("||")(cast({"redact": [*kinds]}, JSONB))
    due = {"redact_after": func.now(), "redact_error": None}
    statement = update(jobs).where(jobs.c.id == job_id, jobs.c.erased_at.is_(None))
    if (await connection.execute(statement.values(source=merged, **due))).rowcount:
        await queue(connection, REDACTION, job_id)


async def list_hidden(connection: Connection, job: JobRecord) -> dict[Phrase, str]:
    """Kinds of the phrases that are hidden in texts of a job; its reruns have the same."""
    query = select(hidden_phrases).where(hidden_phrases.c.job_id == (job.rerun_of or job.id))
    return {(row.words, row.digest): row.kind for row in await connection.execute(query)}


_HIDE = text(
    """
    INSERT INTO hidden_phrases (job_id, words, digest, kind)
    SELECT jobs.id, phrase.* FROM jobs, unnest(
           CAST(:words AS smallint[]), CAST(:digests AS bytea[]), CAST(:kinds AS text[])) AS phrase
     WHERE jobs.id = :job_id AND jobs.erased_at IS NULL
    ON CONFLICT DO NOTHING
    """
)


async def add_hidden(connection: Connection, job: JobRecord, phrases: Mapping[Phrase, str]) -> bool:
    """Hide these in texts to come as well, unless the job was erased; whether any is new."""
    values = {
        "job_id": job.rerun_of or job.id,
        "words": [words for words, _ in phrases],
        "digests": [digest for _, digest in phrases],
        "kinds": [str(kind) for kind in phrases.values()],
    }
    return (await connection.execute(_HIDE, values)).rowcount > 0


async def find_muted(connection: Connection, job_id: uuid.UUID) -> tuple[Span, ...]:
    """When the sound of a job's media is silent, in order; empty unless it was redacted."""
    found = await connection.scalar(select(jobs.c.muted).where(jobs.c.id == job_id))
    return tuple((start, end) for start, end in found or ())


async def store_muted(connection: Connection, job_id: uuid.UUID, muted: Sequence[Span]) -> None:
    """These are all intervals to be silent."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(muted=muted))


async def end_redaction(connection: Connection, held: Held, reason: str | None = None) -> None:
    """The job is redacted; ``reason``: it could not be. Raises WorkLostError."""
    ended = {"redact_after": None, "redact_error": reason}
    await connection.execute(update(jobs).where(jobs.c.id == held.subject_id).values(ended))
    await end(connection, held)


async def replace_scenes(
    connection: Connection,
    job_id: uuid.UUID,
    scenes: Sequence[Mapping[str, Any]],
    overview: Mapping[str, Any] | None,
) -> None:
    """Put redacted scenes in the place of a job's, and of what is found of them."""
    seen = (cast(scene_lists.c.scenes, Text), cast(scene_lists.c.overview, Text))
    query = select(*seen).where(scene_lists.c.job_id == job_id).with_for_update()
    before, whole = (await connection.execute(query)).one()
    rows = (
        [*scene_rows(from_json(before), None if whole is None else from_json(whole))],
        [*scene_rows(scenes, overview)],
    )
    values = {"scenes": scenes, "overview": null() if overview is None else overview}
    await connection.execute(
        update(scene_lists).where(scene_lists.c.job_id == job_id).values(values)
    )
    await _edited(connection, job_id, StageName.VISION, rows)


async def replace_summary(
    connection: Connection, job_id: uuid.UUID, sentences: Sequence[Mapping[str, Any]]
) -> None:
    """Put redacted sentences in the place of a job's summary."""
    statement = update(summaries).where(summaries.c.job_id == job_id)
    await connection.execute(statement.values(sentences=sentences))


async def find_source_key(connection: Connection, job: JobRecord) -> str | None:
    """Return the object of a job's media; None before it is there, once it is erased, or of
    several."""
    if job.state in {JobState.AWAITING_UPLOAD, JobState.CANCELLED, JobState.EXPIRED}:
        return None
    if job.erased_at is not None:
        return None
    if job.source.kind == "upload":
        upload = await find_upload(connection, job.id, MEDIA_SLOT)
        return None if upload is None or upload.completed_at is None else upload.object_key
    if job.source.kind == "url" and len(job.source.clips) == 1:
        return f"{source_prefix(job.id)}/clip-000"
    return None


# Reruns.


@dataclass(frozen=True, slots=True)
class StageBasis:
    """What a completed stage's result was made with; None where it is not known."""

    made_with: str | None
    current: str | None
    """What it would be made with now; None before a runner has started."""

    @property
    def changed(self) -> bool:
        return self.made_with is None or self.made_with != self.current


@dataclass(frozen=True, slots=True)
class RerunBasis:
    """What a rerun of a job depends on."""

    stages: dict[StageName, StageBasis]
    """The analyses that completed."""
    media_kept: bool
    corrected: bool
    """Whether people corrected its transcript, had it redacted, or named a speaker."""
    tracks: int
    open_rerun: uuid.UUID | None


async def publish_versions(connection: Connection, made_with: Mapping[StageName, str]) -> None:
    """Record what the stages are made with from now on; done by each runner when it starts."""
    rows = [{"stage": str(stage), "made_with": made_with[stage]} for stage in sorted(made_with)]
    statement = insert(stage_versions)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["stage"], set_={"made_with": statement.excluded.made_with}
        ),
        rows,
    )


_BASIS = text(
    """
    SELECT (SELECT json_object_agg(stage, json_build_array(s.made_with, v.made_with))
              FROM stages s LEFT JOIN stage_versions v USING (stage)
             WHERE s.job_id = job.id AND s.status = 'completed' AND stage <> 'ingest') AS stages,
           cleaned_at IS NULL AND cleaning_after IS NULL AND ingest_result IS NOT NULL
               AND rerun_of IS NULL AS media_kept,
           EXISTS (SELECT FROM transcripts t WHERE t.job_id = job.id
               AND (t.revision > 0 OR t.redacted_revision IS NOT NULL))
               OR EXISTS (SELECT FROM speaker_labels l
                           WHERE l.job_id = job.id AND l.voice_id IS NULL)
               OR EXISTS (SELECT FROM speaker_voices v
                           WHERE v.job_id = job.id AND v.voice_id IS NOT NULL) AS corrected,
           (SELECT count(*)::int FROM transcripts t WHERE t.job_id = job.id) AS tracks,
           (SELECT id FROM jobs r
             WHERE r.rerun_of = job.id AND r.completed_at IS NULL LIMIT 1) AS open_rerun
      FROM jobs AS job WHERE job.id = :job_id
    """
)


async def get_basis(connection: Connection, job_id: uuid.UUID) -> RerunBasis:
    """Of a job that there is."""
    [row] = await run(connection, _BASIS, job_id=job_id)
    found = {StageName(name): StageBasis(*each) for name, each in (row["stages"] or {}).items()}
    return RerunBasis(**row | {"stages": {at: found[at] for at in ANALYSES if at in found}})


async def find_receipts(connection: Connection, job_id: uuid.UUID) -> dict[StageName, Any]:
    """Return what receipts name of a job's completed stages; those of earlier versions are left
    out."""
    query = select(stages.c.stage, stages.c.receipt).where(
        stages.c.job_id == job_id,
        stages.c.status == StageStatus.COMPLETED,
        stages.c.receipt.is_not(None),
    )
    found = {row.stage: row.receipt for row in await connection.execute(query)}
    return {stage: found[stage] for stage in StageName if found.get(stage) is not None}


async def begin_rerun(connection: Connection, rerun_id: uuid.UUID) -> None:
    """Give a rerun what ingest found for the first job, in place of an ingest of its own."""
    for statement in (_COPY_INGEST, _SKIP_INGEST):
        await connection.execute(statement, {"rerun": rerun_id})


_COPY_INGEST = text(
    "UPDATE jobs AS rerun SET ingest_result = first.ingest_result,"
    " audio_track_names = first.audio_track_names FROM jobs AS first"
    " WHERE rerun.id = :rerun AND first.id = rerun.rerun_of"
)
_SKIP_INGEST = text(
    "UPDATE stages AS rerun SET status = 'completed', progress = 1, ended_at = now(),"
    " indexed = first.indexed, made_with = first.made_with, receipt = first.receipt"
    " FROM stages AS first, jobs WHERE jobs.id = :rerun AND first.job_id = jobs.rerun_of"
    " AND rerun.job_id = jobs.id AND rerun.stage = 'ingest' AND first.stage = 'ingest'"
)


async def list_reruns(connection: Connection, job_id: uuid.UUID) -> list[uuid.UUID]:
    """Return all reruns of a job, the newest first."""
    query = select(jobs.c.id).where(jobs.c.rerun_of == job_id).order_by(jobs.c.created_at.desc())
    return list((await connection.execute(query)).scalars())


async def exchange_results(connection: Connection, rerun: JobRecord) -> None:
    """Have the job and its rerun exchange the results of the stages that the rerun completed.

    In the transaction that ends the rerun. A transcript that was corrected meanwhile, and what
    was erased, stay as they are.
    """
    first = rerun.rerun_of
    await connection.execute(select(jobs.c.id).where(jobs.c.id == first).with_for_update())
    if first is None or await connection.scalar(_IS_ERASED, {"first": first}):
        return
    done = {name for name in ANALYSES if rerun.stages[name].status is StageStatus.COMPLETED}
    if (await get_basis(connection, first)).corrected:
        done.discard(StageName.TRANSCRIPT)
    values = {"first": first, "rerun": rerun.id, "stages": [str(each) for each in done]}
    statements = [each for stage in done for each in _EXCHANGE[stage]]
    for statement in [*statements, *_EXCHANGE_ROWS] if done else ():
        used = {name: values[name] for name in statement.compile().params}
        await connection.execute(statement, used)
    renewed = ResultChange(first, frozenset(done), Cause.RENEWED, rerun_id=rerun.id)
    await result_changed(connection, renewed)


_IS_ERASED = text("SELECT erased_at IS NOT NULL FROM jobs WHERE id = :first")


def _between(statement: str) -> TextClause:
    """Return a statement in which ``both_jobs`` holds for each of the two and the other one."""
    both = "(mine.job_id, theirs.job_id) IN ((:first, :rerun), (:rerun, :first))"
    return text(statement.replace("both_jobs", both))


_EXCHANGE = {
    StageName.VISION: (
        _between(
            "UPDATE scene_lists AS mine SET scenes = theirs.scenes,"
            " scene_count = theirs.scene_count, overview = theirs.overview,"
            " people = theirs.people, fingerprints = theirs.fingerprints"
            " FROM scene_lists AS theirs WHERE both_jobs"
        ),
    ),
    StageName.TRANSCRIPT: (
        _between(
            "UPDATE transcripts AS mine SET status = theirs.status,"
            " error_code = theirs.error_code, language = theirs.language,"
            " document = theirs.document, sound_print = theirs.sound_print"
            " FROM transcripts AS theirs"
            " WHERE both_jobs AND mine.track_index = theirs.track_index"
        ),
        _between(
            "UPDATE summaries AS mine SET sentences = theirs.sentences"
            " FROM summaries AS theirs WHERE both_jobs"
        ),
        # Where one of them has none.
        text(
            "UPDATE summaries SET job_id ="
            " CASE WHEN job_id = :first THEN CAST(:rerun AS uuid) ELSE :first END"
            " WHERE job_id IN (:first, :rerun)"
            " AND 1 = (SELECT count(*) FROM summaries WHERE job_id IN (:first, :rerun))"
        ),
        # What the first job's speakers sounded like is not kept: nothing was learnt from it.
        *(
            text(statement)
            for table in ("speaker_labels", "speaker_voices")
            for statement in (
                f"DELETE FROM {table} WHERE job_id = :first",  # noqa: S608 - two constants
                f"UPDATE {table} SET job_id = :first WHERE job_id = :rerun",  # noqa: S608
            )
        ),
    ),
}
"""What a stage's result is made of."""
_EXCHANGE_ROWS = (
    _between(
        "UPDATE stages AS mine SET made_with = theirs.made_with, timings = theirs.timings,"
        " indexed = theirs.indexed, receipt = theirs.receipt"
        " FROM stages AS theirs WHERE both_jobs"
        " AND mine.stage = theirs.stage AND mine.stage = ANY(:stages)"
    ),
    text(
        "UPDATE jobs AS mine SET warnings = ("
        " SELECT coalesce(jsonb_agg(each), '[]') FROM ("
        "  SELECT each FROM jsonb_array_elements(mine.warnings) AS each"
        "   WHERE coalesce(each ->> 'stage', '') <> ALL(:stages)"
        "  UNION ALL SELECT each FROM jsonb_array_elements(theirs.warnings) AS each"
        "   WHERE each ->> 'stage' = ANY(:stages)) AS together)"
        " FROM jobs AS theirs"
        " WHERE (mine.id, theirs.id) IN ((:first, :rerun), (:rerun, :first))"
    ),
)


async def list_rerun_candidates(
    connection: Connection,
    *,
    account_id: uuid.UUID | None = None,
    job_id: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> list[uuid.UUID]:
    """Completed jobs whose content is there and that are no reruns, the oldest first."""
    conditions = [
        jobs.c.state == JobState.COMPLETED,
        jobs.c.erased_at.is_(None),
        jobs.c.rerun_of.is_(None),
    ]
    if account_id is not None:
        conditions.append(jobs.c.account_id == account_id)
    if job_id is not None:
        conditions.append(cast(jobs.c.id, Text) == job_id)
    if after is not None:
        conditions.append(jobs.c.created_at >= after)
    if before is not None:
        conditions.append(jobs.c.created_at < before)
    query = select(jobs.c.id).where(*conditions).order_by(jobs.c.created_at)
    return list((await connection.execute(query)).scalars())
