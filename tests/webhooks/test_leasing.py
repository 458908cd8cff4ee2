"""Who gets which events: never two senders one event, and to each endpoint its share."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text

from storage.types import DeliveryStatus
from storage.webhooks import (
    DeliveryShares,
    LeasedEvent,
    Record,
    lease_due,
    record_attempts,
    requeue,
    trim_logs,
)
from tests.webhooks.harness import WebhookHarness

LEASE = timedelta(seconds=30)
NOW = timedelta()
WIDE = DeliveryShares(per_endpoint=1000, per_account=1000, most=1000, most_strained=1000)


async def lease(
    harness: WebhookHarness,
    shares: DeliveryShares = WIDE,
    ahead: timedelta = NOW,
    strained: tuple[str, ...] = (),
) -> list[LeasedEvent]:
    return await lease_due(
        harness.context.database, shares, lease=LEASE, ahead=ahead, strained=strained
    )


def delivered(event: LeasedEvent) -> Record:
    return Record(event.id, event.token, DeliveryStatus.DELIVERED, 204, None)


def failed(event: LeasedEvent, pause_seconds: float) -> Record:
    status = DeliveryStatus.PENDING_RETRY
    return Record(event.id, event.token, status, 500, "http_5xx: 500", pause_seconds)


def by_endpoint(events: list[LeasedEvent]) -> Counter[str]:
    return Counter(event.endpoint for event in events)


async def test_what_is_leased_is_leased_to_nobody_else_until_its_lease_ends(
    harness: WebhookHarness,
) -> None:
    ids = await harness.events("https://a.example.com/", 3)
    assert {event.id for event in await lease(harness)} == set(ids)
    assert await lease(harness) == []
    assert await lease(harness, ahead=LEASE - timedelta(seconds=1)) == []
    assert {event.id for event in await lease(harness, ahead=LEASE)} == set(ids)


async def test_senders_that_lease_at_once_share_the_events_and_the_limits(
    harness: WebhookHarness,
) -> None:
    for number in range(4):
        await harness.events(f"https://{number}.example.com/", 6)
    shares = DeliveryShares(per_endpoint=4, per_account=1000, most=5, most_strained=5)
    taken = await asyncio.gather(*(lease(harness, shares) for _ in range(6)))
    found = [event for events in taken for event in events]
    assert len({event.id for event in found}) == len(found) == 16
    assert set(by_endpoint(found).values()) == {4}


async def test_endpoints_take_turns_whatever_their_backlogs(harness: WebhookHarness) -> None:
    await harness.events("https://busy.example.com/", 20)
    await harness.events("https://other.example.com/", 2)
    await harness.events("https://third.example.com/", 1)
    shares = DeliveryShares(per_endpoint=16, per_account=64, most=6, most_strained=6)
    assert sorted(by_endpoint(await lease(harness, shares)).values()) == [1, 2, 3]


async def test_what_is_under_way_counts_against_the_endpoints_limit(
    harness: WebhookHarness,
) -> None:
    await harness.events("https://busy.example.com/", 20)
    shares = DeliveryShares(per_endpoint=3, per_account=64, most=100, most_strained=100)
    first = await lease(harness, shares)
    assert (len(first), await lease(harness, shares)) == (3, [])
    await record_attempts(harness.context.database, [delivered(first[0])], ahead=NOW)
    assert len(await lease(harness, shares)) == 1


async def test_an_account_with_many_endpoints_has_a_limit_too(harness: WebhookHarness) -> None:
    account = await harness.account()
    for number in range(6):
        await harness.events(f"https://{number}.example.com/", 2, account)
    await harness.events("https://other.example.com/", 2)
    shares = DeliveryShares(per_endpoint=2, per_account=4, most=100, most_strained=100)
    counts = Counter(event.account_id for event in await lease(harness, shares))
    assert sorted(counts.values()) == [2, 4]
    assert counts[account] == 4
    assert await lease(harness, shares) == []


async def test_an_endpoint_is_an_accounts_origin(harness: WebhookHarness) -> None:
    account = await harness.account()
    urls = ["https://a.example.com/x", "https://A.example.com/y?z", "https://a.example.com:444/"]
    for url in urls:
        await harness.event(url, account)
    await harness.event(urls[0])
    assert sorted(by_endpoint(await lease(harness)).values()) == [1, 1, 2]


async def test_strained_endpoints_share_what_is_left_to_them(harness: WebhookHarness) -> None:
    for number in range(4):
        await harness.events(f"https://dead{number}.example.com/", 5)
    await harness.events("https://sound.example.com/", 5)
    rows = await harness.rows()
    strained = tuple({row["endpoint"] for row in rows if "dead" in row["endpoint"]})
    shares = DeliveryShares(per_endpoint=16, per_account=64, most=100, most_strained=4)
    counts = by_endpoint(await lease(harness, shares, strained=strained))
    assert sorted(counts.values()) == [1, 1, 1, 1, 5]


async def test_a_record_counts_only_while_its_lease_holds(harness: WebhookHarness) -> None:
    event_id = await harness.event("https://a.example.com/")
    [early] = await lease(harness)
    [late] = await lease(harness, ahead=LEASE)
    assert await record_attempts(harness.context.database, [delivered(early)], ahead=NOW) == set()
    row = await harness.row(event_id)
    assert (row["status"], row["attempts"]) == ("in_flight", 0)
    assert await record_attempts(harness.context.database, [delivered(late)], ahead=NOW) == {
        event_id
    }
    assert await record_attempts(harness.context.database, [delivered(late)], ahead=NOW) == set()
    row = await harness.row(event_id)
    assert (row["status"], row["attempts"], row["lease_token"]) == ("delivered", 1, None)


async def test_a_failed_attempt_is_due_after_its_pause(harness: WebhookHarness) -> None:
    await harness.event("https://a.example.com/")
    [event] = await lease(harness)
    await record_attempts(harness.context.database, [failed(event, 20)], ahead=NOW)
    assert await lease(harness, ahead=timedelta(seconds=19)) == []
    [again] = await lease(harness, ahead=timedelta(seconds=21))
    assert (again.id, again.attempts) == (event.id, 1)


@pytest.mark.parametrize(("attempts", "status"), [(0, "in_flight"), (1, "pending_retry")])
async def test_what_is_requeued_is_due_at_once_and_counts_no_attempt(
    harness: WebhookHarness, attempts: int, status: str
) -> None:
    event_id = await harness.event("https://a.example.com/")
    if attempts:
        [event] = await lease(harness)
        await record_attempts(harness.context.database, [failed(event, 0)], ahead=NOW)
    held = await lease(harness)
    await harness.context.database.write(requeue, held, ahead=NOW)
    row = await harness.row(event_id)
    assert (row["status"], row["attempts"], row["lease_token"]) == (status, attempts, None)
    assert [event.id for event in await lease(harness)] == [event_id]


async def test_a_great_backlog_of_one_endpoint_costs_another_nothing(
    harness: WebhookHarness,
) -> None:
    """The events of an endpoint are never counted through, nor those of others sorted."""
    account = await harness.account()
    await harness.event("https://dead.example.com/", account)
    await harness.execute(COPY_EVENT, count=20_000)
    wanted = await harness.event("https://sound.example.com/")
    await harness.execute("ANALYZE webhook_events")
    shares = DeliveryShares(per_endpoint=4, per_account=64, most=100, most_strained=100)
    leased = await lease(harness, shares)
    assert wanted in {event.id for event in leased}
    assert len(leased) == 5
    assert 0 < await rows_read(harness) < 1000


async def rows_read(harness: WebhookHarness) -> int:
    """Rows fetched through the index of due events, as soon as the server has counted them."""
    for _ in range(100):
        [read] = await harness.context.database.query(text(ROWS_READ))
        if read["rows"]:
            break
        await asyncio.sleep(0.1)
    return int(read["rows"])


COPY_EVENT = """
    INSERT INTO webhook_events (id, account_id, job_id, event_type, url, body)
    SELECT 'copy ' || number, account_id, job_id, event_type, url, body
      FROM webhook_events, generate_series(1, :count) AS number
