"""What a job is given after its creation: tags, a priority while it waits, another retention."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from storage import jobs, keys
from storage.audit import list_entries
from storage.cleaning import find_media_end
from storage.queue import set_rules
from storage.types import Priority
from tests.serve_app.published_jobs import complete, created, fail, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every


def change(api: RunningApi, customer: Customer, job_id: str, **body: Any) -> httpx.Response:
    return api.client.patch(f"/jobs/{job_id}", json=body, headers=customer.headers)


def read(api: RunningApi, customer: Customer, path: str) -> Any:
    return api.client.get(path, headers=customer.headers).json()["data"]


def test_tags_are_given_at_creation_and_later_and_lists_filter_by_one(
    api: RunningApi, customer: Customer
) -> None:
    first = created(api, customer, tags=["Council", "2026"])
    fail(api, first)
    second = created(api, customer)
    fail(api, second)
    assert read(api, customer, f"/jobs/{first}")["tags"] == ["Council", "2026"]
    assert change(api, customer, second, tags=["2026"]).json()["data"]["tags"] == ["2026"]
    assert [it["jobId"] for it in read(api, customer, "/jobs?tag=2026")] == [second, first]
    assert [it["jobId"] for it in read(api, customer, "/jobs?tag=Council")] == [first]
    assert read(api, customer, "/jobs?tag=council") == []
    change(api, customer, first, fileName="b.mp4")
    assert read(api, customer, f"/jobs/{first}")["tags"] == ["Council", "2026"]
    api.client.post(f"/jobs/{first}/erase", headers=customer.headers)
    assert read(api, customer, f"/jobs/{first}")["tags"] == []
    entries = api.transact(lambda c: list_entries(c, customer.account_id))
    assert [each.detail for each in entries if each.action == "changeJob"] == ["tags", "fileName"]


@every(
    ("tags", "param"),
    [
        ([f"{number}" for number in range(21)], "tags"),
        (["a", "a"], "tags"),
        (["x" * 51], "tags[0]"),
        ([" a"], "tags[0]"),
        (["a\n"], "tags[0]"),
        ([""], "tags[0]"),
        ("a", "tags"),
    ],
)
def test_bad_tags_are_refused_by_name(api: RunningApi, tags: Any, param: str) -> None:
    customer = api.customer()
    body = {"fileName": "a.mp4", "tags": tags}
    answer = api.client.post("/jobs", json=body, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, param)


def test_a_waiting_job_gets_another_place_by_its_priority(api: RunningApi) -> None:
    customer = api.customer()
    waiting = [created(api, customer) for _ in range(3)]

    def order() -> list[str]:
        places = {read(api, customer, f"/jobs/{it}")["queuePosition"]: it for it in waiting}
        return [places[at] for at in sorted(places)]

    assert order() == waiting
    assert change(api, customer, waiting[2], priority="high").json()["data"]["priority"] == "high"
    assert order() == [waiting[2], waiting[0], waiting[1]]
    change(api, customer, waiting[0], priority="low")
    assert order() == [waiting[2], waiting[1], waiting[0]]
    taken = [api.transact(lambda c: jobs.lease_next(c, lease=timedelta(seconds=60))) for _ in "123"]
    assert [str(each[0]) for each in taken if each is not None] == order_of(waiting)
    answer = change(api, customer, waiting[1], priority="high")
    assert (answer.status_code, answer.json()["param"]) == (400, "priority")


def order_of(waiting: list[str]) -> list[str]:
    return [waiting[2], waiting[1], waiting[0]]


def test_a_changed_priority_counts_against_the_accounts_running_jobs_once(api: RunningApi) -> None:
    customer = api.customer()
    api.transact(lambda c: set_rules(c, customer.account_id, max_running_jobs=1))
    first, second = created(api, customer), created(api, customer)
    change(api, customer, first, priority="low")
    taken = api.transact(lambda c: jobs.lease_next(c, lease=timedelta(seconds=60)))
    assert taken is not None
    assert str(taken[0]) == first, "it alone was admitted, and still is"
    api.client.post(f"/jobs/{first}/cancel", headers=customer.headers)
    taken = api.transact(lambda c: jobs.lease_next(c, lease=timedelta(seconds=60)))
    assert taken is not None
    assert str(taken[0]) == second


def test_a_priority_that_the_account_may_not_use_is_refused(api: RunningApi) -> None:
    customer = api.customer()
    api.transact(lambda c: set_rules(c, customer.account_id, highest_priority=Priority.NORMAL))
    job_id = created(api, customer)
    answer = change(api, customer, job_id, priority="high")
    assert (answer.status_code, answer.json()["param"]) == (400, "priority")
    assert read(api, customer, f"/jobs/{job_id}")["priority"] == "normal"
    fail(api, job_id)


def test_media_is_kept_longer_and_what_is_not_given_stays(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer, retention={"resultDays": 30}, keyterms=["Vlissingen"])
    complete(api, job_id, [track(0)], [])
    retention = api.context.settings.retention

    def days_left() -> float:
        end = api.transact(lambda c: find_media_end(c, uuid.UUID(job_id), retention))
        assert end is not None
        return (end - datetime.now(UTC)) / timedelta(days=1)

    assert days_left() == pytest.approx(1, abs=0.1)
    answer = change(api, customer, job_id, retention={"sourceSeconds": 10 * 86_400})
    assert answer.json()["data"]["retention"] == {"sourceSeconds": 864_000, "resultDays": 30}
    assert days_left() == pytest.approx(1, abs=0.1), "no longer than the operator permits"
    longer = replace(retention, most_source_seconds=30 * 86_400)
    end = api.transact(lambda c: find_media_end(c, uuid.UUID(job_id), longer))
    assert end is not None
    assert (end - datetime.now(UTC)) / timedelta(days=1) == pytest.approx(10, abs=0.1)
    found = api.transact(lambda c: jobs.find_job(c, uuid.UUID(job_id)))
    assert found is not None
    assert found.source.keyterms == ("Vlissingen",)
    answer = change(api, customer, job_id, retention={"sourceSeconds": -1})
    assert (answer.status_code, answer.json()["param"]) == (400, "retention.sourceSeconds")


def test_the_accounts_switch_holds_for_jobs_that_do_not_state_it(api: RunningApi) -> None:
    with RunningApi(api.settings.model_copy(update={"voices": True})) as running:
        customer = running.customer()
        account = customer.account_id
        running.transact(lambda c: keys.set_recognition(c, account, recognises=True))
        for given, kept in (({}, True), ({"voices": False}, False), ({"voices": True}, True)):
            job_id = created(running, customer, **given)
            found = running.transact(lambda c, it=job_id: jobs.find_job(c, uuid.UUID(it)))  # type: ignore[misc]
            assert found is not None
            assert (found.source.voices, found.source.people) == (kept, False)
            fail(running, job_id)


def test_a_key_has_a_name_and_shows_when_it_was_last_used(api: RunningApi) -> None:
    customer = api.customer()
    account = customer.account_id
    issued = api.transact(lambda c: keys.create_key(c, account, name="Newsroom"))
    fresh = {it.id: it for it in api.transact(lambda c: keys.list_keys(c, account))}[issued.id]
    assert (fresh.name, fresh.last_used_at) == ("Newsroom", None)
    other = Customer(account, issued.secret)
    read(api, other, "/jobs")
    first = {it.id: it for it in api.transact(lambda c: keys.list_keys(c, account))}[issued.id]
    assert first.last_used_at is not None
    assert abs(first.last_used_at - datetime.now(UTC)) < timedelta(minutes=2)
    read(api, other, f"/jobs?tag={uuid.uuid4().hex}")
    again = {it.id: it for it in api.transact(lambda c: keys.list_keys(c, account))}[issued.id]
    assert again.last_used_at == first.last_used_at, "it is written once an hour"
    rotated = api.transact(lambda c: keys.rotate_key(c, account, issued.id))
    assert rotated is not None
    assert rotated.id in {
        it.id for it in api.transact(lambda c: keys.list_keys(c, account)) if it.name == "Newsroom"
    }
