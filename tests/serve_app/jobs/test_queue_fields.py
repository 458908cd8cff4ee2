"""Priorities at creation, and what a job that waits shows of its place in the queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from storage import jobs, queue
from storage.types import Priority
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

LEASE = timedelta(minutes=5)
URL = "https://media.example.com/a.mp4"
BODIES: dict[str, dict[str, Any]] = {
    "/jobs": {"fileName": "a.mp4"},
    "/jobs/from-url": {"url": URL},
    "/jobs/batch": {"mode": "independent", "clips": [{"sourceUrl": URL}, {"sourceUrl": URL}]},
}


def created(api: RunningApi, customer: Customer, path: str, **more: Any) -> list[dict[str, Any]]:
    answer = api.client.post(path, json=BODIES[path] | more, headers=customer.headers)
    assert answer.status_code == 201, answer.text
    data = answer.json()["data"]
    return data["jobs"] if path == "/jobs/batch" else [data]


def shown(api: RunningApi, customer: Customer, job_id: str) -> dict[str, Any]:
    answer = api.client.get(f"/jobs/{job_id}", headers=customer.headers)
    data: dict[str, Any] = answer.json()["data"]
    return data


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "normal"), ({"priority": "low"}, "low"), ({"priority": "high"}, "high")],
    ids=["not given", "low", "high"],
)
def test_every_creation_takes_a_priority_and_the_job_shows_it(
    api: RunningApi, customer: Customer, path: str, given: dict[str, Any], kept: str
) -> None:
    for job in created(api, customer, path, **given):
        assert job["priority"] == kept
        assert shown(api, customer, job["jobId"])["priority"] == kept
    [*listed] = api.client.get("/jobs", headers=customer.headers).json()["data"]
    assert {each["priority"] for each in listed} == {kept}


@every("path", BODIES)
@every("priority", ["urgent", "", 5, None], ids=repr)
def test_a_priority_that_there_is_none_of_is_refused(
    api: RunningApi, customer: Customer, path: str, priority: Any
) -> None:
    body = BODIES[path] | {"priority": priority}
    answer = api.client.post(path, json=body, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "priority")


@pytest.mark.parametrize("path", BODIES)
def test_a_priority_that_the_account_may_not_use_makes_no_job(
    api: RunningApi, customer: Customer, path: str
) -> None:
    own = customer.account_id
    api.transact(lambda c: queue.set_rules(c, own, highest_priority=Priority.NORMAL))
    body = BODIES[path] | {"priority": "high"}
    answer = api.client.post(path, json=body, headers=customer.headers)
    refused = answer.json()
    assert (answer.status_code, refused["code"]) == (400, "INVALID_REQUEST")
    assert refused["param"] == "priority"
    assert api.client.get("/jobs", headers=customer.headers).json()["data"] == []
    assert created(api, customer, path, priority="normal")


def test_a_waiting_job_shows_its_place_and_when_its_turn_may_come(
    api: RunningApi, customer: Customer
) -> None:
    while api.transact(lambda c: jobs.lease_next(c, lease=LEASE)):
        pass
    [running] = created(api, customer, "/jobs/from-url")
    api.transact(lambda c: jobs.lease_next(c, lease=LEASE))
    backlog = [created(api, customer, "/jobs/from-url")[0] for _ in range(3)]
    places = [shown(api, customer, job["jobId"]) for job in backlog]
    assert [each["queuePosition"] for each in places] == [1, 2, 3]
    # Both slots are taken, and no job has been completed yet.
    assert {each["estimatedStartSeconds"] for each in places} <= {None, 0.0}
    [urgent] = created(api, api.customer(), "/jobs/from-url", priority="high")
    assert urgent["priority"] == "high"
    assert shown(api, customer, backlog[0]["jobId"])["queuePosition"] == 2
    [upload] = created(api, customer, "/jobs")
    for job_id in (running["jobId"], upload["jobId"]):
        assert not shown(api, customer, job_id).keys() & {"queuePosition", "estimatedStartSeconds"}
