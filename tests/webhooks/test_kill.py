"""``kill -9`` of the sender between sending and recording: at least once, whatever dies.

VAS_WEBHOOK_KILLS sets how many senders are killed (8 by default).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import threading
from datetime import timedelta

from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import Delivered, status
from tests.webhooks.sender_process import send_until_killed

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
