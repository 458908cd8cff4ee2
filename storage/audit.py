"""Whether what is stored beside the ledger says what the ledger says: all of it, read anew."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A total that is not the sum of its entries."""

    what: str
    id: str
    stored: int
    by_ledger: int


_DISCREPANCIES = text(
    """
    WITH sums AS (
        SELECT account_id, job_id, refund_id, purchase_id,
               sum(balance_delta_cents) AS balance, sum(hold_delta_cents) AS held
          FROM ledger_entries GROUP BY account_id, job_id, refund_id, purchase_id
    ), totals AS (
        SELECT 'account balance' AS what, id::text AS id, balance_cents AS stored,
               coalesce((SELECT sum(balance) FROM sums WHERE account_id = accounts.id), 0) AS sum
          FROM accounts
        UNION ALL
        SELECT 'account hold', id::text, held_cents,
               coalesce((SELECT sum(held) FROM sums WHERE account_id = accounts.id), 0)
          FROM accounts
        UNION ALL
        SELECT 'job hold', id::text, held_cents,
               coalesce((SELECT sum(held) FROM sums WHERE job_id = jobs.id), 0)
          FROM jobs
        UNION ALL
        SELECT 'job charge', id::text, charged_cents,
               coalesce((SELECT -sum(balance) FROM sums WHERE job_id = jobs.id), 0)
          FROM jobs
        UNION ALL
        SELECT 'purchase', id::text, amount_cents,
               coalesce((SELECT sum(balance) FROM sums WHERE purchase_id = purchases.id), 0)
          FROM purchases
        UNION ALL
        SELECT 'refund', id::text, taken_cents,
               coalesce((SELECT -sum(balance) FROM sums WHERE refund_id = refunds.id), 0)
          FROM refunds
        UNION ALL
        SELECT 'charge of ' || s.stage || ' of job', s.job_id::text,
               CASE WHEN s.status = 'completed'
                    THEN coalesce((j.quote_cents ->> s.stage)::bigint, 0) ELSE 0 END,
               coalesce((SELECT -sum(balance_delta_cents) FROM ledger_entries e
                          WHERE e.job_id = s.job_id AND e.stage = s.stage), 0)
          FROM stages s JOIN jobs j ON j.id = s.job_id
    )
    SELECT what, id, stored::bigint, sum::bigint AS by_ledger FROM totals WHERE stored <> sum
     ORDER BY what, id
    """
)


async def find_discrepancies(connection: AsyncConnection) -> list[Discrepancy]:
    """Everything that does not add up; empty, unless somebody went around the database's rules."""
    rows = (await connection.execute(_DISCREPANCIES)).mappings()
    return [Discrepancy(**row) for row in rows]
