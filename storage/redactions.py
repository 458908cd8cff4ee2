"""Redaction: what of a job is hidden, and when its sound is silent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Text, cast, func, null, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from storage.database import Connection
from storage.job_records import JobRecord
from storage.search_index import index_once, replace_rows, scene_rows
from storage.tables import hidden_phrases, jobs, scene_lists, summaries
from storage.types import JobState, StageName
from storage.uploads import MEDIA_SLOT, find_upload, source_prefix
from storage.work import Held, end, queue

KIND = "redaction"
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
        await queue(connection, KIND, job_id)


async def list_hidden(connection: Connection, job: JobRecord) -> dict[Phrase, str]:
    """Kinds of the phrases that are hidden in texts of a job; its reruns have the same."""
    query = select(hidden_phrases).where(hidden_phrases.c.job_id == (job.rerun_of or job.id))
    rows = await connection.execute(query)
    return {(row.words, row.digest): row.kind for row in rows}


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
    """These are all stretches to be silent."""
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
    rows = [
        [*scene_rows(from_json(before), None if whole is None else from_json(whole))],
        [*scene_rows(scenes, overview)],
    ]
    values = {"scenes": scenes, "overview": null() if overview is None else overview}
    await connection.execute(
        update(scene_lists).where(scene_lists.c.job_id == job_id).values(values)
    )
    if not await index_once(connection, job_id, StageName.VISION):
        await replace_rows(connection, job_id, *rows, stage=StageName.VISION)


async def replace_summary(
    connection: Connection, job_id: uuid.UUID, sentences: Sequence[Mapping[str, Any]]
) -> None:
    """Put redacted sentences in the place of a job's summary."""
    statement = update(summaries).where(summaries.c.job_id == job_id)
    await connection.execute(statement.values(sentences=sentences))


async def find_source_key(connection: Connection, job: JobRecord) -> str | None:
    """The object of a job's media; None before it is there, once it is erased, or of several."""
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
