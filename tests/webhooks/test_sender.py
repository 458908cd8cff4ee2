"""The sender as receivers and the delivery log see it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from serve_app.webhooks import sending
from serve_app.webhooks.sending import LIMITS, delivery_options, send_event
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import Delivered, head, in_turn, status
from tests.webhooks.sender_process import send_until_killed


async def test_an_event_is_delivered_once_and_recorded(harness: WebhookHarness) -> None:
    receiver = harness.receiver()
    event_id = await harness.event(receiver.url, body=b'{"type": "job.completed", "n": 1.50}')
    async with harness.sending():
        row = await harness.attempted(event_id)
    assert (row["status"], row["attempts"], row["last_status"]) == ("delivered", 1, 204)
    assert row["delivered_at"] is not None
    assert row["next_attempt_at"] is None
    [delivered] = receiver.received
    assert delivered.webhook_id == event_id
    assert delivered.body == b'{"type": "job.completed", "n": 1.50}'


async def test_an_event_that_is_written_while_the_sender_idles_wakes_it(
    harness: WebhookHarness,
) -> None:
    receiver = harness.receiver()
    async with harness.sending():
        first = await harness.event(receiver.url)
        await harness.attempted(first)
        second = await harness.event(receiver.url)
        await harness.attempted(second)
    assert [delivered.webhook_id for delivered in receiver.received] == [first, second]


async def test_a_delivery_after_failures_leaves_no_error(harness: WebhookHarness) -> None:
    receiver = harness.receiver(in_turn(status(500, b"oops"), status(204)))
    event_id = await harness.event(receiver.url)
    async with harness.sending() as sender:
        assert (await harness.attempted(event_id))["last_error"] == "http_5xx: 500\noops"
        await harness.pass_pause(sender, event_id)
        row = await harness.attempted(event_id, 2)
    assert (row["status"], row["last_status"], row["last_error"]) == ("delivered", 204, None)


KILLS = int(os.environ.get("VAS_WEBHOOK_KILLS", "8"))
EVENTS_A_ROUND = 4
LONGEST_DELAY_SECONDS = 0.05
"""From a delivery's arrival to the kill: about as long as answer and record take."""

LEASE = timedelta(seconds=31)
PATIENCE_SECONDS = 120


async def test_every_event_arrives_though_senders_are_killed_at_random_points(
    harness: WebhookHarness,
) -> None:
    chance = random.Random(20261121)
    arrived = threading.Event()

    def answer(delivered: Delivered, connection: socket.socket) -> None:
        arrived.set()
        status(204)(delivered, connection)

    receiver = harness.receiver(answer)
    account = await harness.account()
    written: dict[str, bytes] = {}
    for round_number in range(KILLS):
        for number in range(EVENTS_A_ROUND):
            body = f'{{"round": {round_number}, "number": {number}}}'.encode()
            written[await harness.event(receiver.url, account, body)] = body
        # What the senders before it held is due again.
        harness.clock.ahead += LEASE
        arrived.clear()
        await asyncio.to_thread(kill_in_the_middle, harness, arrived, chance)
    async with harness.sending() as sender:
        harness.clock.ahead += LEASE
        sender.wake()
        await harness.until_nothing_is_owed()
    # The log holds the last 100; what it has forgotten was delivered, as the receiver knows.
    assert {row["status"] for row in await harness.rows()} == {"delivered"}
    assert {delivered.webhook_id: delivered.body for delivered in receiver.received} == written
    repeated = len(receiver.received) - len(written)
    print(f"{KILLS} kills, {len(written)} events, {repeated} of them delivered again")


