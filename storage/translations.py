"""Translations of transcripts: a row for each language that was requested."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Text, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection
from storage.records import columns, read, read_one
from storage.results import transcript_versions
from storage.tables import Translation, translations
from storage.types import Cause, ResultChange, TranslationStatus
from storage.work import Held, end, queue

KIND = "translation"
"""Of work; the language is its part."""


_QUEUED: Mapping[str, object] = {
    "status": TranslationStatus.PENDING,
    "reason": None,
    "documents": None,
    "created_at": func.now(),
    "completed_at": None,
}


async def source_of(connection: Connection, job_id: uuid.UUID) -> str:
    """Return the versions of a job's transcripts, which its translations are made of."""
    versions = await transcript_versions(connection, job_id)
    return " ".join(f"{index}:{version}" for index, version in versions)


async def queue_translation(
    connection: Connection,
    job_id: uuid.UUID,
    language: str,
    *,
    price_cents: int,
    capped_key_id: uuid.UUID | None,
    source: str,
) -> Translation:
    """Queue a translation, another one in the place of one that is there."""
    fresh = {"price_cents": price_cents, "capped_key_id": capped_key_id, "source": source}
    statement = insert(translations).values(job_id=job_id, language=language, **fresh)
    again = {**fresh, **_QUEUED}
    statement = statement.on_conflict_do_update(
        index_elements=[translations.c.job_id, translations.c.language], set_=again
    )
    [queued] = await read(connection, Translation, statement.returning(*columns(Translation)))
    await queue(connection, KIND, job_id, language)
    return queued


async def follow(connection: Connection, change: ResultChange) -> None:
    """Queue all of a redacted job anew, for the price that was paid; what was made is gone."""
    job_id, own = change.job_id, translations.c.job_id == change.job_id
    if change.cause is Cause.ERASED:
        await connection.execute(delete(translations).where(own))
    if change.cause is not Cause.REDACTED:
        return
    statement, source = update(translations).where(own), await source_of(connection, job_id)
    again = statement.values({"source": source, **_QUEUED}).returning(translations.c.language)
    for language in sorted((await connection.execute(again)).scalars()):
        await queue(connection, KIND, job_id, language)


async def list_translations(connection: Connection, job_id: uuid.UUID) -> list[Translation]:
    """Return all of a job, by language."""
    query = select(*columns(Translation)).where(translations.c.job_id == job_id)
    return await read(connection, Translation, query.order_by(translations.c.language))


async def find_translation(
    connection: Connection, job_id: uuid.UUID, language: str
) -> Translation | None:
    """Return one of a job; None where it was not requested."""
    found = await list_translations(connection, job_id)
    return next((each for each in found if each.language == language), None)


async def find_translated(
    connection: Connection, job_id: uuid.UUID, language: str, track_index: int
) -> str | None:
    """Return the transcript of a track in the language, a TranscriptResult as ``pipelines.codec``
    writes it; None where there is none."""
    document = cast(translations.c.documents[str(track_index)], Text)
    query = select(document).where(
        translations.c.job_id == job_id, translations.c.language == language
    )
    found: str | None = await connection.scalar(query)
    return found


async def end_translation(
    connection: Connection,
    held: Held,
    documents: Mapping[int, Any] | None,
    reason: str | None = None,
) -> Translation | None:
    """Store it, or why there is none; None where it is not pending any more.

    Raises WorkLostError.
    """
    await end(connection, held)
    status = TranslationStatus.COMPLETED if reason is None else TranslationStatus.FAILED
    statement = (
        update(translations)
        .where(
            translations.c.job_id == held.subject_id,
            translations.c.language == held.part,
            translations.c.status == TranslationStatus.PENDING,
        )
        .values(
            status=status,
            reason=reason,
            documents=None if documents is None else {str(at): it for at, it in documents.items()},
            completed_at=func.now(),
            # What versions before this one hold a translation by.
            lease_token=None,
            lease_expires_at=None,
        )
        .returning(*columns(Translation))
    )
    return await read_one(connection, Translation, statement)
