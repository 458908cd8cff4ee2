"""Webhook endpoints of accounts: what they are, what they get, signed with which secret."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve_app.jobs.service import announce_progress
from storage import jobs
from storage.database import Connection
from storage.endpoints import MOST_ENDPOINTS
from tests.contract.calling import Caller, refusal, shown
from tests.contract.runner_side import RunnerSide
from tests.contract.test_deliveries import PATIENCE_SECONDS, Deliveries, running
from tests.tables import every
from tests.webhooks.receivers import Receiver, Verifier, status

__all__ = ["running"]

URL = "https://hooks.example.com/events"


@pytest.fixture
def deliveries(running: Deliveries) -> Iterator[Deliveries]:
    with running.stack:
        yield running


def add(caller: Caller, *events: str, url: str = URL) -> dict[str, Any]:
    given = {"events": list(events)} if events else {}
    answer = caller.post("/webhooks/endpoints", {"url": url} | given)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    return dict(answer.json()["data"])


def receiver_of(deliveries: Deliveries, caller: Caller, *events: str) -> tuple[Receiver, str]:
    """A receiver that knows its endpoint's secret alone; the endpoint's id."""
    known: list[str] = []
    tls = deliveries.authority.server_context("127.0.0.1")
    made = deliveries.stack.enter_context(Receiver(status(204), tls, Verifier(known)).running())
    endpoint = add(caller, *events, url=made.url)
    known.append(endpoint["secret"])
    return made, endpoint["id"]


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_an_endpoint_is_made_read_changed_and_deleted(caller: Caller) -> None:
    made = add(caller)
    path = f"/webhooks/endpoints/{made['id']}"
    secret = made.pop("secret")
    assert made["events"] == ["job.completed", "job.failed", "job.cancelled"]
    assert shown(caller.get(path)) == made
    changed = shown(caller.ask("PATCH", path, json={"events": ["job.progress"]}))
    assert changed == made | {"events": ["job.progress"]}
    assert shown(caller.ask("PATCH", path, json={})) == changed
    rotated = shown(caller.post(f"{path}/rotate"))
    assert rotated.pop("secret") != secret
    assert rotated == changed | {"rotatedAt": rotated["rotatedAt"]}
    assert shown(caller.get("/webhooks/endpoints")) == [rotated]
    assert shown(caller.ask("DELETE", path)) == rotated
    assert shown(caller.get("/webhooks/endpoints")) == []
    refusal(caller.get(path), 404, "NOT_FOUND")


@every(
    ("body", "code", "param"),
    [
        ({}, "INVALID_REQUEST", "url"),
        ({"url": "http://hooks.example.com/"}, "INVALID_CALLBACK_URL", "url"),
        ({"url": "https://10.0.0.1/"}, "INVALID_CALLBACK_URL", "url"),
        ({"url": URL, "events": []}, "INVALID_REQUEST", "events"),
        ({"url": URL, "events": ["job.began"]}, "INVALID_REQUEST", "events[0]"),
        ({"url": URL, "events": ["job.failed"] * 2}, "INVALID_REQUEST", "events"),
        ({"url": URL, "events": "job.failed"}, "INVALID_REQUEST", "events"),
    ],
    ids=["no url", "http", "private", "no events", "unknown", "twice", "no list"],
)
def test_a_bad_endpoint_is_refused(
    caller: Caller, body: dict[str, Any], code: str, param: str
) -> None:
    refusal(caller.post("/webhooks/endpoints", body), 400, code, param=param)
    if body:
        path = f"/webhooks/endpoints/{add(caller)['id']}"
        refusal(caller.ask("PATCH", path, json=body), 400, code, param=param)


def test_an_account_has_at_most_so_many_endpoints(caller: Caller) -> None:
    for _ in range(MOST_ENDPOINTS):
        add(caller)
    refusal(caller.post("/webhooks/endpoints", {"url": URL}), 400, "INVALID_REQUEST", param="url")


def test_each_endpoint_gets_what_it_subscribes_to_beside_the_callback_url(
    caller: Caller, deliveries: Deliveries
) -> None:
    callback = deliveries.receiver(caller, status(204))
    ends, ends_id = receiver_of(deliveries, caller)
    cancels, cancels_id = receiver_of(deliveries, caller, "job.cancelled", "job.erased")
    fails, _ = receiver_of(deliveries, caller, "job.failed")
    job_id = deliveries.cancelled(caller, callback.url)
    until(lambda: all(each.received for each in (callback, ends, cancels)))
    assert [each.webhook_id for each in callback.received] == [f"{job_id}:job.cancelled"]
    assert [each.webhook_id for each in ends.received] == [f"{job_id}:job.cancelled:{ends_id}"]
    assert ends.received[0].body == cancels.received[0].body
    assert json.loads(ends.received[0].body)["data"] == caller.job(job_id)
    shown(caller.post(f"/jobs/{job_id}/erase"))
    until(lambda: len(cancels.received) == 2)
    told = json.loads(cancels.received[1].body)
    assert (told["type"], told["data"]["fileName"]) == ("job.erased", "erased")
    assert cancels.received[1].webhook_id == f"{job_id}:job.erased:{cancels_id}"
    assert (len(callback.received), len(ends.received), fails.received) == (1, 1, [])


def test_an_owed_event_goes_to_the_endpoints_new_url_signed_with_both_secrets(
    caller: Caller, deliveries: Deliveries
) -> None:
    old = add(caller, url="https://gone.example.com/hook")
    job_id = deliveries.cancelled(caller, "https://gone.example.com/callback")
    path = f"/webhooks/endpoints/{old['id']}"

    def log() -> dict[str, Any]:
        return {
            each["id"]: each for each in shown(caller.get("/webhooks/deliveries", jobId=job_id))
        }

    event_id = f"{job_id}:job.cancelled:{old['id']}"
    until(lambda: log()[event_id]["status"] == "pending_retry")
    fresh = shown(caller.post(f"{path}/rotate"))["secret"]
    tls = deliveries.authority.server_context("127.0.0.1")
    for secret in (old["secret"], fresh):
        receiver = Receiver(status(503), tls, Verifier([secret]))
        made = deliveries.stack.enter_context(receiver.running())
        received = made.received
        shown(caller.ask("PATCH", path, json={"url": made.url}))
        caller.api.sql(
            "UPDATE webhook_events SET next_attempt_at = now() WHERE id = :i", i=event_id
        )
        until(lambda received=received: len(received) == 1)  # type: ignore[misc]
        assert len(received[0].signatures) == 2
        until(lambda: log()[event_id]["lastStatus"] == 503)
    shown(caller.ask("DELETE", path))
    assert set(log()) == {f"{job_id}:job.cancelled"}


def test_progress_is_told_at_most_every_10_seconds_to_those_who_subscribe(
    caller: Caller, deliveries: Deliveries, runner: RunnerSide
) -> None:
    receiver, endpoint_id = receiver_of(deliveries, caller, "job.progress", "job.completed")
    add(caller, "job.failed")
    lease = runner.lease(runner.queued(caller))
    job_id = str(lease.job_id)

    async def beat(connection: Connection) -> None:
        job = await jobs.lock_leased(connection, lease.job_id, lease.token)
        await announce_progress(connection, job)

    def later(seconds: int) -> None:
        caller.api.sql(
            "UPDATE webhook_events SET created_at = created_at - make_interval(secs => :s)"
            " WHERE job_id = :job", job=uuid.UUID(job_id), s=seconds,
        )  # fmt: skip

    for passed in (0, 8, 3):
        until(lambda: not owed(caller, job_id))
        later(passed)
        caller.api.transact(beat)
        caller.api.transact(beat)
    until(lambda: len(receiver.received) == 2)
    told = [json.loads(each.body) for each in receiver.received]
    assert [each["type"] for each in told] == ["job.progress"] * 2
    assert told[0]["data"]["state"] == "processing"
    for each in receiver.received:
        assert re.fullmatch(f"{job_id}:job.progress:{endpoint_id}:[0-9]{{10}}", each.webhook_id)
    assert len(shown(caller.get("/webhooks/deliveries", jobId=job_id))) == 1
    runner.start(lease, "ingest")
    runner.fail(lease, "ingest", "INGEST_FAILED")
    log = shown(caller.get("/webhooks/deliveries", jobId=job_id))
    assert [each["eventType"] for each in log] == ["job.failed"]
    assert endpoint_id not in log[0]["id"]


def owed(caller: Caller, job_id: str) -> bool:
    statement = "SELECT 1 FROM webhook_events WHERE job_id = :id AND next_attempt_at IS NOT NULL"
    return bool(caller.api.sql(statement, id=uuid.UUID(job_id)))


def test_another_accounts_job_is_told_to_nobody_else(
    caller: Caller, deliveries: Deliveries
) -> None:
    receiver, _ = receiver_of(deliveries, caller.api.caller())
    callback = deliveries.receiver(caller, status(204))
    job_id = deliveries.cancelled(caller, callback.url)
    until(lambda: len(callback.received) == 1)
    assert [each["id"] for each in shown(caller.get("/webhooks/deliveries"))] == [
        f"{job_id}:job.cancelled"
    ]
    assert receiver.received == []
