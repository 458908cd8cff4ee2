"""The ledger: append-only entries; triggers keep the running totals (see migrations).

Every function takes the caller's transaction. The database refuses a balance below its limit, a
hold that is not covered, a charge beyond a hold, a second charge, and a charge for a stage that is
not completed. Locks are taken in the order job, account, refunds.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Integer, cast, exists, insert, select, text

from storage.database import Connection, run
from storage.keys import lock_account
from storage.money_tables import ledger_entries, refunds
from storage.tables import accounts, jobs
from storage.translations import Translation
from storage.types import LedgerKind, StageName
from storage.usage import Month


class InsufficientCreditsError(Exception):
    """The account's available credits do not cover it, or the cap of the key that created the job
    does not."""


# The lock makes the condition hold for the row as it is by then, as the CHECK of accounts has it;
# the cap of a key counts what its jobs of the month and other requests cost: whoever spends has
# locked the account before.
_APPEND_COVERED = text(
    """
    INSERT INTO ledger_entries
           (account_id, kind, balance_delta_cents, hold_delta_cents, job_id, reason, capped_key_id)
    SELECT id, :kind, CAST(:balance_delta_cents AS bigint), CAST(:hold_delta_cents AS bigint),
           CAST(:job_id AS uuid), :reason, CAST(:capped_key_id AS uuid)
      FROM (SELECT id FROM accounts
             WHERE id = :account_id
               AND balance_cents + :balance_delta_cents - held_cents - :hold_delta_cents
                   >= -(CASE WHEN pay_as_you_go THEN credit_limit_cents ELSE 0 END)
               FOR NO KEY UPDATE) AS covering
     WHERE NOT EXISTS (
           SELECT FROM (SELECT capped_key_id, created_at FROM jobs WHERE id = CAST(:job_id AS uuid)
                        UNION ALL SELECT CAST(:capped_key_id AS uuid), now()) AS spent
             JOIN api_keys k ON k.id = spent.capped_key_id,
                  date_trunc('month', spent.created_at, 'UTC') AS month
            WHERE :hold_delta_cents > :balance_delta_cents
              AND k.max_monthly_cents < :hold_delta_cents - :balance_delta_cents + (
                  SELECT coalesce(sum(charged_cents + held_cents), 0) FROM jobs
                   WHERE capped_key_id = k.id AND created_at >= month
                     AND created_at < month + interval '1 month') - (
                  SELECT coalesce(sum(balance_delta_cents), 0) FROM ledger_entries
                   WHERE capped_key_id = k.id AND created_at >= month
                     AND created_at < month + interval '1 month'))
    RETURNING id
    """
)


async def grant(
    connection: Connection, account_id: uuid.UUID, amount_cents: int, reason: str
) -> None:
    """Give credits; ``amount_cents`` must be positive."""
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.GRANT,
        balance_delta_cents=amount_cents,
        reason=reason,
    )
    await settle_refunds(connection, account_id)


async def adjust(
    connection: Connection,
    account_id: uuid.UUID,
    amount_cents: int,
    reason: str,
    *,
    capped_key_id: uuid.UUID | None = None,
) -> None:
    """Correct a balance by ``amount_cents`` of either sign; the key's cap of the month counts it.

    Raises InsufficientCreditsError, changing nothing, if it would take more
    than is available, or than the key may use.
    """
    await _append_covered(
        connection,
        account_id,
        LedgerKind.ADJUSTMENT,
        reason,
        balance_delta_cents=amount_cents,
        capped_key_id=capped_key_id,
    )
    if amount_cents > 0:
        await settle_refunds(connection, account_id)


async def refund_translation(
    connection: Connection, account_id: uuid.UUID, job_id: uuid.UUID, charged: Translation
) -> None:
    """Give the price back of a translation that is not made; of this month to its key's cap too."""
    if charged.price_cents == 0:
        return
    this_month = Month.of(charged.created_at) == Month.of(datetime.now(UTC))
    await adjust(
        connection,
        account_id,
        charged.price_cents,
        f"no translation of {job_id} into {charged.language}",
        capped_key_id=charged.capped_key_id if this_month else None,
    )


async def hold(
    connection: Connection,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    amount_cents: int,
    reason: str,
) -> None:
    """Hold ``amount_cents`` more for a job; raises InsufficientCreditsError, changing nothing."""
    if amount_cents == 0:
        return
    await _append_covered(
        connection,
        account_id,
        LedgerKind.HOLD,
        reason,
        hold_delta_cents=amount_cents,
        job_id=job_id,
    )


