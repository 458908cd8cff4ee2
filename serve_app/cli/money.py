"""``vas credits | usage | payments``: money, for the operator."""

from __future__ import annotations

import re
import sys
import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_app.cli.accounts import account_record
from serve_app.cli.output import (
    DataOption,
    JsonOption,
    UsageError,
    administer,
    console,
    encrypter_of,
    fetch,
    in_service,
    settings_with,
    show,
    show_list,
)
from storage.types import StageName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from serve_app.settings import Settings
    from storage.database import Connection
    from storage.ledger import JobUsage, LedgerEntry, Month


class AlreadyRecordedError(Exception):
    """A purchase of that reference is recorded already."""


class LedgerBrokenError(Exception):
    """The ledger and the stored totals disagree."""


Cents = Annotated[int, typer.Argument(min=1, max=10**12)]


_MAX_SECRET_LENGTH = 256
_SECRET = re.compile(r"whsec_[\x21-\x7e]{16,}")


class PaymentProviderName(StrEnum):
    """Payment providers that the service supports."""

    STRIPE = "stripe"


credits_app = typer.Typer(no_args_is_help=True, help="Prepaid credits.")
payments_app = typer.Typer(no_args_is_help=True, help="The payment provider.")


async def _balance(connection: Connection, account_id: uuid.UUID) -> dict[str, Any]:
    from storage import keys, ledger

    account = await keys.get_account(connection, str(account_id))
    outstanding = await ledger.outstanding_refund_cents(connection, account_id)
    return account_record(account) | {"outstandingRefundCents": outstanding}


