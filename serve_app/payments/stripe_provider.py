"""Stripe: payments from Checkout sessions or payment intents, refunds, disputes.

The account's name or id stands in the metadata ``vas_account`` of the session or
of the intent (or in a session's ``client_reference_id``). Event objects:
https://docs.stripe.com/api/events/types
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import stripe

from serve_app.payments.service import BadNotificationError, Notification, Payment, Repayment

ACCOUNT_KEY = "vas_account"
CURRENCY = "usd"
TOLERANCE_SECONDS = 300
"""A notification signed longer ago is refused, as Stripe's own library does by default."""

Change = Payment | Repayment | None


class StripeProvider:
    """Verifies with the official library; reads what is needed and nothing else."""

    name = "stripe"

    def verify(self, body: bytes, headers: Mapping[str, str], secret: str) -> Notification:
        """Raises BadNotificationError."""
        signature = headers.get("stripe-signature")
        try:
            stripe.WebhookSignature.verify_header(body, signature, secret, TOLERANCE_SECONDS)
            event = json.loads(body)
            read = _READERS.get(event["type"])
            return Notification(
                event["id"],
                event["type"],
                None if read is None else read(event["data"]["object"]),
            )
        except stripe.SignatureVerificationError as error:
            raise BadNotificationError("The signature does not fit.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadNotificationError("The notification cannot be read.") from error


def _paid_session(session: dict[str, Any]) -> Change:
    if session["mode"] != "payment" or session["payment_status"] != "paid":
        return None
    account = _named_account(session) or session.get("client_reference_id")
    return _payment(session, account, session["amount_total"], session["payment_intent"])


def _paid_intent(intent: dict[str, Any]) -> Change:
    return _payment(intent, _named_account(intent), intent["amount_received"], intent["id"])


def _payment(thing: dict[str, Any], account: Any, amount: Any, reference: Any) -> Payment | None:
    """A payment that names no account, or paid nothing, is some other business of the merchant."""
    if not account or not reference or amount == 0:
        return None
    _require_cents(thing, amount)
    return Payment(str(account), amount, str(reference))


def _named_account(thing: dict[str, Any]) -> str | None:
    found: str | None = (thing.get("metadata") or {}).get(ACCOUNT_KEY)
    return found


def _refund(refund: dict[str, Any]) -> Change:
    """Taken while it is still pending; a refund that fails later is given back."""
    return _repayment(refund, undone=refund["status"] in {"failed", "canceled"})


def _dispute_lost(dispute: dict[str, Any]) -> Change:
    return _repayment(dispute, undone=False)


def _dispute_won(dispute: dict[str, Any]) -> Change:
    return _repayment(dispute, undone=True)


def _repayment(thing: dict[str, Any], *, undone: bool) -> Repayment | None:
    # Not of a payment intent: of a payment that was never credited here.
    if not thing.get("payment_intent") or thing["currency"] != CURRENCY:
        return None
    _require_cents(thing, thing["amount"])
    return Repayment(thing["id"], thing["payment_intent"], thing["amount"], reversed=undone)


def _require_cents(thing: dict[str, Any], amount: Any) -> None:
    if thing["currency"] != CURRENCY:
        raise BadNotificationError(f"Credits are sold in {CURRENCY}, not in {thing['currency']}.")
    if type(amount) is not int or amount <= 0:
        raise BadNotificationError("The amount is no positive whole number of cents.")


_READERS: dict[str, Callable[[dict[str, Any]], Change]] = {
    "checkout.session.completed": _paid_session,
    "checkout.session.async_payment_succeeded": _paid_session,
    "payment_intent.succeeded": _paid_intent,
    "refund.created": _refund,
    "refund.updated": _refund,
    "refund.failed": _refund,
    "charge.refund.updated": _refund,
    "charge.dispute.funds_withdrawn": _dispute_lost,
    "charge.dispute.funds_reinstated": _dispute_won,
}
