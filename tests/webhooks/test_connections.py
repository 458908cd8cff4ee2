"""Connections that are kept: fewer of them, and never a reason to send twice or to lose one."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace

import pytest

from serve_app.webhooks import sending
from serve_app.webhooks.sending import LIMITS, delivery_options, send_event
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import Delivered, head, status


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
