"""The ledger: append-only entries; the running totals follow by a trigger (see migrations).

Every function takes the caller's transaction. The database refuses what must
not be: a hold that is not covered, a charge beyond a hold, a second charge.
"""

from __future__ import annotations

import uuid

from sqlalchemy import exists, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import accounts, jobs, ledger_entries
from storage.types import LedgerKind, StageName


class InsufficientCreditsError(Exception):
    """The account's available credits do not cover the hold."""


async def grant(
    connection: AsyncConnection, account_id: uuid.UUID, amount_cents: int, reason: str
) -> None:
    """Give credits; ``amount_cents`` must be positive."""
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.GRANT,
        balance_delta_cents=amount_cents,
        hold_delta_cents=0,
        reason=reason,
    )


async def hold(
    connection: AsyncConnection,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    amount_cents: int,
    reason: str,
) -> None:
    """Promise ``amount_cents`` more to a job; raises InsufficientCreditsError, changing nothing."""
    if amount_cents == 0:
        return
    try:
        async with connection.begin_nested():
            await _append(
                connection,
                account_id=account_id,
                kind=LedgerKind.HOLD,
                balance_delta_cents=0,
                hold_delta_cents=amount_cents,
                job_id=job_id,
                reason=reason,
            )
    except IntegrityError as error:
        if "holds_are_covered" not in str(error.orig):
            raise
        raise InsufficientCreditsError from error


async def charge(
    connection: AsyncConnection,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    stage: StageName,
    amount_cents: int,
) -> None:
    """Turn part of the job's hold into a charge for a completed stage."""
    if amount_cents == 0:
        return
    await _append(
        connection,
        account_id=account_id,
        kind=LedgerKind.CHARGE,
        balance_delta_cents=-amount_cents,
        hold_delta_cents=-amount_cents,
        job_id=job_id,
        stage=stage,
        reason=f"{stage} completed",
    )


async def release_rest(connection: AsyncConnection, job_id: uuid.UUID, reason: str) -> None:
    """Give back whatever is still held for a job; nothing if nothing is."""
    query = select(jobs.c.account_id, jobs.c.held_cents).where(jobs.c.id == job_id)
    row = (await connection.execute(query.with_for_update())).one()
    if row.held_cents == 0:
        return
    await _append(
        connection,
        account_id=row.account_id,
        kind=LedgerKind.RELEASE,
        balance_delta_cents=0,
        hold_delta_cents=-row.held_cents,
        job_id=job_id,
        reason=reason,
    )


async def has_purchases(connection: AsyncConnection, account_id: uuid.UUID) -> bool:
    """Whether anything was ever purchased for the account."""
    query = select(
        exists().where(
            ledger_entries.c.account_id == account_id,
            ledger_entries.c.kind == LedgerKind.PURCHASE,
        )
    )
    return bool((await connection.execute(query)).scalar_one())


async def lock_account(connection: AsyncConnection, account_id: uuid.UUID) -> None:
    """Make money operations of one account wait for each other."""
    await connection.execute(
        select(accounts.c.id).where(accounts.c.id == account_id).with_for_update()
    )


async def _append(connection: AsyncConnection, **values: object) -> None:
    await connection.execute(insert(ledger_entries).values(**values))
