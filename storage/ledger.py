"""Money: the ledger of append-only entries, purchases and refunds, and what an account used.

Every function takes the caller's transaction. Triggers keep the running totals (``functions.sql``).
The database refuses a balance below its limit, a hold that is not covered, a charge beyond a hold,
a second charge, and a charge for a stage that is not completed. Locks are taken in the order job,
account, refunds.

Purchases, receipts and refunds count once each, in whatever order they are reported. An advisory
lock serialises what concerns one payment. Locks are taken in the order payment, receipt number,
account, refunds. Months of usage are calendar months in UTC.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime

from sqlalchemy import Integer, cast, exists, func, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert

from storage import keys
from storage.database import Connection, run
from storage.keys import lock_account
from storage.records import columns, read
from storage.tables import (
    Receipt,
    Translation,
    accounts,
    jobs,
    ledger_entries,
    payment_credentials,
    payment_events,
    purchases,
    refunds,
)
from storage.types import LedgerKind, StageName, Tier


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """Return the month that ``moment`` falls in."""
        at = moment.astimezone(UTC)
        return cls(at.year, at.month)

    @classmethod
    def parse(cls, text_: str) -> Month:
        """From ``YYYY-MM``; raises ValueError."""
        parsed = date.fromisoformat(f"{text_}-01")
        return cls(parsed.year, parsed.month)

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment that is not in it any more."""
        following = self.year * 12 + self.number
        return datetime(following // 12, following % 12 + 1, 1, tzinfo=UTC)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What a job counts towards a month, and what it was charged in it."""

    job_id: uuid.UUID
    created_at: datetime
    file_name: str
    tier: Tier
    billable_seconds: int
    """0 in a month in which the job was charged but not counted."""
    charges: dict[StageName, int]

    @property
    def total_cents(self) -> int:
        return sum(self.charges.values())


@dataclass(frozen=True, slots=True)
class StageUsage:
    """A stage's charges in a month."""

    stage: StageName
    jobs: int
    amount_cents: int


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What was charged on a day (UTC), and for how many jobs."""

    day: date
    cents: int
    jobs: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry with the balance and the open holds after it."""

    id: int
    created_at: datetime
    kind: LedgerKind
    balance_delta_cents: int
    hold_delta_cents: int
    balance_cents: int
    held_cents: int
    job_id: uuid.UUID | None
    stage: str | None
    reason: str


_JOBS = text(
    """
    WITH charges AS (
        SELECT job_id, jsonb_object_agg(stage, -balance_delta_cents) AS by_stage
          FROM ledger_entries
         WHERE account_id = :account AND kind = 'charge'
           AND created_at >= :start AND created_at < :end
         GROUP BY job_id
    )
    SELECT j.id AS job_id, j.created_at, j.file_name, j.tier,
           CASE WHEN j.quoted_at >= :start AND j.quoted_at < :end
                THEN j.billable_seconds ELSE 0 END AS billable_seconds,
           coalesce(charges.by_stage, '{}') AS charges
      FROM jobs j LEFT JOIN charges ON charges.job_id = j.id
     WHERE j.account_id = :account
       AND (charges.job_id IS NOT NULL
            OR (j.quoted_at >= :start AND j.quoted_at < :end AND j.charged_cents > 0))
     ORDER BY j.created_at, j.id
    """
)
_STAGES = text(
    """
    SELECT stage, count(*) AS jobs, -sum(balance_delta_cents) AS amount_cents
      FROM ledger_entries
     WHERE account_id = :account AND kind = 'charge'
       AND created_at >= :start AND created_at < :end
     GROUP BY stage
    """
)
_DAYS = text(
    """
    SELECT (created_at AT TIME ZONE 'UTC')::date AS day,
           (-sum(balance_delta_cents))::bigint AS cents, count(DISTINCT job_id) AS jobs
      FROM ledger_entries
     WHERE account_id = :account AND kind = 'charge'
       AND created_at >= :start AND created_at < :end
     GROUP BY day ORDER BY day
    """
)
_ENTRIES = text(
    """
    SELECT * FROM (
        SELECT id, created_at, kind, balance_delta_cents, hold_delta_cents,
               (sum(balance_delta_cents) OVER so_far)::bigint AS balance_cents,
               (sum(hold_delta_cents) OVER so_far)::bigint AS held_cents,
               job_id, stage, reason
          FROM ledger_entries WHERE account_id = :account
        WINDOW so_far AS (ORDER BY id)
    ) AS entries ORDER BY id DESC LIMIT :most
    """
)


async def list_job_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[JobUsage]:
    """Return the jobs that were charged in, or count towards, a month; oldest first."""
    rows = await connection.execute(_JOBS, _in_month(account_id, month))
    found = []
    for row in rows.mappings():
        charges = {stage: int(row["charges"].get(stage, 0)) for stage in StageName}
        found.append(JobUsage(**{**row, "tier": Tier(row["tier"]), "charges": charges}))
    return found


async def list_stage_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[StageUsage]:
    """Charges of a month, stage by stage, in the stages' order; stages without one are left out."""
    rows = (await connection.execute(_STAGES, _in_month(account_id, month))).mappings()
    found = {row["stage"]: row for row in rows}
    return [
        StageUsage(stage, found[stage]["jobs"], int(found[stage]["amount_cents"]))
        for stage in StageName
        if stage in found
    ]


async def list_day_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[DayUsage]:
    """Return the days of a month on which something was charged."""
    return await read(connection, DayUsage, _DAYS, **_in_month(account_id, month))


async def list_entries(
    connection: Connection, account_id: uuid.UUID, *, limit: int
) -> list[LedgerEntry]:
    """Return the account's last entries, newest first."""
    return await read(connection, LedgerEntry, _ENTRIES, account=account_id, most=limit)


def _in_month(account_id: uuid.UUID, month: Month) -> dict[str, object]:
    return {"account": account_id, "start": month.start, "end": month.end}


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
    given = {"balance_delta_cents": amount_cents}
    await _append(connection, account_id, LedgerKind.GRANT, reason, **given)
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
    adjusted = {"balance_delta_cents": amount_cents, "capped_key_id": capped_key_id}
    await _append_covered(connection, account_id, LedgerKind.ADJUSTMENT, reason, **adjusted)
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
    connection: Connection, account_id: uuid.UUID, job_id: uuid.UUID, amount_cents: int, reason: str
) -> None:
    """Hold ``amount_cents`` more for a job; raises InsufficientCreditsError, changing nothing."""
    if amount_cents == 0:
        return
    held = {"hold_delta_cents": amount_cents, "job_id": job_id}
    await _append_covered(connection, account_id, LedgerKind.HOLD, reason, **held)


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
    charged = {"balance_delta_cents": -amount_cents, "hold_delta_cents": -amount_cents}
    of = {"job_id": job_id, "stage": stage}
    reason = f"{stage} completed"
    await _append(connection, account_id, LedgerKind.CHARGE, reason, **charged, **of)