@credits_app.command("grant")
def credits_grant(
    account: str,
    cents: Cents,
    reason: Annotated[str, typer.Option(help="Kept with the ledger entry.")] = "operator grant",
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an account credits."""
    from storage import keys, ledger

    async def grant(connection: Connection) -> dict[str, Any]:
        found = await keys.get_account(connection, account)
        await ledger.grant(connection, found.id, cents, reason)
        return await _balance(connection, found.id)

    administer(data, grant, as_json)


@credits_app.command("purchase")
def credits_purchase(
    account: str,
    cents: Cents,
    reference: Annotated[str, typer.Option(help="The invoice or transfer; recorded once.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record money that came in another way than through the payment provider."""
    from storage import keys, ledger

    async def record(connection: Connection) -> dict[str, Any]:
        found = await keys.get_account(connection, account)
        if not await ledger.record_purchase(
            connection, found.id, cents, provider=ledger.OPERATOR, reference=reference
        ):
            raise AlreadyRecordedError(f"The purchase {reference} is recorded already.")
        [receipt] = await ledger.list_receipts(connection, found.id, limit=1)
        return {"receiptNumber": receipt.receipt_number} | await _balance(connection, found.id)

    administer(data, record, as_json)


@credits_app.command("refund")
def credits_refund(
    reference: Annotated[str, typer.Argument(help="Of the purchase.")],
    cents: Cents,
    refund: Annotated[str, typer.Option(help="What the refund is called; recorded once.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back the credits of a purchase that was recorded by hand and is being repaid."""
    from storage import keys, ledger

    async def record(connection: Connection) -> dict[str, Any]:
        key = ledger.RefundKey(ledger.OPERATOR, refund, reference)
        account_id = await ledger.record_refund(connection, key, cents)
        if account_id is None:
            raise keys.AccountNotFoundError(f"of the purchase {reference}")
        return await _balance(connection, account_id)

    administer(data, record, as_json)


@credits_app.command("adjust", context_settings={"ignore_unknown_options": True})
def credits_adjust(
    account: str,
    cents: Annotated[int, typer.Argument(min=-(10**12), max=10**12, help="May be negative.")],
    reason: Annotated[str, typer.Option(help="Kept with the ledger entry.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Correct a balance, up or down, never below what is available."""
    from storage import keys, ledger

    async def adjust(connection: Connection) -> dict[str, Any]:
        found = await keys.get_account(connection, account)
        await ledger.adjust(connection, found.id, cents, reason)
        return await _balance(connection, found.id)

    administer(data, adjust, as_json)


@credits_app.command("ledger")
def credits_ledger(
    account: str,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries, newest first.")] = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List an account's ledger entries, with the balance and the holds after each."""
    from serve_app.api.envelope import timestamp
    from storage import keys, ledger

    async def list_entries(connection: Connection) -> list[LedgerEntry]:
        found = await keys.get_account(connection, account)
        return await ledger.list_entries(connection, found.id, limit=limit)

    rows = [
        {
            "id": entry.id,
            "createdAt": timestamp(entry.created_at),
            "kind": str(entry.kind),
            "balanceDeltaCents": entry.balance_delta_cents,
            "holdDeltaCents": entry.hold_delta_cents,
            "balanceCents": entry.balance_cents,
            "heldCents": entry.held_cents,
            "jobId": None if entry.job_id is None else str(entry.job_id),
            "stage": entry.stage,
            "reason": entry.reason,
        }
        for entry in fetch(data, list_entries)
    ]
    show_list(rows, "entries", as_json)


@credits_app.command("audit")
def credits_audit(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Add up the whole ledger and compare it with every stored total."""
    from storage import ledger

    async def audit(connection: Connection) -> dict[str, Any]:
        found = await ledger.find_discrepancies(connection)
        if found:
            listed = (f"{d.what} {d.id}: {d.stored}, by entries {d.by_ledger}" for d in found)
            raise LedgerBrokenError(f"The ledger does not add up: {'; '.join(listed)}.")
        return {"discrepancies": 0}

    administer(data, audit, as_json)


def usage_csv(lines: Iterable[JobUsage]) -> str:
    """A header and a line a job."""
    from serve_app.api.envelope import timestamp
    from serve_app.exports.timeline import csv_table

    stages = [f"{stage}_cents" for stage in StageName]
    first = ("job_id", "created_at", "file_name", "tier", "billable_seconds")
    rows = (
        [
            line.job_id,
            timestamp(line.created_at),
            line.file_name,
            line.tier,
            line.billable_seconds,
            *(line.charges[stage] for stage in StageName),
            line.total_cents,
        ]
        for line in lines
    )
    return csv_table([*first, *stages, "total_cents"], rows)


def print_usage(
    account: str,
    month: Annotated[str | None, typer.Option(help="YYYY-MM, in UTC; else this month.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for a spreadsheet.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """What an account used and was charged in a month, job by job."""
    from serve_app.api.envelope import timestamp
    from storage import keys, ledger

    chosen = _month(month)

    async def list_usage(connection: Connection) -> list[JobUsage]:
        found = await keys.get_account(connection, account)
        return await ledger.list_job_usage(connection, found.id, chosen)

    lines = fetch(data, list_usage)
    if as_csv:
        sys.stdout.write(usage_csv(lines))
        return
    rows = [
        {
            "jobId": str(line.job_id),
            "createdAt": timestamp(line.created_at),
            "fileName": line.file_name,
            "tier": str(line.tier),
            "billableSeconds": line.billable_seconds,
            **{f"{stage}Cents": line.charges[stage] for stage in StageName},
            "totalCents": line.total_cents,
        }
        for line in lines
    ]
    show_list(rows, "jobs", as_json)
    if not as_json:
        total = sum(line.total_cents for line in lines)
        seconds = sum(line.billable_seconds for line in lines)
        console.print(f"{chosen}: {len(lines)} jobs, {seconds} s, {total} cents", highlight=False)


def _month(text: str | None) -> Month:
    from storage.ledger import Month

    if text is None:
        return Month.of(datetime.now(UTC))
    try:
        return Month.parse(text)
    except ValueError as error:
        raise typer.BadParameter("A month is written YYYY-MM.", param_hint="--month") from error


@payments_app.command("set-secret")
def payments_set_secret(
    provider: PaymentProviderName = PaymentProviderName.STRIPE,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store the secret of the provider's webhook, encrypted; prompted for, or read from a pipe."""
    from storage import ledger

    secret = _read_secret()

    async def store(connection: Connection, complete: Settings) -> dict[str, Any]:
        encrypted = encrypter_of(complete).encrypt(secret)
        await ledger.store_credential(connection, provider, encrypted)
        return {"provider": provider, "stored": True}

    show(in_service(settings_with(data), store), as_json=as_json)


def _read_secret() -> str:
    if sys.stdin.isatty():
        secret = str(typer.prompt("Webhook secret", hide_input=True)).strip()
    else:
        secret = sys.stdin.readline(_MAX_SECRET_LENGTH + 100).strip()
    if not secret:
        raise UsageError("The secret is empty.")
    if secret.startswith(("sk_", "rk_", "pk_")):
        raise UsageError("That is a key of Stripe's API: the secret is the webhook endpoint's own.")
    if len(secret) > _MAX_SECRET_LENGTH or not _SECRET.fullmatch(secret):
        raise UsageError("That is no secret: one of Stripe begins with whsec_ and has no spaces.")
    return secret
