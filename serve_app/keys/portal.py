"""``/portal/…``: the billing page behind a short-lived signed link. Shows, changes nothing."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.authentication import Bucket, count_requests
from serve_app.api.envelope import Context, templates
from serve_app.api.urls import (
    parse_job_id,
)
from serve_app.crypto import BadSignatureError
from storage import keys, ledger
from storage.database import Connection
from storage.keys import Account, KeyRecord, display_key
from storage.ledger import Month, Receipt, StageUsage

PORTAL_PATH = "/portal"
PORTAL_PURPOSE = "portal"
PORTAL_LINK_SECONDS = 900
RECEIPTS_SHOWN = 200

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # The address is the permission: it goes to nobody else.
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}
_STYLE = Path(__file__).parent / "static" / "portal.css"

router = APIRouter(prefix=PORTAL_PATH, include_in_schema=False)


@lru_cache(maxsize=1)
def _style() -> bytes:
    return _STYLE.read_bytes()


@router.get("/assets/portal.css")
async def get_style() -> Response:
    """The page's style sheet; the same for everybody."""
    headers = HEADERS | {"Cache-Control": "public, max-age=300"}
    return Response(_style(), media_type="text/css", headers=headers)


@router.get("/{account_id}")
async def get_billing_page(
    request: Request, context: Context, account_id: str, expires: str = "", signature: str = ""
) -> Response:
    """The account's billing, for whoever holds a link to it that is not too old."""
    path = f"{PORTAL_PATH}/{account_id}"
    try:
        context.signer.check_path(PORTAL_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        return _closed()
    await count_requests(request, f"{account_id}:{Bucket.READS}", Bucket.READS)
    async with context.database.transaction() as connection:
        billing = await _read_billing(connection, parse_job_id(account_id))
    return _closed() if billing is None else _html(billing_page(billing), 200)


async def _read_billing(connection: Connection, account_id: uuid.UUID) -> Billing | None:
    """What the page shows; None for a suspended account, which is refused everywhere."""
    account = await keys.get_account(connection, str(account_id))
    if account.suspended_at is not None:
        return None
    month = Month.of(datetime.now(UTC))
    return Billing(
        account=account,
        month=month,
        month_seconds=sum(
            line.billable_seconds
            for line in await ledger.list_job_usage(connection, account_id, month)
        ),
        stages=await ledger.list_stage_usage(connection, account_id, month),
        receipts=await ledger.list_receipts(connection, account_id, limit=RECEIPTS_SHOWN),
        keys=await keys.list_keys(connection, account_id),
        outstanding_refund_cents=await ledger.outstanding_refund_cents(connection, account_id),
    )


def _closed() -> Response:
    return _html(closed_page(), 403)


def _html(content: str, status: int) -> Response:
    return Response(content, status_code=status, media_type="text/html", headers=HEADERS)


@dataclass(frozen=True, slots=True)
class Billing:
    """What an account's billing page shows."""

    account: Account
    month: Month
    month_seconds: int
    stages: list[StageUsage]
    receipts: list[Receipt]
    keys: list[KeyRecord]
    outstanding_refund_cents: int


def dollars(amount_cents: int) -> str:
    """US cents as people write dollars, thousands grouped."""
    sign = "−" if amount_cents < 0 else ""
    whole, rest = divmod(abs(amount_cents), 100)
    return f"{sign}${whole:,}.{rest:02}"


_PAGES = templates(Path(__file__).parent / "templates")
_PAGES.filters |= {
    "dollars": dollars,
    "utc": lambda at: at.astimezone(UTC),
    "display_key": display_key,
}


def billing_page(billing: Billing) -> str:
    """The whole page."""
    account = billing.account
    figures = [
        ("Available", account.available_cents),
        ("Balance", account.balance_cents),
        ("Held for running jobs", account.held_cents),
    ]
    if account.pay_as_you_go:
        figures.append(("Credit limit", account.credit_limit_cents))
    if billing.outstanding_refund_cents:
        figures.append(("Refunded, still to be deducted", billing.outstanding_refund_cents))
    minutes, seconds = divmod(billing.month_seconds, 60)
    return _PAGES.get_template("portal.html").render(
        title=f"Billing of {account.name}",
        billing=billing,
        figures=figures,
        hours=f"{minutes // 60:,} h {minutes % 60:02} min {seconds:02} s",
    )


def closed_page() -> str:
    """For a link that does not open anything, or not any more."""
    return _PAGES.get_template("portal.html").render(title="Link not valid", billing=None)