async def release_rest(connection: Connection, job_id: uuid.UUID, reason: str) -> None:
    """Release whatever is still held for a job."""
    query = select(jobs.c.account_id, jobs.c.held_cents).where(jobs.c.id == job_id)
    row = (await connection.execute(query.with_for_update(key_share=True))).one()
    if row.held_cents == 0:
        return
    released = {"hold_delta_cents": -row.held_cents, "job_id": job_id}
    await _append(connection, row.account_id, LedgerKind.RELEASE, reason, **released)
    await settle_refunds(connection, row.account_id)


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
    moved = {"balance_delta_cents": amount_cents, "refund_id": refund_id}
    await _append(connection, account_id, LedgerKind.ADJUSTMENT, reason, **moved)


async def has_purchases(connection: Connection, account_id: uuid.UUID) -> bool:
    """Return whether anything was ever purchased for the account."""
    query = select(
        exists().where(
            ledger_entries.c.account_id == account_id, ledger_entries.c.kind == LedgerKind.PURCHASE
        )
    )
    return bool((await connection.execute(query)).scalar_one())


async def _append_covered(
    connection: Connection, account_id: uuid.UUID, kind: LedgerKind, reason: str, **values: object
) -> None:
    """Append if the account's credits cover it, else raise: the caller's work stays in place."""
    of_none = {**_NO_DELTAS, "job_id": None, "capped_key_id": None}
    own = {"account_id": account_id, "kind": str(kind), "reason": reason}
    if not await run(connection, _APPEND_COVERED, **(of_none | own | values)):
        raise InsufficientCreditsError(str(account_id))