"""

ROWS_READ = """
    SELECT idx_tup_fetch + idx_tup_read AS rows
      FROM (SELECT pg_stat_clear_snapshot()) AS fresh, pg_stat_user_indexes
     WHERE indexrelname = 'ix_webhook_events_due'
"""


async def test_logs_are_cut_to_100_but_what_is_owed_or_switched_off_stays(
    harness: WebhookHarness,
) -> None:
    account, other = await harness.account(), await harness.account()
    await fill_log(
        harness, account, ["in_flight", "pending_retry", "disabled"] + ["delivered"] * 107
    )
    await fill_log(harness, other, ["failed"] * 101)
    async with harness.context.database.transaction() as connection:
        assert await trim_logs(connection, [account]) == 7
        assert await trim_logs(connection, [account]) == 0
        assert await trim_logs(connection) == 1
    kept = [row for row in await harness.rows() if row["account_id"] == account]
    assert len(kept) == 103
    oldest = sorted(kept, key=lambda row: row["created_at"])[:4]
    statuses = [row["status"] for row in oldest]
    assert statuses == ["in_flight", "pending_retry", "disabled", "delivered"]


async def fill_log(harness: WebhookHarness, account: uuid.UUID, statuses: list[str]) -> None:
    """Events of these statuses, the oldest first, a second apart."""
    await harness.event("https://a.example.com/", account)
    async with harness.context.database.transaction() as connection:
        for age, status in enumerate(reversed(statuses)):
            await connection.execute(
                text(INSERT_PAST),
                {"account": account, "status": status, "age": age, "id": f"{account} {age}"},
            )
        drop = text("DELETE FROM webhook_events WHERE account_id = :id AND id NOT LIKE '% %'")
        await connection.execute(drop, {"id": account})


INSERT_PAST = """
    INSERT INTO webhook_events
           (id, account_id, job_id, event_type, url, body, status, next_attempt_at, created_at)
    SELECT :id, account_id, job_id, event_type, url, body, :status,
           CASE WHEN :status IN ('in_flight', 'pending_retry') THEN now() END,
           now() - make_interval(secs => :age)
      FROM webhook_events WHERE account_id = :account LIMIT 1
"""
