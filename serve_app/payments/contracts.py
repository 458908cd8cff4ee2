"""What a payment provider must be able to do: tell which of its notifications are true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class BadNotificationError(Exception):
    """The notification was not signed by the provider, is too old, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that came in for an account."""

    account: str
    """Name or id, as the provider was told when the payment began."""
    amount_cents: int
    reference: str
    """What the provider calls the payment; however many events tell of it, it is one."""


@dataclass(frozen=True, slots=True)
class Repayment:
    """Money that went back to the customer, or (``reversed``) came in again after all."""

    reference: str
    payment_reference: str
    amount_cents: int
    reversed: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A verified notification; ``change`` is None where it is no business of ours."""

    event_id: str
    event_type: str
    change: Payment | Repayment | None


class PaymentProvider(Protocol):
    """Knows a provider's notifications. Pure: it reads no clock but for their age, calls nobody."""

    @property
    def name(self) -> str:
        """Its name in paths, settings and receipts."""

    def verify(self, body: bytes, headers: Mapping[str, str], secret: str) -> Notification:
        """The notification in ``body``, exactly as received; raises BadNotificationError."""
