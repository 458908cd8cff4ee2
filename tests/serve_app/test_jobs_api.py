"""Creating, uploading, reading and cancelling jobs, through a socket."""

from __future__ import annotations

import socket
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from models.contracts import SPOKEN_LANGUAGES
from storage.jobs import find_job
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.uploads.uploading import files_of, object_of
from tests.tables import every


def create(api: RunningApi, customer: Customer, **body: Any) -> dict[str, Any]:
    body.setdefault("fileName", "clip.mp4")
    answer = api.client.post("/jobs", json=body, headers=customer.headers)
    assert answer.status_code == 201, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


def put(url: str, content: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/octet-stream"}
    return httpx.put(url, content=content, headers=headers, trust_env=False)


def state_of(api: RunningApi, customer: Customer, job_id: str) -> str:
    answer = api.client.get(f"/jobs/{job_id}?include=none", headers=customer.headers)
    state: str = answer.json()["data"]["state"]
    return state


def expect_error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> Any:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert body["docUrl"].endswith(f"#{code}")
    assert body["requestId"] == answer.headers["x-request-id"]
    assert body.get("param") == param
    return body


def test_a_new_job_waits_for_its_upload(api: RunningApi, customer: Customer) -> None:
    answer = api.client.post(
        "/jobs",
        json={"fileName": "a/b/clip.mp4", "metadata": {"assetId": "x1", "n": 1.5}},
        headers=customer.headers,
    )
    job = answer.json()["data"]
    assert answer.status_code == 201
    assert answer.headers["location"] == job["links"]["self"]
    assert job["state"] == "awaiting_upload"
    assert job["status"] == "AWAITING_UPLOAD"
    assert job["fileName"] == job["originalFilename"] == "clip.mp4"
    assert job["metadata"] == {"assetId": "x1", "n": 1.5}
    assert job["uploadMethod"] == "PUT"
    assert job["expiresInSeconds"] == 3600
    assert job["maxUploadBytes"] == api.settings.standard_max_bytes
    assert {name: stage["status"] for name, stage in job["stages"].items()} == {
        "ingest": "pending",
        "vision": "pending",
        "transcript": "pending",
    }
    assert job["links"]["scenes"].startswith(f"{api.root}/v1/api/jobs/")


def test_the_last_upload_queues_the_job_once_and_later_ones_are_refused(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    assert put(job["uploadUrl"], b"x" * 3_000_000).status_code == 200
    assert state_of(api, customer, job["jobId"]) == "queued"
    key = object_of(api, job)
    assert api.context.objects.read_bytes(key) == b"x" * 3_000_000
    again = put(job["uploadUrl"], b"other")
    assert again.status_code == 409
    assert api.context.objects.size_bytes(key) == 3_000_000


@pytest.mark.parametrize("declared", [True, False], ids=["declared length", "chunked"])
def test_an_upload_over_the_limit_is_refused_and_nothing_of_it_is_kept(
    api: RunningApi, customer: Customer, declared: bool
) -> None:
    job = create(api, customer)
    content = b"x" * (api.settings.standard_max_bytes + 1)
    body: Any = (
        content if declared else (content[i : i + 65536] for i in range(0, len(content), 65536))
    )
    try:
        answer = put(job["uploadUrl"], body)
    except httpx.WriteError:
        pass  # refused before all was sent: the connection may be gone
    else:
        assert answer.status_code == 413
    assert not list(api.context.objects.list_keys(f"jobs/{job['jobId']}"))
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"


def test_a_broken_off_upload_leaves_nothing_behind(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer)
    parts = urlsplit(job["uploadUrl"])
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80)) as connection:
        head = (
            f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: 2000000\r\n\r\n"
        )
        connection.sendall(head.encode() + b"y" * 1_500_000)
    assert put(job["uploadUrl"], b"whole").status_code == 200
    key = object_of(api, job)
    assert api.context.objects.read_bytes(key) == b"whole"
    for _ in range(100):
        if len(files_of(api, job)) == 1:
            break
        time.sleep(0.05)
    assert files_of(api, job) == [key.rsplit("/", 1)[1]]