async def _append(
    connection: Connection, account_id: uuid.UUID, kind: LedgerKind, reason: str, **values: object
) -> None:
    own = {"account_id": account_id, "kind": kind, "reason": reason}
    await connection.execute(insert(ledger_entries).values(_NO_DELTAS | own | values))


_NO_DELTAS: dict[str, object] = {"balance_delta_cents": 0, "hold_delta_cents": 0}
"""A delta that is not given is 0."""


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
                    THEN coalesce((j.quote_cents ->> s.stage)::bigint, 0)
                         - s.waived_cents ELSE 0 END,
               coalesce((SELECT -sum(balance_delta_cents) FROM ledger_entries e
                          WHERE e.job_id = s.job_id AND e.stage = s.stage), 0)
          FROM stages s JOIN jobs j ON j.id = s.job_id
    )
    SELECT what, id, stored::bigint, sum::bigint AS by_ledger FROM totals WHERE stored <> sum
     ORDER BY what, id
    """
)


async def find_discrepancies(connection: Connection) -> list[Discrepancy]:
    """Return all discrepancies; empty unless the database's rules were bypassed."""
    return await read(connection, Discrepancy, _DISCREPANCIES)


RECEIPT_LOCK = 0x7661735F72637074
"""Advisory lock of the next receipt number ("vas_rcpt"): numbers have no gaps."""

OPERATOR = "operator"
"""Provider of purchases that the operator records by hand: an invoice, a bank transfer."""


@dataclass(frozen=True, slots=True)
class RefundKey:
    """A provider's references of a refund and of its payment."""

    provider: str
    reference: str
    payment_reference: str


async def note_event(connection: Connection, provider: str, event_id: str, event_type: str) -> bool:
    """Record a provider's event; False if it is recorded already."""
    statement = (
        insert(payment_events)
        .values(provider=provider, event_id=event_id, event_type=event_type)
        .on_conflict_do_nothing()
        .returning(payment_events.c.event_id)
    )
    return (await connection.execute(statement)).first() is not None


async def record_purchase(
    connection: Connection,
    account_id: uuid.UUID,
    amount_cents: int,
    *,
    provider: str,
    reference: str,
) -> bool:
    """Credit a payment and number its receipt; False, changing nothing, if it was credited before.

    Refunds reported before it are deducted at once.
    """
    await _lock_payment(connection, provider, reference)
    if await _account_of_payment(connection, provider, reference) is not None:
        return False
    purchase_id = uuid.uuid4()
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": RECEIPT_LOCK})
    query = select(func.coalesce(func.max(purchases.c.receipt_number), 0) + 1)
    await connection.execute(
        insert(purchases).values(
            id=purchase_id,
            account_id=account_id,
            receipt_number=int((await connection.execute(query)).scalar_one()),
            amount_cents=amount_cents,
            provider=provider,
            reference=reference,
        )
    )
    await connection.execute(
        update(refunds)
        .where(refunds.c.provider == provider, refunds.c.payment_reference == reference)
        .values(account_id=account_id)
    )
    # The database refuses another account or amount than the purchase's own.
    credited = {"balance_delta_cents": amount_cents, "purchase_id": purchase_id}
    reason = f"purchase {reference} ({provider})"
    await _append(connection, account_id, LedgerKind.PURCHASE, reason, **credited)
    await settle_refunds(connection, account_id)
    return True


