"""Translations of transcripts: a row for each language that was requested.

Whoever makes one has it leased; a maker that is lost leaves it to the next.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping, Text, bindparam, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection, Database
from storage.tables import translations
from storage.turns import in_turns
from storage.types import TranslationStatus

MAX_ATTEMPTS = 3
"""A translation whose maker was lost this often is given up."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What became of a translation; ``reason`` is why there is none."""

    language: str
    status: TranslationStatus
    reason: str | None
    price_cents: int
    capped_key_id: uuid.UUID | None
    """The key whose cap of a month the price counts for."""
    source: str
    """Versions of the transcripts that it was made of, or is to be."""
    created_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class LeasedTranslation:
    """A translation to make; only the holder of ``token`` may record its end."""

    job_id: uuid.UUID
    language: str
    attempts: int
    token: uuid.UUID


def _shown(row: RowMapping) -> Translation:
    return Translation(**{**row, "status": TranslationStatus(row["status"])})


_SHOWN = [translations.c[name] for name in Translation.__dataclass_fields__]


_QUEUED: Mapping[str, object] = {
    "status": TranslationStatus.PENDING,
    "reason": None,
    "documents": None,
    "attempts": 0,
    "created_at": func.now(),
    "completed_at": None,
    "lease_token": None,
    "lease_expires_at": None,
}


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
    return _shown((await connection.execute(statement.returning(*_SHOWN))).mappings().one())


async def make_again(connection: Connection, job_id: uuid.UUID, source: str) -> None:
    """Queue all of a job anew, for the price that was paid; what was made is gone."""
    statement = update(translations).where(translations.c.job_id == job_id)
    await connection.execute(statement.values({"source": source, **_QUEUED}))


async def list_translations(connection: Connection, job_id: uuid.UUID) -> list[Translation]:
    """All of a job, by language."""
    query = select(*_SHOWN).where(translations.c.job_id == job_id).order_by(translations.c.language)
    return [_shown(row) for row in (await connection.execute(query)).mappings()]


async def find_translation(
    connection: Connection, job_id: uuid.UUID, language: str
) -> Translation | None:
    """One of a job; None where it was not requested."""
    query = select(*_SHOWN).where(
        translations.c.job_id == job_id, translations.c.language == language
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _shown(row)


async def find_translated(
    connection: Connection, job_id: uuid.UUID, language: str, track_index: int
) -> str | None:
    """The transcript of a track in the language, a TranscriptResult as ``pipelines.codec`` writes
    it; None where there is none."""
    document = cast(translations.c.documents[str(track_index)], Text)
    query = select(document).where(
        translations.c.job_id == job_id, translations.c.language == language
    )
    found: str | None = await connection.scalar(query)
    return found


_LEASE = in_turns(
    "translation",
    due="""
    SELECT each.job_id, each.language, jobs.account_id
      FROM translations AS each JOIN jobs ON jobs.id = each.job_id
     WHERE status = 'pending' AND (each.lease_expires_at IS NULL OR each.lease_expires_at < now())
     ORDER BY {turn}, each.created_at LIMIT 1 FOR UPDATE OF each SKIP LOCKED
    """,
    lease="""
    UPDATE translations AS leased SET
        attempts = attempts + 1, lease_token = gen_random_uuid(), lease_expires_at = now() + :lease
      FROM due WHERE (leased.job_id, leased.language) = (due.job_id, due.language)
    RETURNING leased.job_id, leased.language, attempts, lease_token AS token
    """,
)


async def lease_next_translation(
    database: Database, *, lease: timedelta
) -> LeasedTranslation | None:
    """Lease the oldest pending one of the account whose turn it is; None where none is."""
    rows = await database.query(_LEASE, lease=lease)
    return LeasedTranslation(**rows[0]) if rows else None


_HELD = (translations.c.job_id == bindparam("of_job")) & (
    translations.c.lease_token == bindparam("token")
)


async def extend_translation(
    connection: Connection, held: LeasedTranslation, *, lease: timedelta
) -> bool:
    """Keep the lease; False where it was lost, or the job is erased."""
    statement = update(translations).where(_HELD).values(lease_expires_at=func.now() + lease)
    return await _changed(connection, statement, held)


async def end_translation(
    connection: Connection,
    held: LeasedTranslation,
    documents: Mapping[int, Any] | None,
    reason: str | None = None,
) -> Translation | None:
    """Store it, or why there is none; None where somebody else has the lease."""
    status = TranslationStatus.COMPLETED if reason is None else TranslationStatus.FAILED
    statement = (
        update(translations)
        .where(_HELD)
        .values(
            status=status,
            reason=reason,
            documents=None if documents is None else {str(at): it for at, it in documents.items()},
            completed_at=func.now(),
            lease_token=None,
            lease_expires_at=None,
        )
        .returning(*_SHOWN)
    )
    values = {"of_job": held.job_id, "token": held.token}
    row = (await connection.execute(statement, values)).mappings().one_or_none()
    return None if row is None else _shown(row)


async def give_back_translation(connection: Connection, held: LeasedTranslation) -> None:
    """Leave it to another; the attempt does not count."""
    statement = (
        update(translations)
        .where(_HELD)
        .values(lease_token=None, lease_expires_at=None, attempts=translations.c.attempts - 1)
    )
    await _changed(connection, statement, held)


async def _changed(connection: Connection, statement: Any, held: LeasedTranslation) -> bool:
    values = {"of_job": held.job_id, "token": held.token}
    return bool((await connection.execute(statement, values)).rowcount)
