"""Payments and refunds, in whatever order a provider tells them: each counts once."""

from __future__ import annotations

import uuid

from sqlalchemy import text

from storage import ledger
from storage.database import Database
from storage.ledger import OPERATOR, RefundKey
from tests.storage.money_case import Case, totals


async def buy(money: Database, account: uuid.UUID, amount_cents: int, reference: str) -> bool:
    return await money.write(
        ledger.record_purchase, account, amount_cents, provider=OPERATOR, reference=reference
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
    await money.write(ledger.hold, case.account, case.job, 440, "test")
    assert await refund(money, 500, f"p of {case.account}") == 400
    assert await totals(money, case.account) == (500, 500)
    await money.write(ledger.release_rest, case.job, "job cancelled")
    assert await totals(money, case.account) == (100, 0)


async def test_spent_credits_that_were_refunded_are_taken_from_the_next_purchase(
    money: Database, case: Case
) -> None:
    await buy(money, case.account, 500, f"p of {case.account}")
    await money.write(ledger.adjust, case.account, -540, "spent")
    assert await refund(money, 500, f"p of {case.account}") == 500
    await buy(money, case.account, 300, f"q of {case.account}")
    assert await totals(money, case.account) == (60, 60)
    await money.write(ledger.grant, case.account, 210, "test")
    assert await totals(money, case.account) == (70, 60)
