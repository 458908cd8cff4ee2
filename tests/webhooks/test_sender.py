"""The sender as receivers and the delivery log see it."""

from __future__ import annotations

import time

from tests.webhooks.harness import WebhookHarness, assert_pauses
from tests.webhooks.receivers import in_turn, status


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


async def test_eight_attempts_with_growing_pauses_and_then_it_is_given_up(
    harness: WebhookHarness,
) -> None:
    receiver = harness.receiver(status(503, b"down for repairs"))
    event_id = await harness.event(receiver.url)
    pauses, began = [], time.monotonic()
    async with harness.sending(chance=lambda: 0.0) as sender:
        for attempt in range(1, 8):
            row = await harness.attempted(event_id, attempt)
            assert (row["status"], row["attempts"]) == ("pending_retry", attempt)
            pauses.append(await harness.pass_pause(sender, event_id))
        row = await harness.attempted(event_id, 8)
    assert row["status"] == "failed"
    assert (row["last_status"], row["last_error"]) == (503, "http_5xx: 503\ndown for repairs")
    assert row["next_attempt_at"] is None
    assert_pauses(pauses, [10, 20, 40, 80, 160, 320, 600])
    assert {delivered.webhook_id for delivered in receiver.received} == {event_id}
    times = [delivered.signed_at for delivered in receiver.received]
    assert len(set(times)) == 8  # each attempt is signed anew
    assert 1225 <= times[-1] - times[0] <= 1231 + time.monotonic() - began


async def test_a_delivery_after_failures_leaves_no_error(harness: WebhookHarness) -> None:
    receiver = harness.receiver(in_turn(status(500, b"oops"), status(204)))
    event_id = await harness.event(receiver.url)
    async with harness.sending() as sender:
        assert (await harness.attempted(event_id))["last_error"] == "http_5xx: 500\noops"
        await harness.pass_pause(sender, event_id)
        row = await harness.attempted(event_id, 2)
    assert (row["status"], row["last_status"], row["last_error"]) == ("delivered", 204, None)
