"""The billing page as HTML: pure, from what was read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from serve_app.api.html import Child, Html, table, tag
from storage.keys import Account, KeyRecord, display_key
from storage.purchases import Receipt
from storage.usage import Month, StageUsage

_STYLE_PATH = "/portal/assets/portal.css"


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


def billing_page(billing: Billing) -> Html:
    """The whole page."""
    return _document(
        f"Billing of {billing.account.name}",
        tag("h1", "Billing"),
        tag("p", billing.account.name, class_="quiet"),
        _balance(billing),
        _usage(billing),
        _receipts(billing.receipts),
        _keys(billing.keys),
    )


def closed_page() -> Html:
    """For a link that does not open anything, or not any more."""
    return _document(
        "Link not valid",
        tag("h1", "This link is not valid any more"),
        tag("p", "Links to the billing page last for a quarter of an hour."),
        tag("p", "Ask for a new one in the dashboard."),
    )


def dollars(amount_cents: int) -> str:
    """US cents as people write dollars, thousands grouped."""
    sign = "−" if amount_cents < 0 else ""
    whole, rest = divmod(abs(amount_cents), 100)
    return f"{sign}${whole:,}.{rest:02}"


def _balance(billing: Billing) -> Html:
    account = billing.account
    figures = [("Available", account.available_cents), ("Balance", account.balance_cents)]
    figures.append(("Held for running jobs", account.held_cents))
    if account.pay_as_you_go:
        figures.append(("Credit limit", account.credit_limit_cents))
    if billing.outstanding_refund_cents:
        figures.append(("Refunded, still to be deducted", billing.outstanding_refund_cents))
    shown = [
        tag("div", tag("dt", name), tag("dd", dollars(cents)), class_="figure")
        for name, cents in figures
    ]
    return _section("Credits", tag("dl", *shown, class_="figures"))


def _usage(billing: Billing) -> Html:
    if not billing.stages:
        return _section(f"Usage in {billing.month}", tag("p", "Nothing was charged this month."))
    rows: list[list[Child]] = [
        [str(line.stage), f"{line.jobs:,}", dollars(line.amount_cents)] for line in billing.stages
    ]
    total = sum(line.amount_cents for line in billing.stages)
    rows.append([tag("strong", "Total"), "", tag("strong", dollars(total))])
    return _section(
        f"Usage in {billing.month} (UTC)",
        tag("p", f"{_hours(billing.month_seconds)} of footage.", class_="quiet"),
        table(["Stage", "Jobs", "Charged"], rows, class_="numbers"),
    )


def _hours(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:,} h {minutes % 60:02} min {rest:02} s"


def _receipts(receipts: list[Receipt]) -> Html:
    rows: list[list[Child]] = [
        [
            f"No. {receipt.receipt_number}",
            _moment(receipt.created_at),
            dollars(receipt.amount_cents),
            tag("span", f"{receipt.provider} · {receipt.reference}", class_="reference"),
        ]
        for receipt in receipts
    ]
    return _section("Receipts", table(["Receipt", "Paid (UTC)", "Amount", "Payment"], rows))


def _keys(found: list[KeyRecord]) -> Html:
    rows: list[list[Child]] = [
        [
            tag("code", display_key(record.last_four)),
            tag("span", str(record.status), class_=f"status {record.status}"),
            _moment(record.created_at),
            "never" if record.expires_at is None else _moment(record.expires_at),
        ]
        for record in found
    ]
    body = table(["Key", "Status", "Created", "Expires"], rows) if rows else tag("p", "None.")
    return _section("API keys", body)


def _moment(at: datetime) -> Html:
    shown = at.astimezone(UTC)
    return tag("time", f"{shown:%Y-%m-%d}", datetime=f"{shown:%Y-%m-%dT%H:%M:%SZ}")


def _section(heading: str, *body: Child) -> Html:
    return tag("section", tag("h2", heading), *body)


def _document(title: str, *body: Child) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=_STYLE_PATH),
    )
    content = tag("html", head, tag("body", tag("main", *body)), lang="en")
    return Html(f"<!doctype html>\n{content}\n")
