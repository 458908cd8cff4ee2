"""Summaries over the API: where they were made, where that failed, and where no model is."""

from __future__ import annotations

import pytest

from pipelines.types import PipelineWarning, WarningCode
from tests.serve_app.published_jobs import SENTENCES, SUMMARY, complete, created, track
from tests.serve_app.running_api import RunningApi
from tests.serve_app.test_jobs_api import expect_error

FAILED = PipelineWarning(WarningCode.SUMMARY_FAILED, "The transcript could not be summed up.")


def test_a_summary_is_read_with_its_times(api: RunningApi) -> None:
    customer = api.customer()
    job = created(api, customer)
    complete(api, job, [track(0)], [], SENTENCES)
    data = api.client.get(f"/jobs/{job}/summary", headers=customer.headers).json()["data"]
    assert data == {"jobId": job, "sentences": SUMMARY}


def test_nothing_said_has_an_empty_summary(api: RunningApi) -> None:
    customer = api.customer()
    job = created(api, customer)
    complete(api, job, [track(0)], [], [])
    data = api.client.get(f"/jobs/{job}/summary", headers=customer.headers).json()["data"]
    assert data["sentences"] == []


@pytest.mark.parametrize(
    ("summary", "reason", "says"),
    [(None, "stage_skipped", "no model"), (FAILED, "stage_failed", "could not be summed up")],
)
def test_a_job_without_a_summary_says_why(
    api: RunningApi, summary: PipelineWarning | None, reason: str, says: str
) -> None:
    customer = api.customer()
    job = created(api, customer)
    complete(api, job, [track(0)], [], summary)
    answer = api.client.get(f"/jobs/{job}/summary", headers=customer.headers)
    error = expect_error(answer, 404, "RESULTS_UNAVAILABLE")
    assert says in error["error"]
    assert (error["reason"], error["stage"], error["stageStatus"]) == (
        reason, "transcript", "completed",
    )  # fmt: skip
    shown = api.client.get(f"/jobs/{job}", headers=customer.headers).json()["data"]
    assert [each["code"] for each in shown["warnings"]] == ["SUMMARY_FAILED"] * (summary is FAILED)