async def charge(
    connection: Connection,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    stage: StageName,
    amount_cents: int,
) -> None:
    """Turn part of the job's hold into a charge for a completed stage."""
    if amount_cents == 0:
        return
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.CHARGE,
        balance_delta_cents=-amount_cents,
        hold_delta_cents=-amount_cents,
        job_id=job_id,
        stage=stage,
        reason=f"{stage} completed",
    )


async def release_rest(connection: Connection, job_id: uuid.UUID, reason: str) -> None:
    """Release whatever is still held for a job."""
    query = select(jobs.c.account_id, jobs.c.held_cents).where(jobs.c.id == job_id)
    row = (await connection.execute(query.with_for_update(key_share=True))).one()
    if row.held_cents == 0:
        return
    await _append(
        connection,
        account_id=row.account_id,
        kind=LedgerKind.RELEASE,
        hold_delta_cents=-row.held_cents,
        job_id=job_id,
        reason=reason,
    )
    await settle_refunds(connection, row.account_id)


async def credit_purchase(
    connection: Connection,
    account_id: uuid.UUID,
    purchase_id: uuid.UUID,
    amount_cents: int,
    reason: str,
) -> None:
    """Credit a recorded purchase; the database refuses another account or amount than its own."""
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.PURCHASE,
        balance_delta_cents=amount_cents,
        purchase_id=purchase_id,
        reason=reason,
    )


async def settle_refunds(connection: Connection, account_id: uuid.UUID) -> None:
    """Deduct refunds, as far as available credits go; called whenever credits become available.

    Spent or held credits cannot be deducted without a balance below its limit, so the rest of a
    refund waits for the account's next credits.
    """
    outstanding = (
        select(refunds.c.id, (refunds.c.amount_cents - refunds.c.taken_cents).label("rest"))
        .where(
            refunds.c.account_id == account_id,
            refunds.c.reversed_at.is_(None),
            refunds.c.taken_cents < refunds.c.amount_cents,
        )
        .order_by(refunds.c.created_at, refunds.c.id)
    )
    if (await connection.execute(outstanding)).first() is None:
        return
    await lock_account(connection, account_id)
    limit = accounts.c.credit_limit_cents * cast(accounts.c.pay_as_you_go, Integer)
    query = select(accounts.c.balance_cents - accounts.c.held_cents + limit)
    found = await connection.execute(query.where(accounts.c.id == account_id))
    spendable = int(found.scalar_one())
    for row in (await connection.execute(outstanding)).all():
        taken = min(row.rest, spendable)
        if taken <= 0:
            return
        await move_refund(connection, account_id, row.id, -taken, "refund")
        spendable -= taken


async def move_refund(
    connection: Connection,
    account_id: uuid.UUID,
    refund_id: uuid.UUID,
    amount_cents: int,
    reason: str,
) -> None:
    """An adjustment for a refund: negative deducts it, positive returns what was deducted."""
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.ADJUSTMENT,
        balance_delta_cents=amount_cents,
        refund_id=refund_id,
        reason=reason,
    )


async def has_purchases(connection: Connection, account_id: uuid.UUID) -> bool:
    """Whether anything was ever purchased for the account."""
    query = select(
        exists().where(
            ledger_entries.c.account_id == account_id,
            ledger_entries.c.kind == LedgerKind.PURCHASE,
        )
    )
    return bool((await connection.execute(query)).scalar_one())


async def _append_covered(
    connection: Connection,
    account_id: uuid.UUID,
    kind: LedgerKind,
    reason: str,
    *,
    balance_delta_cents: int = 0,
    hold_delta_cents: int = 0,
    job_id: uuid.UUID | None = None,
    capped_key_id: uuid.UUID | None = None,
) -> None:
    """Append if the account's credits cover it, else raise: the caller's work stays in place."""
    appended = await run(
        connection,
        _APPEND_COVERED,
        account_id=account_id,
        kind=str(kind),
        balance_delta_cents=balance_delta_cents,
        hold_delta_cents=hold_delta_cents,
        job_id=job_id,
        reason=reason,
        capped_key_id=capped_key_id,
    )
    if not appended:
        raise InsufficientCreditsError(str(account_id))


async def _append(connection: Connection, **values: object) -> None:
    """A delta that is not given is 0."""
    deltas = {"balance_delta_cents": 0, "hold_delta_cents": 0}
    await connection.execute(insert(ledger_entries).values(deltas | values))


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


async def find_discrepancies(connection: Connection) -> list[Discrepancy]:
    """All discrepancies; empty unless the database's rules were bypassed."""
    rows = (await connection.execute(_DISCREPANCIES)).mappings()
    return [Discrepancy(**row) for row in rows]
