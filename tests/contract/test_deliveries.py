"""Deliveries of job events: what receivers get, and what the delivery log says meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from serve_app.webhooks.sender import Sender, SenderClock
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.spec_rows import covers, covers_each
from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.harness import assert_pauses
from tests.webhooks.receivers import (
    Delivered,
    Receiver,
    Script,
    Verifier,
    head,
    in_turn,
    receivers_clock,
    status,
)

DEADLINE_SECONDS = 5.0
PATIENCE_SECONDS = 120.0


def unknown_name(host: str, _port: int) -> list[str]:
    """Events of other tests lead to names that nobody has; no name server is asked."""
    if host == "private.example.com":
        return ["10.1.2.3"]
    raise socket.gaierror(socket.EAI_NONAME, f"{host} is unknown")


@dataclass(slots=True)
class Deliveries:
    """A sender at work beside the API, its clock in the tests' hand."""

    api: ContractApi
    authority: Authority
    sender: Sender
    clock: SenderClock
    stack: ExitStack = field(default_factory=ExitStack)

    def receiver(self, caller: Caller, script: Script) -> Receiver:
        """A receiver that knows the account's secret; verifies all it gets."""
        answer = self.api.client.get("/webhooks/secret", headers=caller.sign_in())
        tls = self.authority.server_context("127.0.0.1")
        made = Receiver(script, tls, Verifier([shown(answer)["secret"]]))
        return self.stack.enter_context(made.running())

    def cancelled(self, caller: Caller, url: str) -> str:
        """A job whose end is told to ``url``; its id."""
        job_id: str = caller.create(callbackUrl=url)["jobId"]
        shown(caller.post(f"/jobs/{job_id}/cancel"))
        return job_id

    def record(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """The delivery log's record of the job's event."""
        [found] = shown(caller.get("/webhooks/deliveries", jobId=job_id))
        return dict(found)

    def until(
        self, caller: Caller, job_id: str, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """The log's record as soon as it is so."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not condition(found := self.record(caller, job_id)):
            assert time.monotonic() < ends, found
            time.sleep(0.02)
        return found

    def after(self, caller: Caller, job_id: str, attempts: int) -> dict[str, Any]:
        """The record once so many attempts have been made."""
        return self.until(
            caller,
            job_id,
            lambda found: found["attempts"] == attempts and found["status"] != "in_flight",
        )

    def pass_pause(self, job_id: str) -> float:
        """Let the time to the event's next attempt pass; its length in seconds."""
        statement = "SELECT next_attempt_at - now() FROM webhook_events WHERE job_id = :id"
        [(wait,)] = self.api.sql(statement, id=uuid.UUID(job_id))
        pause = wait - self.clock.ahead
        self.clock.ahead = wait
        self.api.run(_wake(self.sender))
        return float(pause.total_seconds())


async def _wake(sender: Sender) -> None:
    sender.wake()


async def _started(make: Callable[[], Sender]) -> tuple[Sender, asyncio.Task[None]]:
    sender = make()
    return sender, asyncio.create_task(sender.run())


@pytest.fixture(scope="module")
def running(api: ContractApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deliveries]:
    authority = Authority.new(tmp_path_factory.mktemp("deliveries"))
    ca_file = authority.folder / "authority.pem"
    ca_file.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    settings = api.settings.model_copy(update={"webhook_ca_file": ca_file, "poll_seconds": 0.2})
    context = replace(api.context, database=api.database, settings=settings)
    clock = SenderClock()
    sender, task = api.run(
        _started(
            lambda: Sender(
                context,
                clock=clock,
                chance=lambda: 0.0,
                lookup=unknown_name,
                deadline_seconds=DEADLINE_SECONDS,
            )
        )
    )
    with receivers_clock(clock):
        yield Deliveries(api, authority, sender, clock)
    api.run(sender.stop())
    api.run(_ended(task))


async def _ended(task: asyncio.Task[None]) -> None:
    await task


@pytest.fixture
def deliveries(running: Deliveries) -> Iterator[Deliveries]:
    """At the end every receiver has found every delivery verified."""
    with running.stack:
        yield running


@covers("webhook-headers/webhook-id", "delivery/5")
def test_the_webhook_id_is_the_events_id_on_every_attempt(
    caller: Caller, deliveries: Deliveries
) -> None:
    """A repeated delivery is the same event to the byte, signed anew."""
    receiver = deliveries.receiver(caller, in_turn(status(500), status(503), status(204)))
    job_id = deliveries.cancelled(caller, receiver.url)
    for attempt in (1, 2):
        deliveries.after(caller, job_id, attempt)
        deliveries.pass_pause(job_id)
    record = deliveries.after(caller, job_id, 3)
    assert record["id"] == f"{job_id}:job.cancelled"
    assert [seen.webhook_id for seen in receiver.received] == [record["id"]] * 3
    assert len({seen.body for seen in receiver.received}) == 1
    assert len({seen.headers["webhook-timestamp"] for seen in receiver.received}) == 3


@covers("delivery/5")
def test_an_event_whose_record_was_lost_arrives_again(
    caller: Caller, deliveries: Deliveries
) -> None:
    """As when a sender dies after sending: receivers must expect an event more than once."""
    receiver = deliveries.receiver(caller, status(204))
    job_id = deliveries.cancelled(caller, receiver.url)
    deliveries.after(caller, job_id, 1)
    caller.api.sql(
        "UPDATE webhook_events SET status = 'in_flight', attempts = 0, delivered_at = NULL,"
        " lease_token = gen_random_uuid(), next_attempt_at = now() WHERE job_id = :id",
        id=uuid.UUID(job_id),
    )
    assert deliveries.after(caller, job_id, 1)["status"] == "delivered"
    assert [seen.webhook_id for seen in receiver.received] == [f"{job_id}:job.cancelled"] * 2


@covers("delivery/2", "limits/webhook-attempts")
def test_eight_attempts_in_all_with_pauses_from_10_seconds_to_10_minutes(
    caller: Caller, deliveries: Deliveries
) -> None:
    receiver = deliveries.receiver(caller, status(503))
    job_id = deliveries.cancelled(caller, receiver.url)
    pauses = []
    for attempt in range(1, 8):
        assert deliveries.after(caller, job_id, attempt)["status"] == "pending_retry"
        pauses.append(deliveries.pass_pause(job_id))
    assert deliveries.after(caller, job_id, 8)["status"] == "failed"
    assert_pauses(pauses, [10, 20, 40, 80, 160, 320, 600])
    assert len(receiver.received) == 8


@covers("delivery/2")
def test_a_longer_retry_after_is_honoured(caller: Caller, deliveries: Deliveries) -> None:
    receiver = deliveries.receiver(caller, status(429, retry_after=300))
    job_id = deliveries.cancelled(caller, receiver.url)
    deliveries.after(caller, job_id, 1)
    assert_pauses([deliveries.pass_pause(job_id)], [300])


@covers("delivery/3")
def test_an_address_that_fails_the_safety_checks_is_final(
    caller: Caller, deliveries: Deliveries
) -> None:
    """A public name when the job was made; private addresses when the event is sent."""
    job_id = deliveries.cancelled(caller, "https://private.example.com/hook")
    record = deliveries.after(caller, job_id, 1)
    assert (record["status"], record["lastError"]) == ("failed", "blocked_address")
    assert (record["lastStatus"], open_events(caller, job_id)) == (None, 0)


@covers("delivery/4")
def test_410_ends_deliveries_of_the_job_and_event(caller: Caller, deliveries: Deliveries) -> None:
    receiver = deliveries.receiver(caller, status(410))
    job_id = deliveries.cancelled(caller, receiver.url)
    record = deliveries.after(caller, job_id, 1)
    assert (record["status"], record["disabled"]) == ("disabled", True)
    assert open_events(caller, job_id) == 0
    other = deliveries.cancelled(caller, receiver.url)
    deliveries.after(caller, other, 1)
    assert [seen.webhook_id for seen in receiver.received] == [
        f"{job_id}:job.cancelled",
        f"{other}:job.cancelled",
    ]


def open_events(caller: Caller, job_id: str) -> int:
    """How many of the job's events will ever be sent again."""
    statement = "SELECT count(next_attempt_at) FROM webhook_events WHERE job_id = :id"
    [(count,)] = caller.api.sql(statement, id=uuid.UUID(job_id))
    return int(count)


@covers("delivery-status/in_flight")
def test_in_flight_is_being_delivered_now(caller: Caller, deliveries: Deliveries) -> None:
    arrived, leave = threading.Event(), threading.Event()

    def waits(delivered: Delivered, connection: socket.socket) -> None:
        arrived.set()
        leave.wait(DEADLINE_SECONDS * 0.8)
        status(204)(delivered, connection)

    receiver = deliveries.receiver(caller, waits)
    job_id = deliveries.cancelled(caller, receiver.url)
    assert arrived.wait(PATIENCE_SECONDS)
    record = deliveries.record(caller, job_id)
    leave.set()
    assert (record["status"], record["deliveredAt"]) == ("in_flight", None)
    assert deliveries.after(caller, job_id, 1)["status"] == "delivered"


@covers_each(
    "delivery-status",
    {
        "pending_retry": ("pending_retry", 503, {"disabled": False}),
        "delivered": ("delivered", 200, {"disabled": False, "lastError": None}),
        "failed": ("failed", 404, {"disabled": False}),
        "disabled": ("disabled", 410, {"disabled": True}),
    },
)
def test_the_logs_status_says_how_the_delivery_stands(
    api: ContractApi, deliveries: Deliveries, expected: tuple[str, int, dict[str, Any]]
) -> None:
    caller, (wanted, answered, fields) = api.caller(), expected
    receiver = deliveries.receiver(caller, status(answered))
    job_id = deliveries.cancelled(caller, receiver.url)
    record = deliveries.after(caller, job_id, 1)
    assert record["status"] == wanted
    assert record == record | fields | {"lastStatus": answered}
    assert (record["deliveredAt"] is not None) == (wanted == "delivered")


@covers("limits/lastError-response-body-capture", "notes/last-error")
def test_of_a_long_answer_the_first_4_kib_are_kept(caller: Caller, deliveries: Deliveries) -> None:
    body = b"".join(b"%7d\n" % number for number in range(10_000))

    def long(_delivered: Delivered, connection: socket.socket) -> None:
        connection.sendall(head(502, content_length=len(body)) + body)

    receiver = deliveries.receiver(caller, long)
    job_id = deliveries.cancelled(caller, receiver.url)
    record = deliveries.after(caller, job_id, 1)
    assert record["lastError"] == f"http_5xx: 502\n{body[:4096].decode()}"
