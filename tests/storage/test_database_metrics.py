"""Counting the whole database: right, whatever is open or added meanwhile."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import text

from serve_app.observability.metrics import (
    ACCOUNTS_CENTS,
    JOBS,
    LEDGER_CENTS,
    LEDGER_ENTRIES,
    LEDGER_MISMATCH_CENTS,
    QUEUE_AGE,
    WEBHOOKS_OPEN,
    DatabaseMetrics,
)
from storage import jobs, keys, ledger
from storage.database import Connection, Database
from storage.job_records import JobSource, NewJob
from storage.metrics import LedgerTotals, count_ledger, count_now, ledger_mismatch
from storage.types import JobState, ProcessingMode, StageName, StageStatus, Tier
from tests.serve_app.observability.metrics import RecordedMetrics


def new_job(account_id: uuid.UUID, state: JobState = JobState.QUEUED) -> NewJob:
    return NewJob(
        account_id=account_id,
        state=state,
        processing_mode=ProcessingMode.ALL,
        file_name="a.mp4",
        tier=Tier.STANDARD,
        callback_url=None,
        metadata={},
        source=JobSource(kind="url", base_url="http://x"),
    )


async def account_with_jobs(connection: Connection) -> uuid.UUID:
    """1000 cents granted, 90 held for three jobs: two queued, one charged 20 and cancelled."""
    account = await keys.create_account(connection, uuid.uuid4().hex)
    await ledger.grant(connection, account.id, 1000, "test")
    made = [new_job(account.id) for _ in range(3)]
    for job in made:
        await jobs.insert_job(connection, job)
        await ledger.hold(connection, account.id, job.id, 30, "test")
    await jobs.set_quote(
        connection, made[0].id, duration_ms=1, billable_seconds=1, quote_cents={"vision": 20}
    )
    await jobs.set_stage(connection, made[0].id, StageName.VISION, StageStatus.COMPLETED)
    await ledger.charge(connection, account.id, made[0].id, StageName.VISION, 20)
    await ledger.release_rest(connection, made[0].id, "test")
    await jobs.set_state(connection, made[0].id, expected=JobState.QUEUED, state=JobState.CANCELLED)
    return account.id


async def test_an_empty_database_counts_nothing(database: Database) -> None:
    counts = await count_now(database)
    assert set(counts.unfinished_jobs.values()) == {0}
    assert (counts.queue_age_seconds, counts.open_webhooks, counts.balance_cents) == (0, 0, 0)
    assert await count_ledger(database, LedgerTotals(), settling_seconds=0) == LedgerTotals()


async def test_unfinished_jobs_and_credits_are_counted(database: Database) -> None:
    async with database.transaction() as connection:
        await account_with_jobs(connection)
        await connection.execute(text("UPDATE jobs SET created_at = now() - interval '1 hour'"))
    counts = await count_now(database)
    assert counts.unfinished_jobs == {"awaiting_upload": 0, "queued": 2, "processing": 0}
    assert counts.queue_age_seconds == pytest.approx(3600, abs=60)
    assert (counts.balance_cents, counts.held_cents) == (980, 60)


async def test_the_ledger_is_summed_by_kind_and_then_only_what_is_new(database: Database) -> None:
    account_id = await database.write(account_with_jobs)
    totals = await count_ledger(database, LedgerTotals(), settling_seconds=0)
    assert totals.by_kind == {
        "purchase": (0, 0),
        "grant": (1, 1000),
        "hold": (3, 90),
        "release": (1, 10),
        "charge": (1, 20),
        "adjustment": (0, 0),
    }
    assert await count_ledger(database, totals, settling_seconds=0) == totals
    await database.write(ledger.grant, account_id, 5, "more")
    again = await count_ledger(database, totals, settling_seconds=0)
    assert again.by_kind == totals.by_kind | {"grant": (2, 1005)}


async def test_an_entry_that_is_committed_late_is_not_passed_over(database: Database) -> None:
    """It has the lower number: whoever counted up to the higher one would never see it."""
    async with database.transaction() as connection:
        account = await keys.create_account(connection, "late")
        other = await keys.create_account(connection, "early")
    async with database.transaction() as slow:
        await ledger.grant(slow, account.id, 7, "begun first")
        async with database.transaction() as quick:
            await ledger.grant(quick, other.id, 100, "done first")
        known = await count_ledger(database, LedgerTotals())
        assert known.by_kind["grant"] == (0, 0)
    async with database.transaction() as connection:
        await connection.execute(text("ALTER TABLE ledger_entries DISABLE TRIGGER USER"))
        await connection.execute(
            text("UPDATE ledger_entries SET created_at = now() - :age"),
            {"age": timedelta(seconds=61)},
        )
    assert (await count_ledger(database, known)).by_kind["grant"] == (2, 107)


async def test_a_long_ledger_is_counted_in_pieces(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.metrics._ENTRIES_AT_ONCE", 2)
    async with database.transaction() as connection:
        account = await keys.create_account(connection, "many")
        for number in range(1, 8):
            await ledger.grant(connection, account.id, number, "test")
    totals = await count_ledger(database, LedgerTotals(), settling_seconds=0)
    assert totals.by_kind["grant"] == (7, 28)


async def test_totals_that_are_not_the_sum_of_their_entries_are_found(database: Database) -> None:
    account_id = await database.write(account_with_jobs)
    known = await count_ledger(database, LedgerTotals(), settling_seconds=0)
    await database.write(ledger.grant, account_id, 5, "counted by nobody yet")
    assert (known.balance_cents, known.held_cents) == (980, 60)
    assert await ledger_mismatch(database, LedgerTotals()) == (0, 0)
    assert await ledger_mismatch(database, known) == (0, 0)
    async with database.transaction() as connection:
        await connection.execute(text("ALTER TABLE accounts DISABLE TRIGGER USER"))
        await connection.execute(text("UPDATE accounts SET balance_cents = balance_cents + 7"))
        await connection.execute(text("UPDATE accounts SET held_cents = held_cents - 1"))
    assert await ledger_mismatch(database, known) == (7, -1)


async def test_a_census_records_every_number(database: Database) -> None:
    await database.write(account_with_jobs)
    metrics = RecordedMetrics()
    database_metrics = DatabaseMetrics(database, metrics)
    await database_metrics.take()
    assert metrics.of(JOBS, state="queued") == [2]
    assert metrics.of(JOBS, state="processing") == [0]
    assert metrics.of(ACCOUNTS_CENTS, part="balance") == [980]
    assert metrics.of(ACCOUNTS_CENTS, part="held") == [60]
    assert metrics.of(WEBHOOKS_OPEN) == [0]
    assert len(metrics.of(QUEUE_AGE)) == 1
    # The ledger's own numbers are a minute behind.
    assert metrics.of(LEDGER_ENTRIES, kind="charge") == [0]
    assert metrics.of(LEDGER_CENTS, kind="charge") == [0]
    assert metrics.of(LEDGER_MISMATCH_CENTS, part="balance") == [0]
    assert metrics.of(LEDGER_MISMATCH_CENTS, part="held") == [0]
