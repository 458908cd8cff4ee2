"""A job's warnings: in the API and on its page, with what they are about."""

from __future__ import annotations

from collections.abc import Mapping

from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi

WARNINGS: list[Mapping[str, object]] = [
    {"code": "TIMELINE_REPAIRED", "message": "The file's clock leaps.", "stage": "ingest"},
    {
        "code": "AUDIO_DAMAGED",
        "message": "3 packets were damaged.",
        "stage": "ingest",
        "trackIndex": 0,
        "startTime": 61.5,
        "endTime": 64.0,
    },
]


def test_warnings_stand_in_the_job_and_on_its_page(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], WARNINGS)
    job = api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]
    assert (job["state"], job["warnings"]) == ("completed", WARNINGS)
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{job_id}")
    assert "The file's clock leaps. TIMELINE_REPAIRED" in plain(page)
    assert "3 packets were damaged. Track 1. 1:01 to 1:04 AUDIO_DAMAGED" in plain(page)
    assert 'href="/docs/errors#warning-AUDIO_DAMAGED"' in page.text
