"""What is seen in a video without cuts: where it stands, and its still."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.api.context import API_PREFIX
from serve_app.client.api import ApiClient
from serve_app.client.export import export_results
from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.published_jobs import SCENES, complete, created, track
from tests.serve_app.running_api import Customer, RunningApi

STILL = b"\xff\xd8a still"


@pytest.fixture(scope="module")
def owner(api: RunningApi) -> Customer:
    return api.customer()


@pytest.fixture(scope="module")
def uncut(api: RunningApi, owner: Customer) -> str:
    """A completed job of a video without cuts."""
    job_id = created(api, owner)
    key = f"jobs/{job_id}/work/vision/thumbnails/one.jpg"
    api.context.objects.write_bytes(key, STILL)
    complete(api, job_id, [track(0)], [], scenes=[], overview=SCENES[0] | {"thumbnailKey": key})
    return job_id


def test_the_overview_has_a_still_at_an_address_that_needs_no_key(
    api: RunningApi, owner: Customer, uncut: str
) -> None:
    answer = api.client.get(f"/jobs/{uncut}/scenes", headers=owner.headers).json()["data"]
    assert answer["scenes"] == []
    address = answer["overview"]["thumbnailUrl"]
    assert api.client.get(address).content == STILL
    assert api.client.get(address.replace("overview.jpg", "0.jpg")).status_code == 404


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
        assert client.get_seen(uncut)["overview"]["objects"] == ["kettle", "woman"]
        written = export_results(client, uncut, tmp_path)
    assert {"scenes.json", "contact-sheet.png"} <= {path.name for path in written}
    assert "Anna Weber, baker" in (tmp_path / "scenes.json").read_text()
