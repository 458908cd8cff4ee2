"""The billing page as HTML: pure, from what was read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serve_app.api.html import templates
from storage.keys import Account, KeyRecord, display_key
from storage.purchases import Receipt
from storage.usage import Month, StageUsage


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


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


_PAGES = templates(Path(__file__).parent / "templates")
_PAGES.filters |= {"dollars": dollars, "utc": _utc, "display_key": display_key}


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
