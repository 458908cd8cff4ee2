"""Comparisons of two jobs of an account: a row a pair, made by whoever has it leased.

One that nobody waits for any more is not made; what was made is kept for a while, or until one of
its jobs is erased or redacted.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, bindparam, cast, delete, func, or_, select, text, update

from storage.database import Connection, Database
from storage.tables import comparisons
from storage.types import ComparisonState

MAX_ATTEMPTS = 3
"""A comparison whose maker was lost this often, or whose jobs changed meanwhile, is given up."""
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
class CutComparison:
    """What became of a comparison."""

    id: uuid.UUID
    before_id: uuid.UUID
    after_id: uuid.UUID
    state: ComparisonState
    error: Mapping[str, Any] | None
    """The code, the message and what else the API answers with."""
    created_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class LeasedCuts:
    """A comparison to make; only the holder of ``token`` may record its end."""

    id: uuid.UUID
    account_id: uuid.UUID
    before_id: uuid.UUID
    after_id: uuid.UUID
    source: str
    """Versions of the results that it is to be made of."""
    attempts: int
    token: uuid.UUID


_SHOWN = [comparisons.c[name] for name in CutComparison.__dataclass_fields__]
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
    RETURNING id, state = 'pending' OR source = {_SOURCE}
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
    return comparison_id


async def find_comparison(
    connection: Connection, account_id: uuid.UUID, comparison_id: uuid.UUID
) -> CutComparison | None:
    """One of the account's, for which somebody waits thereby; None once it is not kept."""
    statement = (
        update(comparisons)
        .where(comparisons.c.id == comparison_id, comparisons.c.account_id == account_id, _IS_KEPT)
        .values(asked_at=func.now())
        .returning(*_SHOWN)
    )
    row = (await connection.execute(statement)).mappings().one_or_none()
    return None if row is None else CutComparison(**{**row, "state": ComparisonState(row["state"])})


_IS_KEPT = or_(
    (comparisons.c.state == ComparisonState.PENDING)
    & (comparisons.c.asked_at > func.now() - WAITED),
    comparisons.c.completed_at > func.now() - KEPT,
)


async def get_document(connection: Connection, comparison_id: uuid.UUID) -> str | None:
    """What was made, as JSON text."""
    query = select(cast(comparisons.c.document, Text)).where(comparisons.c.id == comparison_id)
    found: str | None = await connection.scalar(query)
    return found


# Accounts take turns: the one that had none for longest is next, with its oldest.
_LEASE = text(
    """
    UPDATE comparisons SET
        attempts = attempts + 1, lease_token = gen_random_uuid(), leased_at = now(),
        lease_expires_at = now() + :lease
     WHERE id = (
           SELECT id FROM comparisons AS due
            WHERE state = 'pending' AND asked_at > now() - :waited
              AND (lease_expires_at IS NULL OR lease_expires_at < now())
            ORDER BY (SELECT max(leased_at) FROM comparisons AS former
                       WHERE former.account_id = due.account_id) NULLS FIRST, created_at
            LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, account_id, before_id, after_id, source, attempts, lease_token AS token
    """
)


async def lease_next(database: Database, *, lease: timedelta) -> LeasedCuts | None:
    """Lease the one whose turn it is; None where somebody waits for none."""
    rows = await database.query(_LEASE, lease=lease, waited=WAITED)
    return LeasedCuts(**rows[0]) if rows else None


_EXTEND = text(
    """
    UPDATE comparisons SET lease_expires_at = now() + :lease
     WHERE id = :id AND lease_token = :token AND asked_at > now() - :waited RETURNING id
    """
)


async def extend(database: Database, held: LeasedCuts, *, lease: timedelta) -> bool:
    """Keep the lease; False where it was lost, or nobody waits for the comparison any more."""
    rows = await database.query(_EXTEND, lease=lease, id=held.id, token=held.token, waited=WAITED)
    return bool(rows)


_IS_SAME = text(f"SELECT :source = {_SOURCE}")
_HELD = (comparisons.c.id == bindparam("of_id")) & (
    comparisons.c.lease_token == bindparam("of_token")
)


async def end(
    connection: Connection,
    held: LeasedCuts,
    document: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """Store it, or why there is none; False where the lease was lost, or a job was changed, so that
    it is to be made again."""
    pair = {"before_id": held.before_id, "after_id": held.after_id}
    locks = "SELECT 1 FROM {} WHERE job_id IN (:before_id, :after_id) FOR SHARE"
    for table in ("scene_lists", "transcripts"):
        await connection.execute(text(locks.format(table)), pair)
    if error is None and not await connection.scalar(_IS_SAME, pair | {"source": held.source}):
        await give_back(connection, held, counts=True)
        return False
    ended = {"document": document} if error is None else {"error": error}
    state = ComparisonState.COMPLETED if error is None else ComparisonState.FAILED
    return await _change(connection, held, state=state, completed_at=func.now(), **ended)


_SET_SOURCE = text(
    f"UPDATE comparisons SET source = {_SOURCE} WHERE id = :id AND lease_token = :token"  # noqa: S608
)


async def give_back(connection: Connection, held: LeasedCuts, *, counts: bool) -> None:
    """Leave it to another; the attempt ``counts``, or it does not."""
    values = {"id": held.id, "token": held.token}
    pair = {"before_id": held.before_id, "after_id": held.after_id}
    await connection.execute(_SET_SOURCE, values | pair)
    await _change(connection, held, attempts=held.attempts - (0 if counts else 1))


async def _change(connection: Connection, held: LeasedCuts, **values: Any) -> bool:
    statement = update(comparisons).where(_HELD)
    statement = statement.values(lease_token=None, lease_expires_at=None, **values)
    named = {"of_id": held.id, "of_token": held.token}
    return bool((await connection.execute(statement, named)).rowcount)


async def forget_of_job(connection: Connection, job_id: uuid.UUID) -> None:
    """Remove those that were made of a job, which is erased or redacted."""
    of_job = or_(comparisons.c.before_id == job_id, comparisons.c.after_id == job_id)
    await connection.execute(delete(comparisons).where(of_job))


async def forget_old(connection: Connection) -> None:
    """Delete those that are not kept any more."""
    await connection.execute(delete(comparisons).where(~_IS_KEPT))
