"""GET /jobs/{jobId}/review: what to check, and the errors that remain."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve_app.interface_contract import DOCUMENT, Contract
from tests.serve_app.published_jobs import complete, created
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_transcript_edits import edit, get, said
from tests.tables import every

CONTRACT = Contract(DOCUMENT)


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> str:
    job_id = created(api, customer)
    complete(api, job_id, [said()], [])
    return job_id


def review(api: RunningApi, customer: Customer, job: str, query: str = "") -> dict[str, Any]:
    answer = api.client.get(f"/jobs/{job}/review{query}", headers=customer.headers)
    CONTRACT.check("getReview", answer)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def test_a_review_has_stretches_within_the_budget_and_what_remains(
    api: RunningApi, customer: Customer, job: str
) -> None:
    whole = review(api, customer, job)
    assert whole["budgetSeconds"] == 300
    assert whole["calibrated"] is False
    words = sum(len(each["text"].split()) for each in whole["stretches"])
    assert whole["before"]["wrongWords"] == words / 2  # each has a confidence of 0.5
    assert set(whole["after"].values()) == {0}
    short = review(api, customer, job, "?budgetSeconds=4")
    assert 0 < short["reviewSeconds"] <= 4
    assert [each["text"] for each in short["stretches"]] == ["Good morning to the bakers."]
    assert short["after"]["wrongWords"] == words / 2 - 2.5


def test_what_was_corrected_is_not_offered_again(
    api: RunningApi, customer: Customer, job: str
) -> None:
    before = review(api, customer, job)
    edit(api, customer, job, segments=[{"index": 2, "text": "We sell green teas."}])
    after = review(api, customer, job)
    assert after["revision"] == 1
    assert after["uncheckedShare"] < before["uncheckedShare"] == 1
    offered = [index for each in after["stretches"] for index in each["segments"]]
    assert sorted(offered) == [0, 1, 3]
    edit(api, customer, job, revision=1, segments=[{"index": 2, "text": "We sell green tees."}])
    assert review(api, customer, job)["before"]["wrongWords"] <= before["before"]["wrongWords"]


@every("budget", ["0", "-1", "86401", "1.5", "many", ""])
def test_a_budget_is_a_whole_number_of_seconds_up_to_a_day(
    api: RunningApi, customer: Customer, job: str, budget: str
) -> None:
    path = f"/jobs/{job}/review?budgetSeconds={budget}"
    answer = api.client.get(path, headers=customer.headers)
    assert answer.status_code == 400
    assert answer.json()["param"] == "budgetSeconds"


def test_a_job_of_several_tracks_is_reviewed_track_by_track(
    api: RunningApi, customer: Customer
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [said(0), said(1)], [])
    answer = api.client.get(f"/jobs/{job_id}/review", headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "track")
    assert review(api, customer, job_id, "?track=1")["trackIndex"] == 1
    assert get(api, customer, f"/jobs/{job_id}/review?track=0")["trackIndex"] == 0
