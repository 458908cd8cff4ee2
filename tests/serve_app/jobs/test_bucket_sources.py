"""Jobs from addresses in buckets: what is stored, what is refused, and the fetch itself."""

from __future__ import annotations

import uuid
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from pipelines.collection import BucketAccess
from pipelines.execution.chain import FreeRun
from pipelines.types import StageError
from serve_app.jobs.plans import seal_access
from serve_app.work.fetch import SourceFetcher
from storage.jobs import find_job
from storage.objects.s3 import client_of
from tests.serve_app.running_api import Customer, RunningApi
from tests.storage.s3_server import place_at
from tests.tables import every

URL = "s3://footage/2024/day 1/a+b%20c.mp4"
SECRET_KEY = "a-secret-of-the-bucket"
ACCESS: dict[str, Any] = {
    "endpoint": "https://minio.example.com:9000",
    "region": "eu-central-1",
    "accessKeyId": "AKIAEXAMPLE",
    "secretAccessKey": SECRET_KEY,
}


def create(api: RunningApi, customer: Customer, path: str = "/jobs/from-url", **body: Any) -> Any:
    return api.client.post(path, json=body, headers=customer.headers)


def stored(api: RunningApi, job_id: str) -> Any:
    return api.transact(lambda connection: find_job(connection, uuid.UUID(job_id)))


def test_an_address_in_a_bucket_is_a_source_and_its_credentials_are_shown_by_nothing(
    api: RunningApi, customer: Customer
) -> None:
    answer = create(api, customer, url=URL, bucketAccess=ACCESS)
    assert answer.status_code == 201, answer.text
    job = answer.json()["data"]
    assert job["fileName"] == "a+b%20c.mp4"
    assert SECRET_KEY not in answer.text
    [clip] = stored(api, job["jobId"]).source.clips
    assert clip.url == URL
    assert SECRET_KEY not in stored(api, job["jobId"]).source.model_dump_json()


def test_a_batch_takes_a_hundred_objects_with_one_access(api: RunningApi) -> None:
    rich = api.customer(100_000)
    clips = [{"sourceUrl": f"gs://footage/{number}.mp4"} for number in range(3)]
    answer = create(api, rich, "/jobs/batch", mode="independent", clips=clips, bucketAccess=ACCESS)
    assert answer.status_code == 201, answer.text
    jobs = answer.json()["data"]["jobs"]
    assert [job["fileName"] for job in jobs] == ["0.mp4", "1.mp4", "2.mp4"]
    assert all(stored(api, job["jobId"]).source.clips[0].sealed_access for job in jobs)


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no object": ({"url": "s3://footage"}, 400, "INVALID_URL", "url"),
    "no bucket": ({"url": "s3:///a.mp4"}, 400, "INVALID_URL", "url"),
    "NUL": ({"url": "s3://footage/a\0.mp4"}, 400, "INVALID_REQUEST", "url"),
    "long key": ({"url": "s3://footage/" + "a" * 1025}, 400, "INVALID_URL", "url"),
    "a program": ({"url": "s3://footage/a.exe"}, 415, "UNSUPPORTED_FORMAT", "url"),
    "a private endpoint": (
        {"url": URL, "bucketAccess": {"endpoint": "http://10.0.0.1:9000"}},
        400,
        "URL_NOT_ALLOWED",
        "bucketAccess.endpoint",
    ),
    "metadata": (
        {"url": URL, "bucketAccess": {"endpoint": "http://169.254.169.254"}},
        400,
        "URL_NOT_ALLOWED",
        "bucketAccess.endpoint",
    ),
    "no endpoint": (
        {"url": URL, "bucketAccess": {"endpoint": "minio"}},
        400,
        "INVALID_URL",
        "bucketAccess.endpoint",
    ),
    "no endpoint, and no bucket": (
        {"url": "https://media.example.com/a.mp4", "bucketAccess": {"endpoint": "minio"}},
        400,
        "INVALID_URL",
        "bucketAccess.endpoint",
    ),
    "half a key": (
        {"url": URL, "bucketAccess": {"accessKeyId": "a"}},
        400,
        "INVALID_REQUEST",
        "bucketAccess.secretAccessKey",
    ),
    "a secret alone": (
        {"url": URL, "bucketAccess": {"secretAccessKey": "a"}},
        400,
        "INVALID_REQUEST",
        "bucketAccess.accessKeyId",
    ),
    "a region that is none": (
        {"url": URL, "bucketAccess": {"region": "../"}},
        400,
        "INVALID_REQUEST",
        "bucketAccess.region",
    ),
}


@every(("body", "status", "code", "param"), REFUSED.values(), ids=REFUSED)
def test_what_names_no_bucket_that_may_be_read_makes_no_job(
    api: RunningApi, customer: Customer, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    answer = create(api, customer, **body)
    refused = answer.json()
    assert (answer.status_code, refused["code"], refused["param"]) == (status, code, param)
    assert api.client.get("/jobs", headers=customer.headers).json()["data"] == []


def test_a_runner_fetches_the_object_with_the_request_s_credentials(
    api: RunningApi, customer: Customer, endpoint: str
) -> None:
    answer = create(api, customer, url=URL, bucketAccess=ACCESS)
    job = stored(api, answer.json()["data"]["jobId"])
    [clip] = job.source.clips
    own = api.settings.model_copy(update={"allowed_networks": (ip_network("127.0.0.0/8"),)})
    place = place_at(endpoint, bucket="footage")
    client_of(place).create_bucket(Bucket="footage")
    client_of(place).put_object(
        Bucket="footage", Key=URL.removeprefix("s3://footage/"), Body=b"media"
    )
    access = BucketAccess(endpoint, None, place.access_key_id, place.secret_access_key)
    sealed = seal_access(api.context.encrypter, access)
    clips = (clip.model_copy(update={"sealed_access": sealed}),)
    job = replace(job, source=job.source.model_copy(update={"clips": clips}))
    with pytest.raises(StageError, match="private"):
        SourceFetcher(api.context, job, FreeRun()).fetch_all([])
    allowing = replace(api.context, settings=own)
    fetched = SourceFetcher(allowing, job, FreeRun()).fetch_all([])
    assert api.context.objects.read_bytes(fetched.clips[0].key) == b"media"
