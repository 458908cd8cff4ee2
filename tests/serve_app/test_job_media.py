"""A job's media by its signed address: whole, in ranges, and no longer than it is kept."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from serve_app.media.source import find_media
from storage import jobs
from storage.database import Connection
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.uploads.uploading import object_of
from tests.tables import every

CONTENT = bytes(range(256)) * 9000  # more than two of the blocks that are read
SIZE = len(CONTENT)


@pytest.fixture(scope="module")
def job(api: RunningApi) -> dict[str, Any]:
    """A job whose file has arrived."""
    answer = api.client.post("/jobs", json={"fileName": "Film.MOV"}, headers=api.customer().headers)
    data: dict[str, Any] = answer.json()["data"]
    httpx.put(data["uploadUrl"], content=CONTENT, trust_env=False)
    return data


def path_of(api: RunningApi, job_id: str) -> str | None:
    async def find(connection: Connection) -> str | None:
        found = await jobs.find_job(connection, uuid.UUID(job_id))
        assert found is not None
        return (await find_media(api.context, connection, found)).player

    return api.transact(find)


def get(api: RunningApi, job: dict[str, Any], *, method: str = "GET", **headers: str) -> Any:
    address = f"{api.root}{path_of(api, job['jobId'])}"
    return httpx.request(method, address, headers=headers, trust_env=False)


def test_all_of_it(api: RunningApi, job: dict[str, Any]) -> None:
    answer = get(api, job)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["cache-control"].startswith("private")
    head = get(api, job, method="HEAD")
    assert (head.content, head.headers["content-length"]) == (b"", str(SIZE))


RANGES = {
    "bytes=0-0": (0, 1),
    "bytes=5-": (5, SIZE),
    "bytes=100-1200000": (100, 1_200_001),
    "bytes=-7": (SIZE - 7, SIZE),
    f"bytes=9-{SIZE * 2}": (9, SIZE),
    f"bytes=-{SIZE * 2}": (0, SIZE),
}


@every("asked", RANGES)
def test_a_range_of_it(api: RunningApi, job: dict[str, Any], asked: str) -> None:
    first, end = RANGES[asked]
    answer = get(api, job, Range=asked)
    assert (answer.status_code, answer.content) == (206, CONTENT[first:end])
    assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{SIZE}"


@pytest.mark.parametrize("asked", ["bytes=-", "bytes=9-3", "bytes=1-2,5-6", "lines=1-2", "bytes=x"])
def test_what_is_no_range_gets_all(api: RunningApi, job: dict[str, Any], asked: str) -> None:
    assert get(api, job, Range=asked).status_code == 200


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE + 5}-{SIZE + 9}", "bytes=-0"])
def test_a_range_beyond_the_end(api: RunningApi, job: dict[str, Any], asked: str) -> None:
    answer = get(api, job, Range=asked)
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{SIZE}"


def test_a_job_without_its_file_has_no_address(api: RunningApi, customer: Customer) -> None:
    made = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers).json()
    assert path_of(api, made["data"]["jobId"]) is None
    clip = {"url": "https://media.example.com/a.mp4"}
    made = api.client.post("/jobs/from-url", json=clip, headers=customer.headers).json()
    assert path_of(api, made["data"]["jobId"]) is None


def test_what_is_removed_is_not_found(api: RunningApi, customer: Customer) -> None:
    made = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers).json()
    httpx.put(made["data"]["uploadUrl"], content=b"film", trust_env=False)
    path = path_of(api, made["data"]["jobId"])
    api.context.objects.delete(object_of(api, made["data"]))
    answer = httpx.get(f"{api.root}{path}", trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
