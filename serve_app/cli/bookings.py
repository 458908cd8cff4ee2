"""What operators do to credits: each one transaction, returning records."""

from __future__ import annotations

from typing import Any

from serve_app.api.envelope import timestamp
from serve_app.cli.accounts import account_record
from serve_app.encryption import Sealer
from storage import audit, keys, ledger, purchases, usage
from storage.database import Connection
from storage.purchases import OPERATOR, RefundKey
from storage.types import StageName
from storage.usage import JobUsage, LedgerEntry, Month


class AlreadyRecordedError(Exception):
    """A purchase of that reference is recorded already."""


class LedgerBrokenError(Exception):
    """The ledger and the stored totals disagree."""


async def grant_credits(
    connection: Connection, account_name: str, amount_cents: int, reason: str
) -> dict[str, Any]:
    """Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    await ledger.grant(connection, account.id, amount_cents, reason)
    return await _money_record(connection, account_name)


async def adjust(
    connection: Connection, account_name: str, amount_cents: int, reason: str
) -> dict[str, Any]:
    """Raises keys.AccountNotFoundError, ledger.InsufficientCreditsError."""
    account = await keys.get_account(connection, account_name)
    await ledger.adjust(connection, account.id, amount_cents, reason)
    return await _money_record(connection, account_name)


async def purchase(
    connection: Connection, account_name: str, amount_cents: int, reference: str
) -> dict[str, Any]:
    """Raises keys.AccountNotFoundError, AlreadyRecordedError."""
    account = await keys.get_account(connection, account_name)
    fresh = await purchases.record_purchase(
        connection, account.id, amount_cents, provider=OPERATOR, reference=reference
    )
    if not fresh:
        raise AlreadyRecordedError(f"The purchase {reference} is recorded already.")
    [receipt] = await purchases.list_receipts(connection, account.id, limit=1)
    return {"receiptNumber": receipt.receipt_number} | await _money_record(connection, account_name)


async def refund(
    connection: Connection, reference: str, amount_cents: int, refund_reference: str
) -> dict[str, Any]:
    """What of it was taken now; the rest is taken as soon as there are credits."""
    key = RefundKey(OPERATOR, refund_reference, reference)
    account_id = await purchases.record_refund(connection, key, amount_cents)
    if account_id is None:
        raise keys.AccountNotFoundError(f"of the purchase {reference}")
    return await _money_record(connection, str(account_id))


async def _money_record(connection: Connection, account_name: str) -> dict[str, Any]:
    account = await keys.get_account(connection, account_name)
    outstanding = await purchases.outstanding_refund_cents(connection, account.id)
    return account_record(account) | {"outstandingRefundCents": outstanding}


async def ledger_rows(
    connection: Connection, account_name: str, limit: int
) -> list[dict[str, Any]]:
    """The account's last entries, newest first. Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    entries = await usage.list_entries(connection, account.id, limit=limit)
    return [_ledger_row(entry) for entry in entries]


def _ledger_row(entry: LedgerEntry) -> dict[str, Any]:
    return {
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


async def job_usage(connection: Connection, account_name: str, month: Month) -> list[JobUsage]:
    """Raises keys.AccountNotFoundError."""
    account = await keys.get_account(connection, account_name)
    return await usage.list_job_usage(connection, account.id, month)


def usage_row(line: JobUsage) -> dict[str, Any]:
    """A job's line of the usage, for people and programs."""
    charges = {f"{stage}Cents": line.charges[stage] for stage in StageName}
    return {
        "jobId": str(line.job_id),
        "createdAt": timestamp(line.created_at),
        "fileName": line.file_name,
        "tier": str(line.tier),
        "billableSeconds": line.billable_seconds,
        **charges,
        "totalCents": line.total_cents,
    }


async def audit_ledger(connection: Connection) -> dict[str, Any]:
    """Raises LedgerBrokenError, naming what does not add up."""
    found = await audit.find_discrepancies(connection)
    if found:
        listed = "; ".join(f"{d.what} {d.id}: {d.stored}, by entries {d.by_ledger}" for d in found)
        raise LedgerBrokenError(f"The ledger does not add up: {listed}.")
    return {"discrepancies": 0}


async def set_limits(
    connection: Connection,
    account_name: str,
    *,
    max_active_jobs: int | None,
    pay_as_you_go: bool | None,
    credit_limit_cents: int | None,
) -> dict[str, Any]:
    """Raises keys.AccountNotFoundError, keys.LimitTooLowError."""
    account = await keys.get_account(connection, account_name)
    await keys.set_limits(
        connection,
        account.id,
        max_active_jobs=max_active_jobs,
        pay_as_you_go=pay_as_you_go,
        credit_limit_cents=credit_limit_cents,
    )
    changed = await keys.get_account(connection, account_name)
    return account_record(changed) | {
        "maxActiveJobs": changed.max_active_jobs,
        "payAsYouGo": changed.pay_as_you_go,
        "creditLimitCents": changed.credit_limit_cents,
    }


async def store_provider_secret(
    connection: Connection, provider: str, secret: str, sealer: Sealer
) -> dict[str, Any]:
    """Keep the secret of a provider's webhook, encrypted."""
    await purchases.store_credential(connection, provider, sealer.seal(secret))
    return {"provider": provider, "stored": True}
