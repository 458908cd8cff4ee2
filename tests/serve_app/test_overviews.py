"""What is seen in a video without cuts: where it stands, and its still."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from pipelines.types import PipelineWarning, WarningCode
from serve_app.api.envelope import API_PREFIX
from serve_app.client.api import ApiClient
from serve_app.client.export import export_results
from storage.results import list_thumbnail_keys
from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.published_jobs import SCENES, SENTENCES, SUMMARY, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import expect_error

STILL, SECOND = b"\xff\xd8a still", b"\xff\xd8another one"


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def uncut(api: RunningApi, owner: Customer) -> str:
    """A completed job of a video without cuts."""
    job_id = created(api, owner)
    key = f"jobs/{job_id}/work/vision/thumbnails/one.jpg"
    api.context.objects.write_bytes(key, STILL)
    complete(api, job_id, [track(0)], [], scenes=[], overview=with_stills(api, job_id, key))
    return job_id


def with_stills(api: RunningApi, job_id: str, key: str) -> dict[str, Any]:
    """What is seen, with a second still beside the one at ``key``."""
    second = f"jobs/{job_id}/work/vision/thumbnails/two.jpg"
    api.context.objects.write_bytes(second, SECOND)
    stills = [{"time_ms": 1_200, "key": key}, {"time_ms": 9_000, "key": second}]
    return SCENES[0] | {"thumbnailKey": key, "stills": stills}


def test_the_overview_has_a_still_at_an_address_that_needs_no_key(
    api: RunningApi, owner: Customer, uncut: str
) -> None:
    answer = api.client.get(f"/jobs/{uncut}/scenes", headers=owner.headers).json()["data"]
    assert answer["scenes"] == []
    address = answer["overview"]["thumbnailUrl"]
    assert api.client.get(address).content == STILL
    assert api.client.get(address.replace("overview.jpg", "0.jpg")).status_code == 404


@pytest.mark.parametrize("cuts", [False, True], ids=["the whole", "a scene"])
def test_both_stills_of_what_is_long_have_times_and_addresses_and_go_with_the_job(
    api: RunningApi, owner: Customer, cuts: bool
) -> None:
    job_id = created(api, owner)
    key = f"jobs/{job_id}/work/vision/thumbnails/one.jpg"
    api.context.objects.write_bytes(key, STILL)
    shown = with_stills(api, job_id, key)
    scenes = [shown] if cuts else []
    complete(api, job_id, [track(0)], [], scenes=scenes, overview=None if cuts else shown)
    seen = api.client.get(f"/jobs/{job_id}/scenes", headers=owner.headers).json()["data"]
    stills = (seen["scenes"][0] if cuts else seen["overview"])["stills"]
    assert [still["time"] for still in stills] == [1.2, 9.0]
    assert [api.client.get(still["url"]).content for still in stills] == [STILL, SECOND]
    wrong = stills[1]["url"].replace("-2.jpg", "-3.jpg")
    assert api.client.get(wrong).status_code in (400, 404)
    with signed_in(api, owner) as browser:
        page = browser.get(f"/dashboard/jobs/{job_id}")
        assert f"/thumbnails/{'0' if cuts else 'overview'}-2.jpg?" in page.text
    keys = api.transact(lambda c: list_thumbnail_keys(c, uuid.UUID(job_id)))
    assert keys == {still["key"] for still in shown["stills"]}
    api.client.post(f"/jobs/{job_id}/erase", headers=owner.headers)
    assert api.client.get(stills[1]["url"]).status_code == 404


def test_the_page_of_a_job_shows_it(api: RunningApi, owner: Customer, uncut: str) -> None:
    with signed_in(api, owner) as browser:
        page = browser.get(f"/dashboard/jobs/{uncut}")
        assert "One shot" in plain(page)
        assert "A woman speaks to the camera" in plain(page)
        assert "Anna Weber, baker" in plain(page)
        assert "/thumbnails/overview.jpg?" in page.text
        found = browser.get("/dashboard/search", params={"q": "kitchen"})
        assert f"/jobs/{uncut}/thumbnails/overview.jpg?" in found.text


def test_the_command_line_writes_and_draws_it(
    api: RunningApi, owner: Customer, uncut: str, tmp_path: Path
) -> None:
    with ApiClient(f"{api.root}{API_PREFIX}", owner.key) as client:
        assert client.call("getScenes", jobId=uncut)["overview"]["objects"] == ["kettle", "woman"]
        written = export_results(client, uncut, tmp_path)
    assert {"scenes.json", "contact-sheet.png"} <= {path.name for path in written}
    assert "Anna Weber, baker" in (tmp_path / "scenes.json").read_text()


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
