"""``vas credits | usage | payments``: money, for the operator."""

from __future__ import annotations

import re
import sys
import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from serve_app.cli import output
from serve_app.cli.accounts import account_record
from storage.types import StageName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from serve_app.settings import Settings
    from storage import keys, ledger
    from storage.database import Connection
    from storage.ledger import JobUsage, Month
else:
    keys, ledger = output.lazily("storage.keys", "storage.ledger")


class AlreadyRecordedError(Exception):
    """A purchase of that reference is recorded already."""


class LedgerBrokenError(Exception):
    """The ledger and the stored totals disagree."""


class PaymentProviderName(StrEnum):
    """Payment providers that the service supports."""

    STRIPE = "stripe"


Cents = Annotated[int, typer.Argument(min=1, max=10**12)]
KeptReason = typer.Option(help="Kept with the ledger entry.")

_MAX_SECRET_LENGTH = 256
_SECRET = re.compile(r"whsec_[\x21-\x7e]{16,}")


async def _balance(connection: Connection, account_id: uuid.UUID) -> output.Record:
    account = await keys.get_account(connection, str(account_id))
    outstanding = await ledger.outstanding_refund_cents(connection, account_id)
    return account_record(account) | {"outstandingRefundCents": outstanding}


async def grant(
    connection: Connection,
    account: str,
    cents: Cents,
    reason: Annotated[str, KeptReason] = "operator grant",
) -> output.Record:
    """Give an account credits."""
    found = await keys.get_account(connection, account)
    await ledger.grant(connection, found.id, cents, reason)
    return await _balance(connection, found.id)


async def record_purchase(
    connection: Connection,
    account: str,
    cents: Cents,
    reference: Annotated[str, typer.Option(help="The invoice or transfer; recorded once.")],
) -> output.Record:
    """Record money that came in another way than through the payment provider."""
    found = await keys.get_account(connection, account)
    if not await ledger.record_purchase(
        connection, found.id, cents, provider=ledger.OPERATOR, reference=reference
    ):
        raise AlreadyRecordedError(f"The purchase {reference} is recorded already.")
    [receipt] = await ledger.list_receipts(connection, found.id, limit=1)
    return output.record_of(receipt, "receipt_number") | await _balance(connection, found.id)


async def record_refund(
    connection: Connection,
    reference: Annotated[str, typer.Argument(help="Of the purchase.")],
    cents: Cents,
    refund: Annotated[str, typer.Option(help="What the refund is called; recorded once.")],
) -> output.Record:
    """Take back the credits of a purchase that was recorded by hand and is being repaid."""
    key = ledger.RefundKey(ledger.OPERATOR, refund, reference)
    account_id = await ledger.record_refund(connection, key, cents)
    if account_id is None:
        raise keys.AccountNotFoundError(f"of the purchase {reference}")
    return await _balance(connection, account_id)


async def adjust(
    connection: Connection,
    account: str,
    cents: Annotated[int, typer.Argument(min=-(10**12), max=10**12, help="May be negative.")],
    reason: Annotated[str, KeptReason],
) -> output.Record:
    """Correct a balance, up or down, never below what is available."""
    found = await keys.get_account(connection, account)
    await ledger.adjust(connection, found.id, cents, reason)
    return await _balance(connection, found.id)


async def list_ledger(
    connection: Connection,
    account: str,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries, newest first.")] = 50,
) -> output.Record:
    """List an account's ledger entries, with the balance and the holds after each."""
    found = await keys.get_account(connection, account)
    names = (
        *("id", "created_at", "kind", "balance_delta_cents", "hold_delta_cents"),
        *("balance_cents", "held_cents", "job_id", "stage", "reason"),
    )
    entries = await ledger.list_entries(connection, found.id, limit=limit)
    return {"entries": [output.record_of(each, *names) for each in entries]}


