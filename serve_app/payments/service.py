"""What a verified notification does to the books, once, in the caller's transaction."""

from __future__ import annotations

from serve_app.payments.contracts import Notification, Payment, Repayment
from storage import keys, purchases
from storage.database import Connection
from storage.purchases import RefundKey


async def apply_notification(
    connection: Connection, provider: str, notification: Notification
) -> bool:
    """False, changing nothing, for an event that was taken before.

    Raises keys.AccountNotFoundError for a payment to an account that is not there.
    """
    change = notification.change
    if change is None:
        return False
    event_id, event_type = notification.event_id, notification.event_type
    if not await purchases.note_event(connection, provider, event_id, event_type):
        return False
    if isinstance(change, Payment):
        return await _credit(connection, provider, change)
    await _repay(connection, provider, change)
    return True


async def _credit(connection: Connection, provider: str, payment: Payment) -> bool:
    account = await keys.get_account(connection, payment.account)
    return await purchases.record_purchase(
        connection,
        account.id,
        payment.amount_cents,
        provider=provider,
        reference=payment.reference,
    )


async def _repay(connection: Connection, provider: str, repayment: Repayment) -> None:
    key = RefundKey(provider, repayment.reference, repayment.payment_reference)
    record = purchases.reverse_refund if repayment.reversed else purchases.record_refund
    await record(connection, key, repayment.amount_cents)
