"""Notifications of payment providers, and what a verified one changes, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from serve_app.crypto import Encrypter
from serve_app.settings import Settings
from storage import keys, purchases
from storage.database import Connection, Database
from storage.purchases import RefundKey


class BadNotificationError(Exception):
    """The notification was not signed by the provider, is too old, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that came in for an account."""

    account: str
    """Name or id, as given to the provider when the payment began."""
    amount_cents: int
    reference: str
    """The provider's reference of the payment; several events may report one payment."""


@dataclass(frozen=True, slots=True)
class Repayment:
    """Money that went back to the customer, or (``reversed``) came in again after all."""

    reference: str
    payment_reference: str
    amount_cents: int
    reversed: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A verified notification; ``change`` is None where it is not relevant here."""

    event_id: str
    event_type: str
    change: Payment | Repayment | None


class PaymentProvider(Protocol):
    """Verifies a provider's notifications. Pure, but for the clock that their age is checked by."""

    @property
    def name(self) -> str:
        """Its name in paths, settings and receipts."""

    def verify(self, body: bytes, headers: Mapping[str, str], secret: str) -> Notification:
        """The notification in ``body``, exactly as received; raises BadNotificationError."""


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
    key = RefundKey(provider, change.reference, change.payment_reference)
    record = purchases.reverse_refund if change.reversed else purchases.record_refund
    await record(connection, key, change.amount_cents)
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


class ProviderNotInstalledError(Exception):
    """The library of the provider in the settings is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"VAS_PAYMENT_PROVIDER={name} needs the library of {name}: "
            "`make setup-dev` installs the extra 'payments'."
        )


def find_provider(settings: Settings) -> PaymentProvider | None:
    """The provider of the settings, None if payments are off; ProviderNotInstalledError."""
    if settings.payment_provider is None:
        return None
    try:
        from serve_app.payments.stripe_provider import StripeProvider
    except ModuleNotFoundError as error:
        if error.name != "stripe":
            raise
        raise ProviderNotInstalledError(settings.payment_provider) from error
    return StripeProvider()


async def find_secret(settings: Settings, database: Database, encrypter: Encrypter) -> str | None:
    """The webhook secret of the settings, else the one that the operator stored, decrypted."""
    if settings.stripe_webhook_secret is not None:
        return settings.stripe_webhook_secret.get_secret_value()
    async with database.statement() as connection:
        encrypted = await purchases.find_credential(connection, settings.payment_provider or "")
    return None if encrypted is None else encrypter.decrypt(encrypted)