BAD_BODIES: list[Any] = [
    pytest.param({"fileName": "x" * 256}, "fileName", id="fileName too long"),
    pytest.param({"fileName": "a\tb.mp4"}, "fileName", id="control character"),
    pytest.param({"fileName": "a/.."}, "fileName", id="no name left"),
    pytest.param({"fileName": "a.mp4", "channels": "left"}, "channels", id="channels"),
    pytest.param(
        {"fileName": "a.mp4", "metadata": {"assetId": {}}}, "metadata.assetId", id="nested metadata"
    ),
    pytest.param({"fileName": "a.mp4", "metadata": {"k": "\0"}}, "metadata.k", id="NUL"),
    pytest.param(
        {"fileName": "a.mp4", "speakersExpected": 3, "speakersAtMost": 2},
        "speakersAtMost",
        id="more speakers expected than at most",
    ),
    pytest.param({"fileName": "a.mp4", "speakersAtMost": 21}, "speakersAtMost", id="at most 21"),
    *(
        pytest.param({"fileName": "a.mp4", "speakersExpected": value}, "speakersExpected", id=why)
        for value, why in (
            (0, "no speaker"),
            (21, "a crowd"),
            (1.5, "half a speaker"),
            ("2", "speakers as text"),
            ([2], "speakers as a list"),
        )
    ),
    *(
        pytest.param({"fileName": "a.mp4", param.split("[")[0]: value}, param, id=why)
        for param, value, why in (
            ("language", "xx", "language of no model"),
            ("language", "en_US", "no BCP 47"),
            ("language", "", "empty language"),
            ("language", 5, "language as number"),
            ("languages", [], "no languages"),
            ("languages[1]", ["en", "xx"], "one language of no model"),
            ("languages", ["de", "en", "De"], "a language twice"),
            ("languages", sorted(SPOKEN_LANGUAGES)[:11], "eleven languages"),
        )
    ),
]


@every(("body", "param"), BAD_BODIES)
def test_bad_bodies_name_the_field(
    api: RunningApi, customer: Customer, body: Any, param: str
) -> None:
    answer = api.client.post("/jobs", json=body, headers=customer.headers)
    expect_error(answer, 400, "INVALID_REQUEST", param)


def test_a_text_in_a_wrong_form_is_refused_in_words(api: RunningApi, customer: Customer) -> None:
    body = {"url": "https://media.example.com/a.mp4", "downloadToken": "two words"}
    answer = api.client.post("/jobs/from-url", json=body, headers=customer.headers)
    expect_error(answer, 400, "INVALID_REQUEST", "downloadToken")
    problem = "must have the form that the reference describes"
    assert answer.json()["error"] == f"downloadToken: {problem}."


@every("path", ["/jobs", "/jobs/from-url", "/jobs/batch"])
@every(
    ("given", "name", "kept"),
    [
        ({}, "speakers_expected", None),
        ({"speakersExpected": 3}, "speakers_expected", 3),
        ({"speakersExpected": 20.0}, "speakers_expected", 20),
        ({"speakersAtMost": 2, "speakersExpected": 2}, "speakers_at_most", 2),
        ({"language": "pt-BR"}, "language", "pt-BR"),
        ({"languages": ["hr", "SR", "zh-Hant"]}, "languages", ("hr", "SR", "zh-Hant")),
        ({"channels": "separate"}, "channels", "separate"),
    ],
)
def test_every_creation_hands_the_options_of_transcription_on(
    api: RunningApi, path: str, given: dict[str, Any], name: str, kept: Any
) -> None:
    customer = api.customer()  # with active jobs of its own
    url = "https://media.example.com/a.mp4"
    bodies: dict[str, dict[str, Any]] = {
        "/jobs": {"fileName": "a.mp4"},
        "/jobs/from-url": {"url": url},
        "/jobs/batch": {"mode": "independent", "clips": [{"sourceUrl": url}]},
    }
    answer = api.client.post(path, json=bodies[path] | given, headers=customer.headers)
    assert answer.status_code == 201, answer.text
    data = answer.json()["data"]
    job_id = uuid.UUID((data["jobs"][0] if "jobs" in data else data)["jobId"])
    job = api.transact(lambda c: find_job(c, job_id))
    assert job is not None
    assert getattr(job.source, name) == kept
