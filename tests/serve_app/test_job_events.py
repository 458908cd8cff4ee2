"""A job followed by server-sent events: each change at once, the end, and the bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest

from serve_app.api.downloads import LIMITS, Download
from serve_app.jobs import events
from serve_app.work import publishing
from storage import jobs
from storage.types import StageName
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.published_jobs import created, lease_of
from tests.serve_app.running_api import Customer, RunningApi


def parsed(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Events as a browser reads them; a comment is one without data."""
    event: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            event[name or "comment"] = value.removeprefix(" ")
        elif event:
            yield event
            event = {}


@contextmanager
def following(
    client: httpx.Client, path: str, headers: dict[str, str]
) -> Iterator[Iterator[dict[str, str]]]:
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield parsed(answer.iter_lines())


def move(api: RunningApi, job_id: str) -> None:
    async def start(connection: Any) -> None:
        lease = await lease_of(connection, job_id)
        await publishing.start_stage(connection, lease, StageName.INGEST)
        await jobs.extend_lease(
            connection, lease.job_id, lease.token,
            lease=timedelta(seconds=60), progress={StageName.INGEST: 0.5},
        )  # fmt: skip

    api.transact(start)


def cancel(api: RunningApi, customer: Customer, job_id: str) -> None:
    answer = api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    assert answer.is_success, answer.text


def test_each_change_comes_at_once_and_the_stream_ends_with_the_job(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 3600.0)
    job_id = created(api, customer)
    with following(api.client, f"/jobs/{job_id}/events", customer.headers) as told:
        first = next(told)
        assert (first["event"], json.loads(first["data"])["state"]) == ("job.progress", "queued")
        move(api, job_id)
        data = json.loads(next(told)["data"])
        assert (data["state"], data["stages"]["ingest"]["progress"]) == ("processing", 0.5)
        cancel(api, customer, job_id)
        last = next(told)
        assert last["event"] == "job.cancelled"
        shown = api.client.get(f"/jobs/{job_id}?include=none", headers=customer.headers)
        assert json.loads(last["data"]) == shown.json()["data"]
        assert list(told) == []
    resumed = customer.headers | {"Last-Event-ID": last["id"]}
    assert api.client.get(f"/jobs/{job_id}/events", headers=resumed).status_code == 204
    resumed["Last-Event-ID"] = first["id"]
    with following(api.client, f"/jobs/{job_id}/events", resumed) as told:
        assert list(told) == [last]


def test_who_comes_again_gets_what_is_new(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer)
    with following(api.client, f"/jobs/{job_id}/events", customer.headers) as told:
        seen = next(told)["id"]
    again = customer.headers | {"Last-Event-ID": seen}
    with following(api.client, f"/jobs/{job_id}/events", again) as told:
        cancel(api, customer, job_id)
        assert [each["event"] for each in told] == ["job.cancelled"]


def test_silence_is_filled_and_a_lost_notification_found(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.3)
    job_id = created(api, customer)
    with following(api.client, f"/jobs/{job_id}/events", customer.headers) as told:
        assert "data" in next(told)
        assert "data" not in next(told)
        with psycopg.connect(api.settings.database_url or "", autocommit=True) as connection:
            connection.execute("ALTER TABLE stages DISABLE TRIGGER ALL")
            connection.execute(
                "UPDATE stages SET progress = 0.25 WHERE job_id = %s AND stage = 'ingest'", [job_id]
            )
            connection.execute("ALTER TABLE stages ENABLE TRIGGER ALL")
        found = next(each for each in told if "data" in each)
        assert found["event"] == "job.progress"
        assert json.loads(found["data"])["stages"]["ingest"]["progress"] == 0.25
    cancel(api, customer, job_id)


def test_a_stream_ends_in_time_also_where_the_job_goes_on(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.3)
    job_id = created(api, customer)
    with following(api.client, f"/jobs/{job_id}/events", customer.headers) as told:
        assert [each["event"] for each in told if "data" in each] == ["job.progress"]
    cancel(api, customer, job_id)


def test_an_account_follows_so_many_jobs_at_once(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer)
    path = f"/jobs/{job_id}/events"
    with ExitStack() as open_streams:
        streams = [
            open_streams.enter_context(following(api.client, path, customer.headers))
            for _ in range(LIMITS[Download.EVENTS].account)
        ]
        assert all(next(told)["event"] == "job.progress" for told in streams)
        refusal = api.client.get(path, headers=customer.headers)
        assert (refusal.status_code, refusal.json()["code"]) == (429, "RATE_LIMITED")
        assert int(refusal.headers["Retry-After"]) > 0
        other = api.customer()
        cancel(api, other, created(api, other))
    cancel(api, customer, job_id)
    until_free = time.monotonic() + 60
    while api.client.get(path, headers=customer.headers).status_code == 429:
        assert time.monotonic() < until_free


def test_the_dashboards_session_follows_too_and_nobody_else(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer)
    cancel(api, customer, job_id)
    path = f"{api.root}/dashboard/api/jobs/{job_id}/events"
    with signed_in(api, customer) as browser:
        assert "job.cancelled" in browser.get(path).text
    other = api.customer()
    with signed_in(api, other) as browser:
        assert browser.get(path).status_code == 404
    answer = api.client.get(f"/jobs/{job_id}/events", headers=other.headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert api.client.get(path).status_code == 401
