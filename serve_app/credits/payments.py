"""Events of Stripe: purchases, refunds and disputes become entries of the ledger, once each.

The route is outside the API, and off unless a provider is configured. The official library verifies
the signature; it is an extra, and is imported only where payments are on. The account's name or id
is the metadata ``vas_account`` of the session or of the intent (or a session's
``client_reference_id``). Event objects: https://docs.stripe.com/api/events/types
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.envelope import Context, success
from serve_app.api.parameters import read_bounded
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from storage import keys, ledger
from storage.database import Connection
from storage.keys import AccountNotFoundError
from storage.ledger import RefundKey

ACCOUNT_KEY = "vas_account"
CURRENCY = "usd"
TOLERANCE_SECONDS = 300
"""An event that was signed longer ago is refused, as Stripe's own library does by default."""

log = logging.getLogger("vas.payments")
router = APIRouter()


class BadEventError(Exception):
    """The event was not signed by the provider, is too old, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that came in for an account, which is named as it was when the payment began."""

    account: str
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


Change = Payment | Repayment | None
"""What an event changes; None for an event that does not concern credits."""


@router.post("/payments/{provider}/events", include_in_schema=False)
async def receive_event(request: Request, context: Context, provider: str) -> Response:
    """Record an event of the provider.

    The provider repeats an event that is not answered with a 2xx, and shows it as failed: a payment
    that cannot be credited is not lost in silence.
    """
    if context.settings.payment_provider != provider:
        raise ApiError(ErrorCode.NOT_FOUND, "There is nothing at this address.")
    body = await read_bounded(request, context.settings.max_body_bytes)
    secret = await _find_secret(context)
    if secret is None:
        log.error("payment event refused: no webhook secret of %s is set", provider)
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "The provider's secret is not set yet.")
    try:
        event, change = verified(body, request.headers, secret)
    except BadEventError as error:
        log.warning("payment event refused: %s", error)
        raise invalid(str(error)) from error
    try:
        changed = await context.database.write(_apply, provider, event, change)
    except AccountNotFoundError as error:
        log.exception("payment event %s cannot be credited", event["id"])
        raise invalid(f"Event {event['id']} names no account of this service.") from error
    log.info("payment event %s (%s): changed=%s", event["id"], provider, changed)
    return success({"received": True})


async def _find_secret(context: AppContext) -> str | None:
    """Return the webhook secret of the settings, else the one that the operator stored."""
    if context.settings.stripe_webhook_secret is not None:
        return context.settings.stripe_webhook_secret.get_secret_value()
    provider = context.settings.payment_provider or ""
    encrypted = await context.database.read(ledger.find_credential, provider)
    return None if encrypted is None else context.encrypter.decrypt(encrypted)


async def _apply(
    connection: Connection, provider: str, event: Mapping[str, Any], change: Change
) -> bool:
    """Return False, changing nothing, for an event that was applied before.

    Raises AccountNotFoundError for a payment to an account that does not exist.
    """
    if change is None or not await ledger.note_event(
        connection, provider, event["id"], event["type"]
    ):
        return False
    if isinstance(change, Payment):
        account = await keys.get_account(connection, change.account)
        cents, reference = change.amount_cents, change.reference
        return await ledger.record_purchase(
            connection, account.id, cents, provider=provider, reference=reference
        )
    key = RefundKey(provider, change.reference, change.payment_reference)
    record = ledger.reverse_refund if change.reversed else ledger.record_refund
    await record(connection, key, change.amount_cents)
    return True


def verified(
    body: bytes, headers: Mapping[str, str], secret: str
) -> tuple[Mapping[str, Any], Change]:
    """Return the event in ``body``, exactly as received, and its change; raise BadEventError."""
    import stripe

    try:
        signature = headers.get("stripe-signature")
        stripe.WebhookSignature.verify_header(body, signature, secret, TOLERANCE_SECONDS)
        event = json.loads(body)
        read = _READERS.get(event["type"])
        change = None if read is None else read(event["data"]["object"])
        return {"id": event["id"], "type": event["type"]}, change
    except stripe.SignatureVerificationError as error:
        raise BadEventError("The signature does not fit.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadEventError("The notification cannot be read.") from error


def _paid_session(session: dict[str, Any]) -> Change:
    if session["mode"] != "payment" or session["payment_status"] != "paid":
        return None
    account = _named_account(session) or session.get("client_reference_id")
    return _payment(session, account, session["amount_total"], session["payment_intent"])


def _paid_intent(intent: dict[str, Any]) -> Change:
    return _payment(intent, _named_account(intent), intent["amount_received"], intent["id"])


def _payment(paid: dict[str, Any], account: Any, amount: Any, reference: Any) -> Payment | None:
    """Return a payment that names no account, or paid nothing, is some other business of the
    merchant."""
    if not account or not reference or amount == 0:
        return None
    _require_cents(paid, amount)
    return Payment(str(account), amount, str(reference))


def _named_account(paid: dict[str, Any]) -> str | None:
    found: str | None = (paid.get("metadata") or {}).get(ACCOUNT_KEY)
    return found


def _refund(refund: dict[str, Any]) -> Change:
    """Deduct a refund while it is still pending; one that fails later is given back."""
    return _repayment(refund, undone=refund["status"] in {"failed", "canceled"})


def _repayment(paid: dict[str, Any], *, undone: bool) -> Repayment | None:
    # Without a payment intent it is of a payment that was never credited here.
    if not paid.get("payment_intent") or paid["currency"] != CURRENCY:
        return None
    _require_cents(paid, paid["amount"])
    return Repayment(paid["id"], paid["payment_intent"], paid["amount"], reversed=undone)


def _require_cents(paid: dict[str, Any], amount: Any) -> None:
    if paid["currency"] != CURRENCY:
        raise BadEventError(f"Credits are sold in {CURRENCY}, not in {paid['currency']}.")
    if type(amount) is not int or amount <= 0:
        raise BadEventError("The amount is no positive whole number of cents.")


_READERS: dict[str, Callable[[dict[str, Any]], Change]] = {
    "checkout.session.completed": _paid_session,
    "checkout.session.async_payment_succeeded": _paid_session,
    "payment_intent.succeeded": _paid_intent,
    "refund.created": _refund,
    "refund.updated": _refund,
    "refund.failed": _refund,
    "charge.refund.updated": _refund,
    "charge.dispute.funds_withdrawn": functools.partial(_repayment, undone=False),
    "charge.dispute.funds_reinstated": functools.partial(_repayment, undone=True),
}
