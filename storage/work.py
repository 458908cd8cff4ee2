"""Work beside the jobs: a row for each piece that is due, of whatever kind, until it is done.

A piece is what is to be done to one subject (a job, an archive, a comparison). Whoever does it has
it leased by a token: until ``due_at`` nobody else takes it, and only under the token it ends. Work
that is queued anew while it is done loses its token, so that it is done once more. Accounts take
turns with each kind of work: what one has queued delays nobody else's by more than one piece.

A transaction locks its subject before its work, so that none waits for another in a circle.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, exists, select, text

from storage.database import Connection, Database, run
from storage.records import from_row
from storage.tables import Held, work

__all__ = ["Held"]

WORK_CHANNEL = "vas_work"
"""NOTIFY channel that wakes runners with nothing to do."""
_LEASE_LOCK = 0x7661735F776F726B
"""Held while work is leased ("vas_work"), so that no account gets more than its share at once."""


class WorkLostError(Exception):
    """The work was queued anew or withdrawn, or another has it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a kind of work is leased."""

    kind: str
    lease: timedelta
    per_account: int | None = None
    """How many pieces of an account are done at once; None: any number."""


_QUEUE = text(
    """
    WITH queued AS (
        INSERT INTO work (kind, subject_id, part, account_id)
        SELECT :kind, :subject_id, :part,
               coalesce(:account_id, (SELECT account_id FROM jobs WHERE id = :subject_id))
        ON CONFLICT (kind, subject_id, part) DO UPDATE
           SET due_at = now(), attempts = 0, token = NULL)
    SELECT pg_notify(:channel, '')
    """
).bindparams(channel=WORK_CHANNEL)


async def queue(
    connection: Connection,
    kind: str,
    subject_id: uuid.UUID,
    part: str = "",
    *,
    account_id: uuid.UUID | None = None,
) -> None:
    """Have something done to a subject, once more where it is being done.

    The subject is a job unless ``account_id`` names the owner.
    """
    subject = {"kind": kind, "subject_id": subject_id, "part": part, "account_id": account_id}
    await connection.execute(_QUEUE, subject)


async def withdraw(connection: Connection, subject_id: uuid.UUID) -> None:
    """Have nothing done to a subject any more."""
    await connection.execute(delete(work).where(work.c.subject_id == subject_id))


async def is_queued(connection: Connection, kind: str, subject_id: uuid.UUID) -> bool:
    """Return whether such work of the subject is due or being done."""
    query = select(exists().where(work.c.kind == kind, work.c.subject_id == subject_id))
    return bool(await connection.scalar(query))


_LOCK = text("SELECT pg_advisory_xact_lock(:lock)")
# One row a kind at most, so that the accounts' turns are known anew for each. The owners, with the
# earliest that each has of a kind, are found by a step of the index each, however much is queued.
_LEASE = text(
    """
    WITH RECURSIVE owners AS (
        (SELECT kind, account_id, due_at FROM work ORDER BY kind, account_id, due_at LIMIT 1)
        UNION ALL
        SELECT following.* FROM owners CROSS JOIN LATERAL (
            SELECT kind, account_id, due_at FROM work
             WHERE (kind, account_id) > (owners.kind, owners.account_id)
             ORDER BY kind, account_id, due_at LIMIT 1) AS following),
    terms AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:leases AS interval[]),
                             CAST(:shares AS int[])) AS terms (kind, lease, per_account)),
    due AS (
        SELECT piece.*, terms.lease FROM terms CROSS JOIN LATERAL (
            SELECT first.* FROM (
                SELECT owners.kind, owners.account_id FROM owners
                  LEFT JOIN work_turns USING (kind, account_id)
                 WHERE owners.kind = terms.kind AND owners.due_at <= now()
                   AND (terms.per_account IS NULL OR terms.per_account > (
                        SELECT count(*) FROM work AS held
                         WHERE held.kind = owners.kind AND held.account_id = owners.account_id
                           AND held.token IS NOT NULL AND held.due_at > now()))
                 ORDER BY work_turns.served_at NULLS FIRST, owners.due_at) AS turns
             CROSS JOIN LATERAL (
                SELECT each.kind, each.subject_id, each.part, each.account_id FROM work AS each
                 WHERE each.kind = turns.kind AND each.account_id = turns.account_id
                   AND each.due_at <= now()
                 ORDER BY each.due_at LIMIT 1 FOR UPDATE OF each SKIP LOCKED) AS first
             LIMIT 1) AS piece),
    served AS (
        INSERT INTO work_turns (account_id, kind, served_at)
        SELECT account_id, kind, clock_timestamp() FROM due
            ON CONFLICT (account_id, kind) DO UPDATE SET served_at = excluded.served_at),
    leased AS (
        UPDATE work AS each
           SET token = gen_random_uuid(), attempts = attempts + 1, due_at = now() + due.lease
          FROM due
         WHERE (each.kind, each.subject_id, each.part) = (due.kind, due.subject_id, due.part)
        RETURNING each.kind, each.subject_id, each.part, each.account_id, each.attempts, each.token)
    SELECT leased.*, next.seconds
      FROM (SELECT extract(epoch FROM min(due_at) - now())::float AS seconds
              FROM owners JOIN terms USING (kind) WHERE due_at > now()) AS next
      LEFT JOIN leased ON true
    """
)


async def lease_next(database: Database, terms: Sequence[Terms]) -> tuple[list[Held], float | None]:
    """Lease a piece of each kind that is due, and return them.

    Returns also in how many seconds the next one is due of accounts with none that is; None where
    there is none.
    """
    values = {
        "kinds": [each.kind for each in terms],
        "leases": [each.lease for each in terms],
        "shares": [each.per_account for each in terms],
    }
    async with database.transaction() as connection:
        await connection.execute(_LOCK, {"lock": _LEASE_LOCK})
        rows = await run(connection, _LEASE, **values)
    seconds: float | None = rows[0]["seconds"]
    return [from_row(Held, row) for row in rows if row["token"]], seconds


_IS_HELD = "(kind, subject_id, part, token) = (:kind, :subject_id, :part, :token)"
_EXTEND = text(f"UPDATE work SET due_at = now() + :lease WHERE {_IS_HELD}")  # noqa: S608
_END = text(f"DELETE FROM work WHERE {_IS_HELD}")  # noqa: S608
_PUT_OFF = text(
    f"""
    UPDATE work SET token = NULL, due_at = now() + :pause,
           attempts = CASE WHEN :counts THEN attempts ELSE attempts - 1 END
     WHERE {_IS_HELD}
    """  # noqa: S608
)


async def extend(connection: Connection, held: Held, lease: timedelta) -> None:
    """Keep the lease for so long from now. Raises WorkLostError."""
    if not (await connection.execute(_EXTEND, {**_names(held), "lease": lease})).rowcount:
        raise WorkLostError(held)


async def end(connection: Connection, held: Held) -> None:
    """Remove work that is done, in the transaction that stores its result.

    Raises WorkLostError: nothing of the transaction must stay then.
    """
    if not (await connection.execute(_END, _names(held))).rowcount:
        raise WorkLostError(held)


async def put_off(
    connection: Connection, held: Held, pause: timedelta, *, counts: bool = False
) -> None:
    """Leave work to whoever leases it after a pause; the attempt ``counts``, or it does not.

    Raises WorkLostError.
    """
    values = {**_names(held), "pause": pause, "counts": counts}
    if not (await connection.execute(_PUT_OFF, values)).rowcount:
        raise WorkLostError(held)


def _names(held: Held) -> dict[str, object]:
    names = ("kind", "subject_id", "part", "token")
    return {name: getattr(held, name) for name in names}


async def adopt(connection: Connection) -> None:
    """Take over what version 0.3.0 has queued, which may be at work beside this one."""
    await connection.execute(text("SELECT adopt_work()"))
