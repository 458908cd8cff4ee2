"""Money rules that the database itself holds: each broken by raw SQL, each refused."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from storage import jobs, keys, ledger
from storage.database import Database
from storage.job_records import JobSource, NewJob
from storage.ledger import OPERATOR, InsufficientCreditsError, RefundKey
from storage.types import JobState, ProcessingMode, StageName, StageStatus
from tests.storage.forbidden_entries import AFTERWARDS, FORBIDDEN
from tests.tables import every


async def test_hold_charge_and_release_add_up(money: Database, case: Case) -> None:
    await complete(money, case, StageName.VISION)
    assert await totals(money, case.account) == (60, 20)
    async with money.transaction() as connection:
        await ledger.release_rest(connection, case.job, "test")
        await ledger.release_rest(connection, case.job, "again: nothing left")
    assert await totals(money, case.account) == (60, 0)
    async with money.transaction() as connection:
        found = await jobs.find_job(connection, case.job)
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


async def buy(money: Database, account: uuid.UUID, amount_cents: int, reference: str) -> bool:
    async with money.transaction() as connection:
        return await ledger.record_purchase(
            connection, account, amount_cents, provider=OPERATOR, reference=reference
        )


async def refund(money: Database, amount_cents: int, payment: str, *, undo: bool = False) -> int:
    """Record or reverse; returns what is still to be taken from the payment's account."""
    record = ledger.reverse_refund if undo else ledger.record_refund
    async with money.transaction() as connection:
        key = RefundKey(OPERATOR, f"refund of {payment}", payment)
        await record(connection, key, amount_cents)
        query = text(
            "SELECT amount_cents - taken_cents FROM refunds WHERE payment_reference = :payment"
        )
        return int((await connection.execute(query, {"payment": payment})).scalar_one())


async def test_a_payment_is_credited_once_and_receipts_are_counted_without_gaps(
    money: Database, case: Case
) -> None:
    assert await buy(money, case.account, 500, f"first of {case.account}")
    assert not await buy(money, case.account, 500, f"first of {case.account}")
    assert not await buy(money, case.other_account, 500, f"first of {case.account}")
    assert await buy(money, case.other_account, 700, f"second of {case.account}")
    assert await totals(money, case.account) == (600, 60)
    assert await totals(money, case.other_account) == (800, 60)
    async with money.transaction() as connection:
        [first] = await ledger.list_receipts(connection, case.account, limit=10)
        [second] = await ledger.list_receipts(connection, case.other_account, limit=10)
    assert second.receipt_number == first.receipt_number + 1
    assert (second.amount_cents, second.provider, second.reference) == (
        700,
        OPERATOR,
        f"second of {case.account}",
    )


async def test_a_refund_is_taken_once_and_given_back_once(money: Database, case: Case) -> None:
    await buy(money, case.account, 500, f"p of {case.account}")
    await refund(money, 200, f"p of {case.account}")
    await refund(money, 200, f"p of {case.account}")
    assert await totals(money, case.account) == (400, 60)
    await refund(money, 200, f"p of {case.account}", undo=True)
    await refund(money, 200, f"p of {case.account}", undo=True)
    await refund(money, 200, f"p of {case.account}")
    assert await totals(money, case.account) == (600, 60)


async def test_a_reversal_gives_back_what_was_taken_and_no_more(
    money: Database, case: Case
) -> None:
    """Of a refund of 600, the 540 that were free could be taken."""
    payment = f"p of {case.account}"
    await buy(money, case.account, 500, payment)
    assert await refund(money, 600, payment) == 60
    assert await totals(money, case.account) == (60, 60)
    await refund(money, 600, payment, undo=True)
    assert await totals(money, case.account) == (600, 60)


async def test_a_refund_told_before_its_purchase_is_taken_with_it(
    money: Database, case: Case
) -> None:
    await refund(money, 200, f"p of {case.account}")
    assert await totals(money, case.account) == (100, 60)
    await buy(money, case.account, 500, f"p of {case.account}")
    assert await totals(money, case.account) == (400, 60)


async def test_a_refund_reversed_before_all_else_never_takes_anything(
    money: Database, case: Case
) -> None:
    await refund(money, 200, f"p of {case.account}", undo=True)
    await refund(money, 200, f"p of {case.account}")
    await buy(money, case.account, 500, f"p of {case.account}")
    assert await totals(money, case.account) == (600, 60)


async def test_what_a_refund_cannot_take_waits_for_the_next_credits(
    money: Database, case: Case
) -> None:
    """500 bought and 600 held by jobs or spent: of the refund only what is free can be taken."""
    await buy(money, case.account, 500, f"p of {case.account}")
    async with money.transaction() as connection:
        await ledger.hold(connection, case.account, case.job, 440, "test")
    assert await refund(money, 500, f"p of {case.account}") == 400
    assert await totals(money, case.account) == (500, 500)
    async with money.transaction() as connection:
        await ledger.release_rest(connection, case.job, "job cancelled")
    assert await totals(money, case.account) == (100, 0)


async def test_spent_credits_that_were_refunded_are_taken_from_the_next_purchase(
    money: Database, case: Case
) -> None:
    await buy(money, case.account, 500, f"p of {case.account}")
    async with money.transaction() as connection:
        await ledger.adjust(connection, case.account, -540, "spent")
    assert await refund(money, 500, f"p of {case.account}") == 500
    await buy(money, case.account, 300, f"q of {case.account}")
    assert await totals(money, case.account) == (60, 60)
    async with money.transaction() as connection:
        await ledger.grant(connection, case.account, 210, "test")
    assert await totals(money, case.account) == (70, 60)


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
