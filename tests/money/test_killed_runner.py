"""``kill -9`` of runners at random points: no charge twice, none missing, nothing left held.

VAS_KILL_ROUNDS=100 for the long run. What is checked is read from the ledger, the
jobs and their stages alone, with plain SQL.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import uuid
from collections.abc import Awaitable, Callable
from multiprocessing.process import BaseProcess
from typing import TypeVar

import psycopg
import pytest

from serve_app import pricing
from serve_app.context import AppContext, build_context
from serve_app.settings import Settings
from storage import jobs, keys, ledger
from storage.database import Connection
from storage.job_records import JobSource, NewJob
from storage.types import JobState, ProcessingMode, Tier
from tests.money.runner_process import FAILING_FILE, run_until_done
from tests.serve_app.running_api import transact

Result = TypeVar("Result")
ROUNDS = int(os.environ.get("VAS_KILL_ROUNDS", "4"))
JOBS_A_ROUND = 2
STATEMENTS_OF_TWO_JOBS = 120
"""About what a runner sends for two jobs; deaths are spread over them."""
CREDITS_CENTS = 10**9


def create_jobs(
    settings: Settings, account: uuid.UUID, context: AppContext, chance: random.Random
) -> None:
    async def create(connection: Connection) -> None:
        for _ in range(JOBS_A_ROUND):
            name = chance.choice(["clip.mp4", "clip.mp4", FAILING_FILE])
            source = JobSource(kind="url", base_url="http://test")
            job = NewJob(account, JobState.QUEUED, ProcessingMode.ALL, name, source)
            await jobs.insert_job(connection, job)
            amount = pricing.minimum_hold(context.prices, Tier.STANDARD, ProcessingMode.ALL)
            await ledger.hold(connection, account, job.id, amount, "minimum charge")

    in_database(settings, create)


def in_database(settings: Settings, work: Callable[[Connection], Awaitable[Result]]) -> Result:
    return transact(settings.database_url or "", work)


def new_account(settings: Settings) -> uuid.UUID:
    async def create(connection: Connection) -> uuid.UUID:
        account = await keys.create_account(connection, uuid.uuid4().hex)
        await ledger.grant(connection, account.id, CREDITS_CENTS, "test")
        return account.id

    return in_database(settings, create)


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_killed_runners_charge_nothing_twice_and_miss_nothing(settings: Settings) -> None:
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["tests.money.runner_process"])
    chance = random.Random(20)
    account, context = new_account(settings), build_context(settings)

    def start(dies_at: int | None) -> BaseProcess:
        seed = chance.randrange(2**32)
        process = forkserver.Process(target=run_until_done, args=(settings, seed, dies_at))
        process.start()
        return process

    killed = rounds = 0
    while killed < ROUNDS:
        rounds += 1
        assert rounds <= 4 * ROUNDS, "runners end before they can be killed"
        create_jobs(settings, account, context, chance)
        at_a_statement = rounds % 2 == 0
        victim = start(chance.randrange(1, STATEMENTS_OF_TWO_JOBS) if at_a_statement else None)
        victim.join(10 if at_a_statement else chance.uniform(0.05, 0.6))
        victim.kill()
        victim.join(120)
        killed += victim.exitcode == -signal.SIGKILL
    last = start(None)
    last.join(60)
    assert last.exitcode == 0
    check_books(settings.database_url or "", account, created=rounds * JOBS_A_ROUND)


def check_books(url: str, account: uuid.UUID, *, created: int) -> None:
    """Every completed stage charged its price once, all others nothing; all holds given back."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            """
            SELECT s.status, (j.quote_cents ->> s.stage)::bigint AS price,
                   count(e.id) AS charges, coalesce(-sum(e.balance_delta_cents), 0) AS charged
              FROM jobs j JOIN stages s ON s.job_id = j.id
              LEFT JOIN ledger_entries e
                     ON e.job_id = j.id AND e.stage = s.stage AND e.kind = 'charge'
             WHERE j.account_id = %s AND s.stage <> 'ingest'
             GROUP BY j.id, s.stage, s.status, j.quote_cents
            """,
            [account],
        ).fetchall()
        assert len(found) == 2 * created
        for status, price, charges, charged in found:
            due = (1, price) if status == "completed" else (0, 0)
            assert (charges, charged) == due, (status, price)
        assert any(status == "completed" for status, *_ in found)
        sums = """
            SELECT (SELECT count(*) FROM jobs WHERE account_id = a.id AND completed_at IS NULL),
                   (SELECT sum(held_cents) FROM jobs WHERE account_id = a.id),
                   (SELECT sum(hold_delta_cents) FROM ledger_entries WHERE account_id = a.id),
                   a.held_cents,
                   (SELECT sum(balance_delta_cents) FROM ledger_entries WHERE account_id = a.id)
                   - a.balance_cents
              FROM accounts a WHERE a.id = %s
        """
        assert connection.execute(sums, [account]).fetchone() == (0, 0, 0, 0, 0)
        spent = sum(charged for *_, charged in found)
        balance = "SELECT balance_cents FROM accounts WHERE id = %s"
        assert connection.execute(balance, [account]).fetchone() == (CREDITS_CENTS - spent,)
