"""Money rules that the database itself holds."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import text

from storage import jobs, keys, ledger
from storage.database import Database
from storage.job_records import NewJob
from storage.ledger import InsufficientCreditsError
from storage.types import JobState, ProcessingMode, StageName


async def account_with_job(database: Database, credits_cents: int) -> tuple[uuid.UUID, uuid.UUID]:
    async with database.transaction() as connection:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        if credits_cents:
            await ledger.grant(connection, account.id, credits_cents, "test")
        job = NewJob(account.id, JobState.QUEUED, ProcessingMode.ALL, "a.mp4", {})
        await jobs.insert_job(connection, job)
    return account.id, job.id


async def totals(database: Database, account_id: uuid.UUID) -> tuple[int, int]:
    async with database.transaction() as connection:
        account = await keys.get_account(connection, str(account_id))
    return account.balance_cents, account.held_cents


async def test_hold_charge_and_release_add_up(database: Database) -> None:
    account, job = await account_with_job(database, 100)
    async with database.transaction() as connection:
        await ledger.hold(connection, account, job, 60, "test")
        await ledger.charge(connection, account, job, StageName.VISION, 40)
    assert await totals(database, account) == (60, 20)
    async with database.transaction() as connection:
        await ledger.release_rest(connection, job, "test")
        await ledger.release_rest(connection, job, "again: nothing left")
    assert await totals(database, account) == (60, 0)
    async with database.transaction() as connection:
        found = await jobs.find_job(connection, job)
    assert found is not None
    assert (found.charged_cents, found.held_cents) == (40, 0)


async def test_a_hold_beyond_the_credits_is_refused_and_leaves_nothing(database: Database) -> None:
    account, job = await account_with_job(database, 100)
    async with database.transaction() as connection:
        await ledger.hold(connection, account, job, 90, "test")
        with pytest.raises(InsufficientCreditsError):
            await ledger.hold(connection, account, job, 11, "test")
    assert await totals(database, account) == (100, 90)


FORBIDDEN = [
    pytest.param(
        "INSERT INTO ledger_entries (account_id, kind, balance_delta_cents, hold_delta_cents,"
        " job_id, stage, reason) VALUES (:account, 'charge', -5, -5, :job, 'vision', 'x')",
        "held_not_negative",
        id="a charge without a hold",
    ),
    pytest.param(
        "INSERT INTO ledger_entries (account_id, kind, balance_delta_cents, hold_delta_cents,"
        " job_id, reason) VALUES (:account, 'release', 0, -5, :job, 'x')",
        "held_not_negative",
        id="a release of what was not held",
    ),
    pytest.param(
        "INSERT INTO ledger_entries (account_id, kind, balance_delta_cents, hold_delta_cents,"
        " reason) VALUES (:account, 'grant', -5, 0, 'x')",
        "amounts_fit_kind",
        id="a grant that takes",
    ),
    pytest.param(
        "UPDATE ledger_entries SET balance_delta_cents = 9999",
        "append-only",
        id="rewriting history",
    ),
    pytest.param("DELETE FROM ledger_entries", "append-only", id="deleting history"),
]


@pytest.mark.parametrize(("statement", "complaint"), FORBIDDEN)
async def test_the_database_refuses(database: Database, statement: str, complaint: str) -> None:
    account, job = await account_with_job(database, 100)
    with pytest.raises(Exception, match=complaint):
        async with database.transaction() as connection:
            await connection.execute(text(statement), {"account": account, "job": job})
    assert await totals(database, account) == (100, 0)


async def test_a_stage_cannot_be_charged_twice(database: Database) -> None:
    account, job = await account_with_job(database, 100)
    async with database.transaction() as connection:
        await ledger.hold(connection, account, job, 60, "test")
        await ledger.charge(connection, account, job, StageName.VISION, 10)
    with pytest.raises(Exception, match="uq_ledger_entries_charge"):
        async with database.transaction() as connection:
            await ledger.charge(connection, account, job, StageName.VISION, 10)
    assert await totals(database, account) == (90, 50)