async def record_refund(
    connection: Connection, key: RefundKey, amount_cents: int
) -> uuid.UUID | None:
    """Deduct a refund from the account that was credited, now or as soon as it has credits.

    Returns the account; None while the payment is not known.
    """
    account_id = await _note_refund(connection, key, amount_cents)
    if account_id is not None:
        await settle_refunds(connection, account_id)
    return account_id


async def reverse_refund(connection: Connection, key: RefundKey, amount_cents: int) -> None:
    """A refund failed, or a dispute was won: return what was deducted, permanently."""
    account_id = await _note_refund(connection, key, amount_cents)
    if account_id is not None:
        await keys.lock_account(connection, account_id)
    own = (refunds.c.provider == key.provider) & (refunds.c.reference == key.reference)
    query = select(refunds.c.id, refunds.c.taken_cents).where(own).with_for_update()
    found = (await connection.execute(query)).one()
    if account_id is not None and found.taken_cents > 0:
        await move_refund(connection, account_id, found.id, found.taken_cents, "refund reversed")
    await connection.execute(
        update(refunds).where(own, refunds.c.reversed_at.is_(None)).values(reversed_at=func.now())
    )
    if account_id is not None:
        await settle_refunds(connection, account_id)


async def _note_refund(
    connection: Connection, key: RefundKey, amount_cents: int
) -> uuid.UUID | None:
    """Store a refund unless it is known; the account of its payment, if that is known."""
    await _lock_payment(connection, key.provider, key.payment_reference)
    account_id = await _account_of_payment(connection, key.provider, key.payment_reference)
    statement = insert(refunds).values(
        id=uuid.uuid4(),
        provider=key.provider,
        reference=key.reference,
        payment_reference=key.payment_reference,
        account_id=account_id,
        amount_cents=amount_cents,
    )
    await connection.execute(statement.on_conflict_do_nothing())
    return account_id


async def _lock_payment(connection: Connection, provider: str, reference: str) -> None:
    label = literal(f"vas payment {provider} {reference}")
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(label, 0))))


async def _account_of_payment(
    connection: Connection, provider: str, reference: str
) -> uuid.UUID | None:
    query = select(purchases.c.account_id).where(
        purchases.c.provider == provider, purchases.c.reference == reference
    )
    found: uuid.UUID | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def list_receipts(
    connection: Connection, account_id: uuid.UUID, *, limit: int
) -> list[Receipt]:
    """Return the account's receipts, newest first."""
    query = (
        select(*columns(Receipt))
        .where(purchases.c.account_id == account_id)
        .order_by(purchases.c.receipt_number.desc())
        .limit(limit)
    )
    return await read(connection, Receipt, query)


async def outstanding_refund_cents(connection: Connection, account_id: uuid.UUID) -> int:
    """Refunds not deducted yet, because the credits were spent or are held."""
    query = select(
        func.coalesce(func.sum(refunds.c.amount_cents - refunds.c.taken_cents), 0)
    ).where(refunds.c.account_id == account_id, refunds.c.reversed_at.is_(None))
    return int((await connection.execute(query)).scalar_one())


async def store_credential(connection: Connection, provider: str, encrypted: bytes) -> None:
    """Store a provider's secret, encrypted by the caller, in place of any earlier one."""
    statement = insert(payment_credentials).values(provider=provider, sealed=encrypted)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["provider"], set_={"sealed": encrypted, "updated_at": func.now()}
        )
    )


async def find_credential(connection: Connection, provider: str) -> bytes | None:
    """Return the encrypted secret, or None."""
    query = select(payment_credentials.c.sealed).where(payment_credentials.c.provider == provider)
    found = (await connection.execute(query)).scalar_one_or_none()
    return None if found is None else bytes(found)
