"""What Stripe sends: event bodies of its API, signed by its own library as it signs them."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import httpx
import stripe

from tests.contract.calling import ContractApi

STRIPE_SECRET = "whsec_of_the_tests"
Event = dict[str, Any]


def event(kind: str, thing: dict[str, Any], event_id: str | None = None) -> Event:
    return {
        "id": event_id or f"evt_{uuid.uuid4().hex}",
        "object": "event",
        "type": kind,
        "created": int(time.time()),
        "livemode": True,
        "data": {"object": thing},
    }


def session(account: str, cents: int, payment: str, **changes: Any) -> Event:
    """A Checkout session that was paid."""
    thing = {
        "id": f"cs_{payment}",
        "object": "checkout.session",
        "mode": "payment",
        "payment_status": "paid",
        "payment_intent": payment,
        "amount_total": cents,
        "currency": "usd",
        "client_reference_id": None,
        "metadata": {"vas_account": account},
    }
    return event("checkout.session.completed", thing | changes)


def intent(account: str, cents: int, payment: str) -> Event:
    thing = {
        "id": payment,
        "object": "payment_intent",
        "amount_received": cents,
        "currency": "usd",
        "metadata": {"vas_account": account},
    }
    return event("payment_intent.succeeded", thing)


def refund(refund_id: str, cents: int, payment: str, status: str = "succeeded") -> Event:
    thing = {
        "id": refund_id,
        "object": "refund",
        "amount": cents,
        "currency": "usd",
        "payment_intent": payment,
        "status": status,
    }
    return event("refund.created" if status == "succeeded" else "refund.failed", thing)


def dispute(kind: str, dispute_id: str, cents: int, payment: str) -> Event:
    thing = {
        "id": dispute_id,
        "object": "dispute",
        "amount": cents,
        "currency": "usd",
        "payment_intent": payment,
    }
    return event(f"charge.dispute.{kind}", thing)


def signed(body: str, *, secret: str = STRIPE_SECRET, age_seconds: int = 0) -> dict[str, str]:
    """The headers of a notification, signed by the library itself."""
    at = int(time.time()) - age_seconds
    header = stripe.WebhookSignature.generate_signature_header(body, secret, at)
    return {"Stripe-Signature": header, "Content-Type": "application/json; charset=utf-8"}


def send(api: ContractApi, told: Event) -> httpx.Response:
    body = json.dumps(told, indent=2)
    return post(api, body.encode(), signed(body))


def post(api: ContractApi, body: bytes, headers: dict[str, str]) -> httpx.Response:
    address = f"{api.root}/payments/stripe/events"
    return httpx.post(address, content=body, headers=headers, trust_env=False, timeout=120)
