"""Money rules that the database itself holds: each broken by raw SQL, each refused."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from storage import jobs, keys, ledger
from storage.database import Database
from storage.ledger import InsufficientCreditsError
from storage.types import StageName
from tests.storage.forbidden_entries import AFTERWARDS, FORBIDDEN
from tests.storage.money_case import Case, complete, totals
from tests.tables import every


async def test_hold_charge_and_release_add_up(money: Database, case: Case) -> None:
    await complete(money, case, StageName.VISION)
    assert await totals(money, case.account) == (60, 20)
    async with money.transaction() as connection:
        await ledger.release_rest(connection, case.job, "test")
        await ledger.release_rest(connection, case.job, "again: nothing left")
    assert await totals(money, case.account) == (60, 0)
    found = await money.write(jobs.find_job, case.job)
    assert found is not None
    assert (found.charged_cents, found.held_cents) == (40, 0)


async def test_a_hold_beyond_the_credits_is_refused_and_leaves_nothing(
    money: Database, case: Case
) -> None:
    async with money.transaction() as connection:
        with pytest.raises(InsufficientCreditsError):
            await ledger.hold(connection, case.account, case.job, 41, "test")
        await ledger.hold(connection, case.account, case.job, 40, "test")
    assert await totals(money, case.account) == (100, 100)


async def test_an_adjustment_takes_no_more_than_is_available(money: Database, case: Case) -> None:
    async with money.transaction() as connection:
        with pytest.raises(InsufficientCreditsError):
            await ledger.adjust(connection, case.account, -41, "too much")
        await ledger.adjust(connection, case.account, -40, "all of it")
    assert await totals(money, case.account) == (60, 60)


async def test_pay_as_you_go_goes_down_to_the_credit_limit_and_no_cent_further(
    money: Database, case: Case
) -> None:
    async with money.transaction() as connection:
        await keys.set_limits(connection, case.account, pay_as_you_go=True, credit_limit_cents=25)
        with pytest.raises(InsufficientCreditsError):
            await ledger.hold(connection, case.account, case.job, 66, "test")
        await ledger.hold(connection, case.account, case.job, 65, "test")
    assert await totals(money, case.account) == (100, 125)
    async with money.transaction() as connection:
        with pytest.raises(keys.LimitTooLowError):
            await keys.set_limits(connection, case.account, credit_limit_cents=24)
        with pytest.raises(keys.LimitTooLowError):
            await keys.set_limits(connection, case.account, pay_as_you_go=False)


async def run(money: Database, statements: str, given: dict[str, uuid.UUID]) -> None:
    async with money.transaction() as connection:
        for statement in statements.split(";"):
            await connection.execute(text(statement), given)


@every(("statements", "complaint"), FORBIDDEN)
async def test_the_database_refuses(
    money: Database, case: Case, statements: str, complaint: str
) -> None:
    given = {
        "account": case.account,
        "job": case.job,
        "other_job": case.other_job,
        "fresh": uuid.uuid4(),
    }
    with pytest.raises(DBAPIError, match=complaint):
        await run(money, statements, given)
    assert await totals(money, case.account) == (100, 60)


@pytest.mark.parametrize(("statement", "complaint"), AFTERWARDS)
async def test_of_a_charged_stage_the_database_refuses(
    money: Database, case: Case, statement: str, complaint: str
) -> None:
    await complete(money, case, StageName.VISION)
    with pytest.raises(DBAPIError, match=complaint):
        await run(money, statement, {"account": case.account, "job": case.job})
    assert await totals(money, case.account) == (60, 20)


async def test_the_audit_finds_what_a_disabled_trigger_let_through(
    money: Database, case: Case
) -> None:
    async with money.transaction() as connection:
        await connection.execute(text("ALTER TABLE accounts DISABLE TRIGGER USER"))
        wrong = text("UPDATE accounts SET balance_cents = balance_cents + 1 WHERE id = :account")
        await connection.execute(wrong, {"account": case.account})
        [found] = await ledger.find_discrepancies(connection)
    assert found.what == "account balance"
    assert found.id == str(case.account)
    assert (found.stored, found.by_ledger) == (101, 100)
