"""Comparisons of two jobs of an account: a row a pair.

One that nobody waits for any more is not made; what was made is kept for a while, or until one of
its jobs is erased or redacted.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, cast, delete, func, or_, select, text, update

from storage.database import Connection
from storage.records import columns, read_one
from storage.tables import CutComparison, comparisons
from storage.types import Cause, ComparisonState, ResultChange
from storage.work import Held, is_queued, put_off, queue
from storage.work import end as end_work

KIND = "comparison"
MOST_PENDING = 4
"""Of an account."""
MOST_KEPT = 50
"""Of an account, with those that are pending."""
WAITED = timedelta(minutes=2)
"""So long after it was last requested or read nobody waits for a comparison any more."""
FAILED = timedelta(minutes=1)
"""A comparison that failed is not made again sooner."""
KEPT = timedelta(hours=1)
"""How long a comparison is kept after its end."""


class TooManyComparisonsError(Exception):
    """The account waits for as many as it may."""


@dataclass(frozen=True, slots=True)
class CutPair:
    """The jobs of a comparison to make."""

    account_id: uuid.UUID
    before_id: uuid.UUID
    after_id: uuid.UUID
    source: str
    """Versions of the results that it is to be made of."""


_SOURCE = """
    (SELECT coalesce(string_agg(version, ' ' ORDER BY version), '') FROM (
        SELECT concat(job_id, ':', xmin) AS version FROM scene_lists
         WHERE job_id IN (:before_id, :after_id)
        UNION ALL
        SELECT concat(job_id, '/', track_index, ':', xmin) FROM transcripts
         WHERE job_id IN (:before_id, :after_id)) AS results)
"""
_QUEUE = text(
    f"""
    INSERT INTO comparisons AS c (account_id, before_id, after_id, source)
    VALUES (:account_id, :before_id, :after_id, {_SOURCE})
    ON CONFLICT (account_id, before_id, after_id) DO UPDATE SET asked_at = now()
    RETURNING id, state = 'pending' AS is_pending, state = 'pending' OR source = {_SOURCE}
          AND completed_at > now() - CASE state WHEN 'failed' THEN :failed ELSE :kept END AS is_good
    """  # noqa: S608  (constants of this module)
)
_COUNT = text(
    "SELECT count(*) FROM comparisons WHERE account_id = :account_id AND state = 'pending'"
    " AND asked_at > now() - :waited"
)
_DROP_OLDEST = text(
    """
    DELETE FROM comparisons WHERE id IN (
        SELECT id FROM comparisons WHERE account_id = :account_id
         ORDER BY created_at DESC OFFSET :most)
    """
)


async def queue_comparison(
    connection: Connection, account_id: uuid.UUID, before_id: uuid.UUID, after_id: uuid.UUID
) -> uuid.UUID:
    """Queue a comparison and return its id: that of one of the same results, if there is one.

    Raises TooManyComparisonsError.
    """
    pair = {"account_id": account_id, "before_id": before_id, "after_id": after_id}
    terms = pair | {"failed": FAILED, "kept": KEPT}
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended('comparisons ' || :account, 0))")
    await connection.execute(lock, {"account": str(account_id)})
    found = (await connection.execute(_QUEUE, terms)).one()
    if not found.is_good:
        await connection.execute(delete(comparisons).where(comparisons.c.id == found.id))
        found = (await connection.execute(_QUEUE, terms)).one()
    pending = await connection.scalar(_COUNT, {"account_id": account_id, "waited": WAITED})
    if pending > MOST_PENDING:
        raise TooManyComparisonsError
    await connection.execute(_DROP_OLDEST, {"account_id": account_id, "most": MOST_KEPT})
    comparison_id: uuid.UUID = found.id
    if found.is_pending and not await is_queued(connection, KIND, comparison_id):
        await queue(connection, KIND, comparison_id, account_id=account_id)
    return comparison_id


async def find_comparison(
    connection: Connection, account_id: uuid.UUID, comparison_id: uuid.UUID
) -> CutComparison | None:
    """Return one of the account's, for which somebody waits thereby; None once it is not kept."""
    statement = (
        update(comparisons)
        .where(comparisons.c.id == comparison_id, comparisons.c.account_id == account_id, _IS_KEPT)
        .values(asked_at=func.now())
        .returning(*columns(CutComparison))
    )
    return await read_one(connection, CutComparison, statement)


_IS_KEPT = or_(
    (comparisons.c.state == ComparisonState.PENDING)
    & (comparisons.c.asked_at > func.now() - WAITED),
    comparisons.c.completed_at > func.now() - KEPT,
)


async def get_document(connection: Connection, comparison_id: uuid.UUID) -> str | None:
    """Return what was made, as JSON text."""
    query = select(cast(comparisons.c.document, Text)).where(comparisons.c.id == comparison_id)
    found: str | None = await connection.scalar(query)
    return found


async def is_wanted(connection: Connection, held: Held) -> bool:
    """Return whether somebody waits for a comparison still."""
    query = select(comparisons.c.id).where(
        comparisons.c.id == held.subject_id, comparisons.c.asked_at > func.now() - WAITED
    )
    return await connection.scalar(query) is not None


_SOURCE_OF_ROW = _SOURCE.replace(":before_id", "before_id").replace(":after_id", "after_id")
_BEGIN = text(
    f"""
    UPDATE comparisons SET source = {_SOURCE_OF_ROW} WHERE id = :id AND state = 'pending'
    RETURNING account_id, before_id, after_id, source
    """  # noqa: S608
)


async def begin(connection: Connection, held: Held) -> CutPair | None:
    """The jobs to compare as they are now; None where nothing is to be compared any more."""
    return await read_one(connection, CutPair, _BEGIN, id=held.subject_id)


_IS_SAME = text(f"SELECT :source = {_SOURCE}")


async def end(
    connection: Connection,
    held: Held,
    pair: CutPair | None,
    document: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None = None,
) -> None:
    """Store it, or why there is none; where one of the jobs was changed it is to be made again.

    Raises WorkLostError.
    """
    if pair is not None and error is None:
        names = {"before_id": pair.before_id, "after_id": pair.after_id}
        locks = "SELECT 1 FROM {} WHERE job_id IN (:before_id, :after_id) FOR SHARE"
        for table in ("scene_lists", "transcripts"):
            await connection.execute(text(locks.format(table)), names)
        if not await connection.scalar(_IS_SAME, names | {"source": pair.source}):
            await put_off(connection, held, timedelta(0), counts=True)
            return
    await end_work(connection, held)
    ended = {"document": document} if error is None else {"error": error}
    state = ComparisonState.COMPLETED if error is None else ComparisonState.FAILED
    statement = update(comparisons).where(comparisons.c.id == held.subject_id)
    await connection.execute(statement.values(state=state, completed_at=func.now(), **ended))


async def follow(connection: Connection, change: ResultChange) -> None:
    """Remove those that were made of a job which is redacted or erased."""
    if change.cause in {Cause.REDACTED, Cause.ERASED}:
        own = change.job_id
        of_job = or_(comparisons.c.before_id == own, comparisons.c.after_id == own)
        await connection.execute(delete(comparisons).where(of_job))


async def forget_old(connection: Connection) -> None:
    """Delete those that are not kept any more."""
    await connection.execute(delete(comparisons).where(~_IS_KEPT))
