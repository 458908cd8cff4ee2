"""`people`: both the service and the job must allow it; read, shown, deleted."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.contracts import Box
from pipelines.codec import to_json
from pipelines.types import Appearance, Person
from serve_app.deployment.model_choice import ModelProfileError, chosen_models
from serve_app.settings import Settings
from storage import jobs, results
from storage.objects import ObjectStoreUnavailableError
from tests.serve_app.dashboard.test_dashboard_pages import signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.stills import RED, jpeg

BOX = Box(0.1, 0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def allowing(api: RunningApi) -> Iterator[RunningApi]:
    settings = api.settings.model_copy(update={"people": True})
    with RunningApi(settings) as running:
        yield running


def publish(api: RunningApi, customer: Customer) -> tuple[str, str]:
    """A job with one person; its id and the key of the person's picture."""
    job = created(api, customer)
    key = f"jobs/{job}/vision/people/one.jpg"
    api.context.objects.write_bytes(key, jpeg(RED))
    seen = (Appearance(400, BOX, 0), Appearance(9_000, BOX))
    complete(api, job, [track(0)], [], people=to_json((Person("person_0", seen, key),)))
    return job, key


def get(api: RunningApi, customer: Customer, path: str) -> httpx.Response:
    return api.client.get(path, headers=customer.headers)


def test_the_jobs_page_shows_each_with_a_picture_that_is_given_out(
    api: RunningApi, customer: Customer
) -> None:
    job, _ = publish(api, customer)
    with signed_in(api, customer) as client:
        page = client.get(f"/dashboard/jobs/{job}").text
        [(time, still)] = re.findall(r'<a href="#t=([^"]+)"><img src="([^"]+)" alt="Person 1', page)
        assert time == "0.4"
        assert client.get(unescape(still)).content == jpeg(RED)


def test_a_service_that_does_not_allow_it_refuses_the_job_by_name(api: RunningApi) -> None:
    body = {"fileName": "a.mp4", "people": True}
    answer = api.client.post("/jobs", json=body, headers=api.customer().headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "people")


@pytest.mark.parametrize(("given", "kept"), [({}, False), ({"people": True}, True)])
def test_a_service_that_allows_it_does_so_for_jobs_that_ask(
    allowing: RunningApi, given: dict[str, Any], kept: bool
) -> None:
    headers = allowing.customer().headers
    answer = allowing.client.post("/jobs", json={"fileName": "a.mp4", **given}, headers=headers)
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["data"]["jobId"]

    async def source(connection: Any) -> bool:
        job = await jobs.find_job(connection, job_id)
        assert job is not None
        return job.source.people

    assert allowing.transact(source) is kept


def test_without_the_model_the_service_does_not_start(tmp_path: Path) -> None:
    settings = Settings(model_profile="packaged", people=True, models_dir=tmp_path)
    try:
        chosen_models(settings)
    except ModelProfileError as error:
        assert "VAS_PEOPLE needs the task embed_faces: run vas models pull --task" in str(error)  # noqa: PT017
    else:
        pytest.skip("SFace is installed here")


def test_people_are_shown_with_their_pictures_and_deleted_for_good(api: RunningApi) -> None:
    customer, stranger = api.customer(), api.customer()
    job, key = publish(api, customer)
    data = get(api, customer, f"/jobs/{job}/people").json()["data"]
    assert data["jobId"] == job
    [person] = data["people"]
    assert person["id"] == "person_0"
    box = {"left": 0.1, "top": 0.2, "width": 0.3, "height": 0.4}
    assert person["appearances"] == [
        {"time": 0.4, "box": box, "sceneIndex": 0},
        {"time": 9.0, "box": box},
    ]
    still = api.client.get(person["stillUrl"])
    assert (still.status_code, still.content) == (200, jpeg(RED))
    kept = api.transact(lambda c: results.list_thumbnail_keys(c, uuid.UUID(job)))
    assert key in kept, "when the job is cleaned up"
    assert get(api, stranger, f"/jobs/{job}/people").status_code == 404
    path = f"/jobs/{job}/people"
    assert api.client.delete(path, headers=stranger.headers).status_code == 404
    for deleted in (1, 0):
        answer = api.client.delete(path, headers=customer.headers)
        assert (answer.status_code, answer.json()["data"]) == (
            200,
            {"jobId": job, "deleted": deleted},
        )
    gone = get(api, customer, f"/jobs/{job}/people")
    assert (gone.status_code, gone.json()["code"]) == (404, "RESULTS_UNAVAILABLE")
    assert api.client.get(person["stillUrl"]).status_code == 404
    assert not api.context.objects.exists(key)
    assert get(api, customer, f"/jobs/{job}/scenes").status_code == 200


def test_pictures_that_the_store_did_not_remove_are_removed_by_the_next_request(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = api.customer()
    job, key = publish(api, customer)
    path = f"/jobs/{job}/people"

    def unavailable(*_: Any) -> None:
        raise ObjectStoreUnavailableError("object store: away")

    with monkeypatch.context() as patch:
        patch.setattr(type(api.context.objects), "delete_keys", unavailable)
        assert api.client.delete(path, headers=customer.headers).status_code == 503
    assert get(api, customer, path).status_code == 200
    answer = api.client.delete(path, headers=customer.headers)
    assert answer.json()["data"]["deleted"] == 1
    assert not api.context.objects.exists(key)


def test_before_the_pictures_are_analysed_there_is_nothing_yet(api: RunningApi) -> None:
    customer = api.customer()
    early = get(api, customer, f"/jobs/{created(api, customer)}/people")
    assert (early.status_code, early.json()["code"]) == (409, "RESULTS_NOT_READY")
