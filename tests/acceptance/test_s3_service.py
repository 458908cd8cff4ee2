"""The whole service with its objects in S3: no local folder, and no word from the client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from serve_app.client.api import ApiClient
from storage.objects.s3 import S3Store
from tests.acceptance.service import Service, running, wait_until
from tests.places import DEMO
from tests.storage.s3_server import everything_in, fresh_store, s3_process

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

LIMIT_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class InS3:
    """A service and the bucket that it keeps its objects in."""

    service: Service
    store: S3Store
    endpoint: str


@pytest.fixture(scope="module")
def in_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InS3]:
    folder = tmp_path_factory.mktemp("s3-service")
    with s3_process() as endpoint:
        store = fresh_store(endpoint)
        place = store.place
        with running(
            folder / "data",
            folder / "service.log",
            VAS_SEGMENT_SECONDS="5",
            VAS_S3_BUCKET=place.bucket,
            VAS_S3_PREFIX="ours",
            VAS_S3_ENDPOINT_URL=endpoint,
            VAS_S3_ACCESS_KEY_ID=place.access_key_id or "",
            VAS_S3_SECRET_ACCESS_KEY=place.secret_access_key or "",
            VAS_SOURCE_RETENTION_SECONDS="1",
            VAS_STANDARD_MAX_BYTES=str(LIMIT_BYTES),
            # The environment has its own ideas of where a bucket is; they do not count.
            AWS_ENDPOINT_URL="http://127.0.0.1:9",
            AWS_DEFAULT_REGION="nowhere-1",
        ) as service:
            yield InS3(service, store, endpoint)


def put(url: str, data: bytes) -> int:
    """A plain PUT as any HTTP client sends it."""
    headers = {"Content-Type": "application/octet-stream"}
    return httpx.put(url, content=data, headers=headers, trust_env=False, timeout=60).status_code


def objects_of(in_s3: InS3, job_id: str) -> list[str]:
    """Everything of the job in the bucket: objects, partials, unfinished uploads."""
    return [key for key in everything_in(in_s3.store) if job_id in key]


def test_a_presigned_put_is_all_that_a_job_needs(in_s3: InS3) -> None:
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job(DEMO.name, DEMO.stat().st_size, "all")
        assert job["uploadUrl"].startswith(f"{in_s3.endpoint}/")
        assert set(job["uploadHeaders"]) == {"Content-Type"}
        assert urlsplit(job["resumableUploadUrl"]).port == in_s3.service.port
        assert put(job["uploadUrl"], DEMO.read_bytes()) == 200

        ended = client.wait(job["jobId"], timeout_seconds=150)
        assert ended["state"] == "completed", ended
        scenes = client.get_scenes(job["jobId"])
        assert scenes
        assert client.get_transcript(job["jobId"])["segments"]

    stills = [httpx.get(scene["thumbnailUrl"], trust_env=False) for scene in scenes]
    assert all(still.content.startswith(b"\xff\xd8") for still in stills)
    wait_until(
        lambda: len(objects_of(in_s3, job["jobId"])) == len(scenes),
        30,
        "media and segments are gone, the stills of the scenes stay",
    )
    assert httpx.get(scenes[0]["thumbnailUrl"], trust_env=False).content == stills[0].content
    assert not (in_s3.service.data / "objects").exists()


def test_a_file_over_the_limit_fails_its_job_and_is_not_kept(in_s3: InS3) -> None:
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job("large.mp4", None, "all")
        assert put(job["uploadUrl"], bytes(LIMIT_BYTES + 1)) == 200
        ended = client.wait(job["jobId"], timeout_seconds=60)
    assert ended["state"] == "failed"
    assert ended["stages"]["ingest"]["error"]["code"] == "VALIDATION_FAILED"
    assert str(LIMIT_BYTES) in ended["stages"]["ingest"]["error"]["message"]
    wait_until(lambda: not objects_of(in_s3, job["jobId"]), 30, "nothing of it is kept")


def test_a_cancelled_job_leaves_nothing_of_what_was_sent_for_it(in_s3: InS3) -> None:
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job("clip.mp4", None, "all")
        client.cancel(job["jobId"])
    assert put(job["uploadUrl"], b"too late") == 200
    assert objects_of(in_s3, job["jobId"])
    wait_until(lambda: not objects_of(in_s3, job["jobId"]), 40, "the late file is removed")
