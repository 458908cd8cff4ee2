"""An account in the middle of things, and the whole ledger read anew after each step."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from storage import jobs, keys, ledger
from storage.database import Database
from storage.job_records import JobSource, NewJob
from storage.types import JobState, ProcessingMode, StageName, StageStatus


@dataclass(frozen=True, slots=True)
class Case:
    """An account with credits, and a quoted job of its that holds part of them."""

    account: uuid.UUID
    job: uuid.UUID
    other_account: uuid.UUID
    other_job: uuid.UUID


QUOTE = {"vision": 40, "transcript": 20}


async def new_case(database: Database) -> Case:
    """100 cents, 60 of them held; a second account just like it."""
    account, job = await account_with_job(database, 100, held_cents=60)
    other_account, other_job = await account_with_job(database, 100, held_cents=60)
    return Case(account, job, other_account, other_job)


async def account_with_job(
    database: Database, credits_cents: int, *, held_cents: int = 0
) -> tuple[uuid.UUID, uuid.UUID]:
    async with database.transaction() as connection:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        await ledger.grant(connection, account.id, credits_cents, "test")
        job = NewJob(
            account.id, JobState.QUEUED, ProcessingMode.ALL, "a.mp4", JobSource(kind="upload")
        )
        await jobs.insert_job(connection, job)
        await jobs.set_quote(
            connection, job.id, duration_ms=1, billable_seconds=30, quote_cents=QUOTE
        )
        await ledger.hold(connection, account.id, job.id, held_cents, "test")
    return account.id, job.id


async def totals(database: Database, account_id: uuid.UUID) -> tuple[int, int]:
    async with database.transaction() as connection:
        assert await ledger.find_discrepancies(connection) == []
        account = await keys.get_account(connection, str(account_id))
    return account.balance_cents, account.held_cents


async def complete(database: Database, case: Case, stage: StageName) -> None:
    async with database.transaction() as connection:
        await ledger.charge(connection, case.account, case.job, stage, QUOTE[stage])
        await jobs.set_stage(connection, case.job, stage, StageStatus.COMPLETED)
