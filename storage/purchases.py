"""Purchases, receipts and refunds; each counts once, in whatever order they are reported.

Every function takes the caller's transaction. An advisory lock serialises what concerns one
payment. Locks are taken in the order payment, receipt number, account, refunds.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert

from storage import keys, ledger
from storage.database import Connection
from storage.money_tables import payment_credentials, payment_events, purchases, refunds

RECEIPT_LOCK = 0x7661735F72637074
"""Advisory lock of the next receipt number ("vas_rcpt"): numbers have no gaps."""

OPERATOR = "operator"
"""Provider of purchases that the operator records by hand: an invoice, a bank transfer."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A purchase as the customer sees it."""

    receipt_number: int
    amount_cents: int
    provider: str
    reference: str
    created_at: datetime


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
    reason = f"purchase {reference} ({provider})"
    await ledger.credit_purchase(connection, account_id, purchase_id, amount_cents, reason)
    await ledger.settle_refunds(connection, account_id)
    return True


async def record_refund(
    connection: Connection, key: RefundKey, amount_cents: int
) -> uuid.UUID | None:
    """Deduct a refund from the account that was credited, now or as soon as it has credits.

    Returns the account; None while the payment is not known.
    """
    account_id = await _note_refund(connection, key, amount_cents)
    if account_id is not None:
        await ledger.settle_refunds(connection, account_id)
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
        await ledger.move_refund(
            connection, account_id, found.id, found.taken_cents, "refund reversed"
        )
    await connection.execute(
        update(refunds).where(own, refunds.c.reversed_at.is_(None)).values(reversed_at=func.now())
    )
    if account_id is not None:
        await ledger.settle_refunds(connection, account_id)


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
    """The account's receipts, newest first."""
    query = (
        select(*[purchases.c[name] for name in Receipt.__dataclass_fields__])
        .where(purchases.c.account_id == account_id)
        .order_by(purchases.c.receipt_number.desc())
        .limit(limit)
    )
    return [Receipt(**row) for row in (await connection.execute(query)).mappings()]


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
    """The encrypted secret, or None."""
    query = select(payment_credentials.c.sealed).where(payment_credentials.c.provider == provider)
    found = (await connection.execute(query)).scalar_one_or_none()
    return None if found is None else bytes(found)
