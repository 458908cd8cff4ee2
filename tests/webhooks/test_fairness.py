"""Slow and dead endpoints, senders that come and go: nobody else's events wait or are lost."""

from __future__ import annotations

import asyncio
import socket
import threading
from datetime import timedelta

import pytest

from serve_app.webhooks.sender import Attempts, StrainedEndpoints
from serve_app.webhooks.sending import Connections, Outcome, delivery_options
from storage.webhooks import DeliveryShares, lease_due
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.misbehaviour import CASES
from tests.webhooks.receivers import Delivered, status

SILENT = CASES["hangs before the status line"].script


async def test_a_dead_endpoint_with_a_backlog_delays_no_other(
    harness: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's twenty are delivered before the deadline of the dead one's first has come."""
    monkeypatch.setattr("serve_app.webhooks.sender.FINISH_SECONDS", 0.1)
    # A lease outlives an attempt, also one of this deadline: else it would be made again.
    harness.change_settings(webhook_lease_seconds=180)
    over = threading.Event()
    dead, sound = harness.receiver(lambda *_: over.wait(90)), harness.receiver()
    backlog = await harness.events(dead.url, 60)
    async with harness.sending(deadline_seconds=90.0):
        await harness.until(lambda row: row["lease_token"] is not None, backlog[0])
        for _ in range(20):
            await harness.attempted(await harness.event(sound.url))
        undecided = [row for row in await harness.rows() if row["id"] in backlog]
        assert len(dead.received) <= 16  # its limit
        assert {row["attempts"] for row in undecided} == {0}
        assert len(sound.received) == 20
    over.set()


async def test_dead_endpoints_of_many_accounts_leave_room_for_others(
    harness: WebhookHarness,
) -> None:
    """As many of them as the sender has places: once found out, they get a quarter of these."""
    harness.change_settings(webhook_concurrency=8)
    dead, sound = harness.receiver(SILENT), harness.receiver()
    lost = [await harness.event(dead.url) for _ in range(8)]
    async with harness.sending(deadline_seconds=6.0) as sender:
        for event_id in lost:
            await harness.attempted(event_id)
        harness.clock.ahead += timedelta(seconds=12)
        sender.wake()
        for _ in range(5):
            await harness.attempted(await harness.event(sound.url))
            under_way = [row for row in await harness.rows() if row["lease_token"] is not None]
            assert len(under_way) <= 2
    assert len(sound.received) == 5


async def test_a_name_server_that_hangs_for_one_delays_no_other(harness: WebhookHarness) -> None:
    answered = threading.Event()

    def lookup(host: str, _port: int) -> list[str]:
        if host == "stuck.example.com":
            answered.wait(60)
        return ["127.0.0.1"]

    harness.change_settings(webhook_lease_seconds=180)
    sound = harness.receiver(name="sound.example.com")
    stuck = await harness.events("https://stuck.example.com/", 40)
    async with harness.sending(lookup=lookup, deadline_seconds=90.0):
        await harness.until(lambda row: row["lease_token"] is not None, stuck[0])
        for _ in range(10):
            await harness.attempted(await harness.event(sound.url))
        assert {row["attempts"] for row in await harness.rows() if row["id"] in stuck} == {0}
        answered.set()
    assert len(sound.received) == 10


def test_an_endpoint_is_strained_from_no_answer_to_the_next_answer() -> None:
    strained = StrainedEndpoints(most=2)
    strained.note("a", Outcome(0, 1, "timeout"))
    assert "a" in strained
    strained.note("a", Outcome(503, 1, "http_5xx: 503"))
    assert "a" not in strained
    for name in "abc":
        strained.note(name, Outcome(0, 1, "connection"))
    assert strained.names() == ["b", "c"]


async def test_several_senders_deliver_every_event_once(harness: WebhookHarness) -> None:
    receivers = [harness.receiver() for _ in range(3)]
    ids = []
    for receiver in receivers:
        ids += await harness.events(receiver.url, 30)
    async with harness.sending(), harness.sending(), harness.sending():
        for event_id in ids:
            await harness.attempted(event_id)
    seen = [delivered.webhook_id for receiver in receivers for delivered in receiver.received]
    assert sorted(seen) == sorted(ids)
    assert {row["status"] for row in await harness.rows()} == {"delivered"}


async def test_a_stopping_sender_lets_what_is_under_way_end(harness: WebhookHarness) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(delivered: Delivered, connection: socket.socket) -> None:
        entered.set()
        leave.wait(60)
        status(204)(delivered, connection)

    receiver = harness.receiver(slow)
    event_id = await harness.event(receiver.url)
    async with harness.sending():
        await asyncio.to_thread(entered.wait, 60)
        asyncio.get_running_loop().call_later(0.3, leave.set)
    row = await harness.row(event_id)
    assert (row["status"], row["attempts"]) == ("delivered", 1)
    assert len(receiver.received) == 1


async def test_a_stopping_sender_hands_back_what_does_not_end(
    harness: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.webhooks.sender.FINISH_SECONDS", 0.2)
    receiver = harness.receiver(SILENT)
    event_id = await harness.event(receiver.url)
    async with harness.sending():
        await harness.until(lambda row: row["lease_token"] is not None, event_id)
    row = await harness.row(event_id)
    assert (row["status"], row["attempts"], row["lease_token"]) == ("in_flight", 0, None)
    receiver.script = status(204)
    async with harness.sending():
        assert (await harness.attempted(event_id))["status"] == "delivered"


async def test_an_event_of_a_lost_sender_is_sent_again_when_its_lease_ends(
    harness: WebhookHarness,
) -> None:
    """It was sent, and then its sender died before the record."""
    receiver = harness.receiver()
    event_id = await harness.event(receiver.url)
    everything = DeliveryShares(per_endpoint=9, per_account=9, most=9, most_strained=9)
    lease = timedelta(seconds=30)
    [leased] = await lease_due(harness.context.database, everything, lease=lease, ahead=timedelta())
    options = delivery_options(harness.context.settings)
    connections = Connections(options)
    attempts = Attempts(harness.context, options, connections, harness.clock)
    outcome, _never_written = await attempts.make(leased)
    await connections.aclose()
    assert outcome.delivered
    async with harness.sending() as sender:
        harness.clock.ahead += lease
        sender.wake()
        row = await harness.attempted(event_id)
    assert (row["status"], row["attempts"]) == ("delivered", 1)
    assert [delivered.webhook_id for delivered in receiver.received] == [event_id] * 2
