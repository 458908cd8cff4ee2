"""Metrics of the whole database, at a cost that does not grow with it.

Unfinished jobs, open events and accounts are counted by indexes that hold only
those. The ledger only grows, so it is summed once, and then what has been added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import text

from storage.database import Database
from storage.types import LEDGER_SIGNS, UNFINISHED_STATES, LedgerKind

_COUNTS = text(
    """
    SELECT (SELECT coalesce(json_object_agg(state, jobs), '{}')
              FROM (SELECT state, count(*) AS jobs FROM jobs
                     WHERE completed_at IS NULL GROUP BY state) AS unfinished
           ) AS unfinished,
           (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8
              FROM jobs WHERE state = 'queued') AS queue_age_seconds,
           (SELECT count(*) FROM webhook_events
             WHERE status IN ('in_flight', 'pending_retry')) AS open_webhooks,
           coalesce(sum(balance_cents), 0)::bigint AS balance_cents,
           coalesce(sum(held_cents), 0)::bigint AS held_cents
      FROM accounts
    """
)

_SETTLED = text(
    """
    WITH newest AS (
        SELECT id, created_at FROM ledger_entries
         WHERE id > :after ORDER BY id DESC LIMIT 200000
    ), settling AS (
        SELECT min(id) AS first FROM newest
         WHERE created_at >= now() - make_interval(secs => :seconds)
    )
    SELECT coalesce(max(id), :after)::bigint AS last_id
      FROM newest, settling WHERE first IS NULL OR id < first
    """
)

_LEDGER = text(
    """
    SELECT kind, count(*) AS entries,
           sum(CASE WHEN balance_delta_cents = 0 THEN hold_delta_cents
                    ELSE balance_delta_cents END)::bigint AS cents
      FROM ledger_entries WHERE id > :after AND id <= :last GROUP BY kind
    """
)

_ENTRIES_AT_ONCE = 500_000
"""Bounds each statement, however long the ledger is at the first count."""

SETTLING_SECONDS = 60.0
"""Entries are numbered before they are committed: one with a lower number may appear until every
transaction open at that moment has ended. None takes so long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The database at one moment."""

    unfinished_jobs: dict[str, int]
    """Every unfinished state, with 0 where there is none."""
    queue_age_seconds: float
    open_webhooks: int
    balance_cents: int
    held_cents: int


async def count_now(database: Database) -> Counts:
    """Count what is unfinished, and sum up what accounts own."""
    [row] = await database.query(_COUNTS)
    return Counts(
        unfinished_jobs={str(state): 0 for state in UNFINISHED_STATES} | row["unfinished"],
        queue_age_seconds=row["queue_age_seconds"],
        open_webhooks=row["open_webhooks"],
        balance_cents=row["balance_cents"],
        held_cents=row["held_cents"],
    )


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """The ledger's entries up to a number: how many of each kind, and their sum.

    Sums are of what the kind is about: cents charged, held, released, granted, all
    positive; adjustments with their sign.
    """

    last_id: int = 0
    by_kind: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {str(kind): (0, 0) for kind in LedgerKind}
    )


async def count_ledger(
    database: Database, known: LedgerTotals, *, settling_seconds: float = SETTLING_SECONDS
) -> LedgerTotals:
    """``known`` with what has been added since, but for the last minute's entries."""
    [settled] = await database.query(_SETTLED, after=known.last_id, seconds=settling_seconds)
    last_id: int = settled["last_id"]
    while known.last_id < last_id:
        known = await _count_some(database, known, min(last_id, known.last_id + _ENTRIES_AT_ONCE))
    return known


async def _count_some(database: Database, known: LedgerTotals, last_id: int) -> LedgerTotals:
    by_kind = dict(known.by_kind)
    for row in await database.query(_LEDGER, after=known.last_id, last=last_id):
        kind = LedgerKind(row["kind"])
        entries, cents = by_kind[kind]
        by_kind[kind] = (entries + row["entries"], cents + _sign(kind) * row["cents"])
    return LedgerTotals(last_id, by_kind)


def _sign(kind: LedgerKind) -> int:
    """-1 for kinds whose entries are negative by nature."""
    return -1 if -1 in LEDGER_SIGNS.get(kind, ()) else 1