async def audit_ledger(connection: Connection) -> output.Record:
    """Add up the whole ledger and compare it with every stored total."""
    found = await ledger.find_discrepancies(connection)
    if found:
        listed = (f"{d.what} {d.id}: {d.stored}, by entries {d.by_ledger}" for d in found)
        raise LedgerBrokenError(f"The ledger does not add up: {'; '.join(listed)}.")
    return {"discrepancies": 0}


def usage_csv(lines: Iterable[JobUsage]) -> str:
    """Return a header and a line a job."""
    from serve_app.exports.timeline import csv_table

    header = [
        *("job_id", "created_at", "file_name", "tier", "billable_seconds"),
        *(f"{stage}_cents" for stage in StageName),
        "total_cents",
    ]
    return csv_table(header, [[*_usage_row(line).values()] for line in lines])


def _usage_row(line: JobUsage) -> output.Record:
    return {
        **output.record_of(line, "job_id", "created_at", "file_name", "tier", "billable_seconds"),
        **{f"{stage}Cents": line.charges[stage] for stage in StageName},
        **output.record_of(line, "total_cents"),
    }


def print_usage(
    account: str,
    month: Annotated[str | None, typer.Option(help="YYYY-MM, in UTC; else this month.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for a spreadsheet.")] = False,
    data: output.DataOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """What an account used and was charged in a month, job by job."""
    chosen = _month(month)

    async def list_usage(connection: Connection) -> list[JobUsage]:
        found = await keys.get_account(connection, account)
        return await ledger.list_job_usage(connection, found.id, chosen)

    lines = output.fetch(data, list_usage)
    if as_csv:
        sys.stdout.write(usage_csv(lines))
        return
    output.show({"jobs": [_usage_row(line) for line in lines]}, as_json=as_json)
    if not as_json:
        total = sum(line.total_cents for line in lines)
        seconds = sum(line.billable_seconds for line in lines)
        output.console.print(
            f"{chosen}: {len(lines)} jobs, {seconds} s, {total} cents", highlight=False
        )


def _month(text: str | None) -> Month:
    if text is None:
        return ledger.Month.of(datetime.now(UTC))
    try:
        return ledger.Month.parse(text)
    except ValueError as error:
        raise typer.BadParameter("A month is written YYYY-MM.", param_hint="--month") from error


def store_secret(
    provider: PaymentProviderName = PaymentProviderName.STRIPE,
    data: output.DataOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Store the secret of the provider's webhook, encrypted; prompted for, or read from a pipe."""
    # Before the transaction, which would wait for whoever types.
    secret = _read_secret()

    async def store(connection: Connection, complete: Settings) -> output.Record:
        encrypted = output.encrypter_of(complete).encrypt(secret)
        await ledger.store_credential(connection, provider, encrypted)
        return {"provider": provider, "stored": True}

    output.show(output.in_service(output.settings_with(data), store), as_json=as_json)


def _read_secret() -> str:
    if sys.stdin.isatty():
        secret = str(typer.prompt("Webhook secret", hide_input=True)).strip()
    else:
        secret = sys.stdin.readline(_MAX_SECRET_LENGTH + 100).strip()
    if not secret:
        raise output.UsageError("The secret is empty.")
    if secret.startswith(("sk_", "rk_", "pk_")):
        raise output.UsageError(
            "That is a key of Stripe's API: the secret is the webhook endpoint's own."
        )
    if len(secret) > _MAX_SECRET_LENGTH or not _SECRET.fullmatch(secret):
        raise output.UsageError(
            "That is no secret: one of Stripe begins with whsec_ and has no spaces."
        )
    return secret


credits_app = output.group(
    "Prepaid credits.",
    {
        "grant": grant,
        "purchase": record_purchase,
        "refund": record_refund,
        "ledger": list_ledger,
        "audit": audit_ledger,
    },
)
# Negative cents are no options.
credits_app.command("adjust", context_settings={"ignore_unknown_options": True})(
    output.operation(adjust)
)
payments_app = output.group("The payment provider.", {"set-secret": store_secret})
