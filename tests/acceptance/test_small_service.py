"""A small service of other settings: its objects in S3, one logical CPU, two API replicas.

No local folder of objects and no word from the client about uploads; no deadlock, and limits
that still hold.
"""

from __future__ import annotations

import collections
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import text

from benchmarks.service_jobs import first_seconds
from serve_app.api.authentication import LIMITS, Bucket
from serve_app.cli.accounts import create_account, create_key
from serve_app.cli.output import in_service
from serve_app.client.api import ApiClient
from serve_app.settings import Settings
from storage.objects.s3 import S3Store
from tests.acceptance.service import Service, running, wait_until
from tests.places import DEMO
from tests.serve_app.running_api import within_a_minute
from tests.storage.s3_server import everything_in, fresh_store, s3_process

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

LIMIT_BYTES = 16 * 1024**2
CLIENTS = 20


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
            VAS_RAY_CPUS="1",
            VAS_API_REPLICAS="2",
            VAS_RUNNER_CONCURRENCY="2",
            VAS_MODEL_REPLICAS='{"transcribe": 1}',
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


@pytest.fixture(scope="module")
def late_job(in_s3: InS3) -> str:
    """A job that was cancelled before its media was sent all the same. It is made first: what came
    late is removed after half a minute, in which other tests run."""
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job("clip.mp4", None, "all")
        client.cancel(job["jobId"])
    assert put(job["uploadUrl"], b"too late") == 200
    assert objects_of(in_s3, job["jobId"])
    return str(job["jobId"])


@pytest.mark.usefixtures("late_job")
def test_a_presigned_put_is_all_that_a_job_needs(in_s3: InS3, tmp_path: Path) -> None:
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", 4.0)
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job(clip.name, clip.stat().st_size, "all")
        assert job["uploadUrl"].startswith(f"{in_s3.endpoint}/")
        assert set(job["uploadHeaders"]) == {"Content-Type"}
        assert urlsplit(job["resumableUploadUrl"]).port == in_s3.service.port
        assert put(job["uploadUrl"], clip.read_bytes()) == 200

        ended = client.wait(job["jobId"], timeout_seconds=300)
        assert ended["state"] == "completed", ended
        scenes = client.get_scenes(job["jobId"])
        assert scenes
        assert client.get_transcript(job["jobId"])["segments"]

    stills = [httpx.get(scene["thumbnailUrl"], trust_env=False) for scene in scenes]
    assert all(still.content.startswith(b"\xff\xd8") for still in stills)
    wait_until(
        lambda: len(objects_of(in_s3, job["jobId"])) == len(scenes),
        120,
        "media and segments are gone, the stills of the scenes stay",
    )
    assert httpx.get(scenes[0]["thumbnailUrl"], trust_env=False).content == stills[0].content
    assert not (in_s3.service.data / "objects").exists()


def test_a_file_over_the_limit_fails_its_job_and_is_not_kept(in_s3: InS3) -> None:
    with ApiClient(in_s3.service.base_url, in_s3.service.api_key) as client:
        job = client.create_job("large.mp4", None, "all")
        assert put(job["uploadUrl"], bytes(LIMIT_BYTES + 1)) == 200
        ended = client.wait(job["jobId"], timeout_seconds=300)
    assert ended["state"] == "failed"
    assert ended["stages"]["ingest"]["error"]["code"] == "VALIDATION_FAILED"
    assert str(LIMIT_BYTES) in ended["stages"]["ingest"]["error"]["message"]
    wait_until(lambda: not objects_of(in_s3, job["jobId"]), 120, "nothing of it is kept")


def test_a_cancelled_job_leaves_nothing_of_what_was_sent_for_it(in_s3: InS3, late_job: str) -> None:
    wait_until(lambda: not objects_of(in_s3, late_job), 120, "the late file is removed")


@pytest.fixture
def small_service(in_s3: InS3) -> Service:
    return in_s3.service


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
def test_many_jobs_on_one_logical_cpu_all_complete_alike(
    small_service: Service, tmp_path: Path, count: int
) -> None:
    """One more than are driven at once, of which each asks for more than the CPU there is."""
    clip = first_seconds(DEMO, tmp_path / "clip.mp4", 4.0)
    jobs = [small_service.submit(clip) for _ in range(count)]
    states = [small_service.ended(job, timeout_seconds=300)["state"] for job in jobs]
    assert states == ["completed"] * count
    first = small_service.results(jobs[0])
    assert len(first["scenes"]) == 2
    assert all(small_service.results(job) == first for job in jobs[1:])


def fresh_key(service: Service, *, unasked: int) -> str:
    """A key of an account that counts so many reads already, made beside the running service."""
    settings = Settings(data_dir=service.data)
    name = uuid.uuid4().hex
    account_id = in_service(settings, lambda connection, _: create_account(connection, name))["id"]
    key: str = in_service(settings, lambda connection, _: create_key(connection, name))["key"]
    headers = {"X-API-Key": key}
    httpx.get(f"{service.base_url}/quota", headers=headers, trust_env=False, timeout=60)
    query = text("UPDATE rate_limits SET used = :used WHERE bucket = :name")
    counted = {"used": unasked, "name": f"{account_id}:{Bucket.READS}"}
    in_service(settings, lambda connection, _: connection.execute(query, counted))
    return key


def test_two_replicas_behind_the_proxy_count_as_one(small_service: Service) -> None:
    each, passing = 10, 100

    def ask() -> collections.Counter[int]:
        unasked = LIMITS[Bucket.READS] - passing
        headers = {"X-API-Key": fresh_key(small_service, unasked=unasked)}

        def work(_: int) -> list[int]:
            with httpx.Client(headers=headers, trust_env=False, timeout=60) as client:
                url = f"{small_service.base_url}/jobs/{uuid.uuid4()}"
                return [client.get(url).status_code for _ in range(each)]

        with ThreadPoolExecutor(CLIENTS) as pool:
            return collections.Counter(
                status for part in pool.map(work, range(CLIENTS)) for status in part
            )

    assert within_a_minute(ask) == {404: passing, 429: each * CLIENTS - passing}
    titles = [" ".join(process.cmdline()) for process in small_service.processes()]
    assert sum("ServeReplica:vas:Api" in title for title in titles) == 2