def kill_in_the_middle(
    harness: WebhookHarness, arrived: threading.Event, chance: random.Random
) -> None:
    """Start a sender and kill it a moment after its next delivery arrived."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.webhooks.sender_process"])
    sender = context.Process(
        target=send_until_killed, args=(harness.context.settings, harness.clock.ahead), daemon=True
    )
    sender.start()
    try:
        assert arrived.wait(PATIENCE_SECONDS), "the sender delivered nothing"
        sender.join(chance.uniform(0, LONGEST_DELAY_SECONDS))
    finally:
        sender.kill()
        sender.join(120)


async def test_an_endpoints_next_event_uses_the_connection_of_the_last_one(
    harness: WebhookHarness,
) -> None:
    receiver = harness.receiver()
    receiver.keeps_alive = True
    account = await harness.account()
    async with harness.sending():
        for _ in range(5):
            row = await harness.attempted(await harness.event(receiver.url, account))
            assert row["status"] == "delivered"
    assert (len(receiver.received), receiver.connections) == (5, 1)


async def test_accounts_share_no_connection(harness: WebhookHarness) -> None:
    receiver = harness.receiver()
    receiver.keeps_alive = True
    async with harness.sending():
        for _ in range(3):
            await harness.attempted(await harness.event(receiver.url))
    assert (len(receiver.received), receiver.connections) == (3, 3)


async def test_a_kept_connection_is_given_up_when_it_is_not_used(
    harness: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "KEPT_SECONDS", 0.1)
    receiver = harness.receiver()
    receiver.keeps_alive = True
    account = await harness.account()
    async with harness.sending():
        await harness.attempted(await harness.event(receiver.url, account))
        await asyncio.to_thread(receiver.all_left.wait, 10)
        assert receiver.all_left.is_set()
        await harness.attempted(await harness.event(receiver.url, account))
    assert (len(receiver.received), receiver.connections) == (2, 2)


async def test_a_kept_connection_that_the_endpoint_has_reset_costs_no_attempt(
    harness: WebhookHarness,
) -> None:
    """It answers, keeps the connection, and hangs up just when the next event arrives."""
    first_of_connection: dict[int, bool] = {}

    def answers_once(_delivered: Delivered, connection: socket.socket) -> None:
        if first_of_connection.setdefault(id(connection), True):
            first_of_connection[id(connection)] = False
            connection.sendall(head(204))
            seen.append(connection)
        else:
            raise ConnectionResetError

    seen: list[socket.socket] = []  # keeps the ids apart
    receiver = harness.receiver(answers_once)
    receiver.keeps_alive = True
    account = await harness.account()
    async with harness.sending():
        for _ in range(3):
            row = await harness.attempted(await harness.event(receiver.url, account))
            assert (row["status"], row["attempts"]) == ("delivered", 1)
    assert len({delivered.webhook_id for delivered in receiver.received}) == 3


async def test_each_request_on_a_kept_connection_has_its_whole_time(
    harness: WebhookHarness,
) -> None:
    """How long a connection has been open is none of the next request's business."""

    def slow(delivered: Delivered, connection: socket.socket) -> None:
        time.sleep(1.5)
        status(204)(delivered, connection)

    receiver = harness.receiver(slow)
    receiver.keeps_alive = True
    receiver.verify = lambda delivered: None
    options = delivery_options(harness.context.settings)
    limits = replace(LIMITS, total_seconds=5.0, kept_connections=1)
    async with options.transport(limits) as transport:
        for _ in range(4):
            outcome = await send_event(
                receiver.url, {}, b"{}", options=options, transport=transport
            )
            assert outcome.delivered
    assert receiver.connections == 1


@pytest.mark.parametrize("seconds", [0.5, 90.0])
def test_each_step_has_the_time_of_the_whole_delivery(
    harness: WebhookHarness, seconds: float
) -> None:
    """Ten seconds whatever the deadline: a slow test's silent endpoint was tried twice."""
    options = replace(delivery_options(harness.context.settings), deadline_seconds=seconds)
    limits = options.bounded(LIMITS)
    steps = (limits.connect_seconds, limits.read_seconds, limits.write_seconds)
    assert {*steps, limits.header_seconds, limits.total_seconds} == {seconds}
    assert limits.max_connections == LIMITS.max_connections
