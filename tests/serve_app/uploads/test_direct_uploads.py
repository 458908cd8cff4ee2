"""Files that clients put into the bucket themselves: noticed, moved out of reach, queued once."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pipelines.types import StageError
from serve_app.context import AppContext, build_context
from serve_app.settings import GIB, Settings
from serve_app.uploads import access as direct
from serve_app.uploads.access import UPLOAD_PURPOSE, DirectUploadWatcher, direct_key, upload_path
from serve_app.work.fetch import require_allowed_sizes
from storage.objects import ObjectStoreUnavailableError
from storage.objects.s3 import S3Store
from storage.uploads import LONGEST_PAUSE_SECONDS, lease_awaited_uploads
from tests.serve_app.beside_jobs import behind
from tests.serve_app.beside_jobs import sweep as sweep_all
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, put, state_of
from tests.serve_app.uploads.uploading import offset_of, patch, upload_of
from tests.storage.s3_server import everything_in, fresh_store

LIMIT_BYTES = 20 * GIB


@pytest.fixture(scope="module")
def api_settings(api_settings: Settings, endpoint: str) -> Settings:
    """The settings of the other API tests, with a bucket."""
    place = fresh_store(endpoint).place
    return api_settings.model_copy(
        update={
            "s3_bucket": place.bucket,
            "s3_prefix": "ours",
            "s3_endpoint_url": endpoint,
            "s3_access_key_id": place.access_key_id,
            "s3_secret_access_key": Settings(
                s3_access_key_id="x", s3_secret_access_key=place.secret_access_key
            ).s3_secret_access_key,
            "standard_max_bytes": LIMIT_BYTES,
            "max_active_jobs": 50,
        }
    )


def bucket(api: RunningApi) -> S3Store:
    store = api.context.objects
    assert isinstance(store, S3Store)
    return store


def look(api: RunningApi, *, watches: int = 1, **changes: Any) -> None:
    """One round of so many watches at once, on a loop of their own."""

    async def one(context: AppContext) -> None:
        watcher = DirectUploadWatcher(context, bucket(api))
        await watcher.look()
        await watcher.settle()

    async def run() -> None:
        worlds = [build_context(api.settings.model_copy(update=changes)) for _ in range(watches)]
        await asyncio.gather(*map(one, worlds))
        for context in worlds:
            await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()


def make_due(api: RunningApi) -> None:
    api.sql("UPDATE uploads SET look_after = NULL")


def sweep(api: RunningApi, **changes: Any) -> None:
    settings = api.settings.model_copy(update=changes)
    behind(api, sweep_all, settings=settings)


def objects_of(api: RunningApi, job: dict[str, Any]) -> list[str]:
    return [key for key in everything_in(bucket(api)) if job["jobId"] in key]


def test_the_upload_url_is_the_buckets_and_the_resumable_one_ours(
    api: RunningApi, customer: Customer, endpoint: str
) -> None:
    job = create(api, customer, audioFileName="sound.wav")
    assert job["uploadUrl"].startswith(f"{endpoint}/")
    assert job["audioUploadUrl"].startswith(f"{endpoint}/")
    assert job["resumableUploadUrl"].startswith(api.root)
    assert "X-Amz-Expires=3600" in job["uploadUrl"]
    assert job["uploadHeaders"] == {"Content-Type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("size_bytes", "direct"), [(5 * GIB, True), (5 * GIB + 1, False)], ids=["5 GiB", "more"]
)
def test_what_s3_takes_in_no_single_put_goes_through_the_service(
    api: RunningApi, customer: Customer, endpoint: str, size_bytes: int, direct: bool
) -> None:
    job = create(api, customer, fileSizeBytes=size_bytes)
    assert job["uploadUrl"].startswith(endpoint if direct else api.root)


def test_a_file_that_was_put_queues_its_job_without_another_word(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    look(api)
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
    assert put(job["uploadUrl"], b"footage").status_code == 200
    make_due(api)
    look(api)
    assert state_of(api, customer, job["jobId"]) == "queued"
    row = upload_of(api, job)
    assert row.received_bytes == 7
    assert row.object_key.startswith(f"jobs/{row.job_id}/source/arrived/media-")
    assert bucket(api).read_bytes(row.object_key) == b"footage"


def test_a_file_cannot_be_changed_any_more_once_its_job_is_queued(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    put(job["uploadUrl"], b"footage")
    look(api)
    assert put(job["uploadUrl"], b"something else").status_code == 200
    look(api)
    row = upload_of(api, job)
    assert row.received_bytes == 7
    assert bucket(api).read_bytes(row.object_key) == b"footage"


def test_a_file_whose_arrival_could_not_be_recorded_is_found_again(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away, or the runner with it, between the copy and the record."""
    job = create(api, customer)
    put(job["uploadUrl"], b"footage")

    async def gone(*_: object) -> None:
        raise psycopg.OperationalError("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(direct, "record_complete", gone)
        look(api)
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
    make_due(api)
    look(api)
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert bucket(api).read_bytes(upload_of(api, job).object_key) == b"footage"
    [key] = objects_of(api, job)
    assert "/arrived/media-" in key


def test_a_job_with_two_files_waits_for_both(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer, audioFileName="sound.wav")
    put(job["audioUploadUrl"], b"sound")
    look(api)
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
    put(job["uploadUrl"], b"footage")
    make_due(api)
    look(api)
    assert state_of(api, customer, job["jobId"]) == "queued"


def test_watches_that_look_at_once_deal_with_a_file_once(
    api: RunningApi, customer: Customer
) -> None:
    jobs = [create(api, customer) for _ in range(6)]
    for job in jobs:
        put(job["uploadUrl"], b"footage")
    look(api, watches=4)
    assert {state_of(api, customer, job["jobId"]) for job in jobs} == {"queued"}
    for job in jobs:
        [key] = objects_of(api, job)
        assert "/arrived/media-" in key


def test_a_put_to_the_service_still_counts(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer)
    row = upload_of(api, job)
    path = api.context.signer.sign_path(
        UPLOAD_PURPOSE, upload_path(row), expires_at=int(time.time()) + 60
    )
    assert put(api.root + path, b"footage").status_code == 200
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert bucket(api).read_bytes(upload_of(api, job).object_key) == b"footage"


def test_a_resumable_upload_grows_in_the_bucket(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer, fileSizeBytes=7)
    url = job["resumableUploadUrl"]
    assert patch(url, 0, b"foot").status_code == 204
    assert offset_of(url) == 4
    assert patch(url, 4, b"age").status_code == 204
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert bucket(api).read_bytes(upload_of(api, job).object_key) == b"footage"
    assert len(objects_of(api, job)) == 1


def test_a_file_over_the_limit_is_not_kept_and_the_job_goes_to_its_failure(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    put(job["uploadUrl"], b"a long film")
    look(api, standard_max_bytes=10)
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert objects_of(api, job) == []
    row = upload_of(api, job)
    with pytest.raises(StageError, match="larger than 10 bytes") as caught:
        require_allowed_sizes([row], 10)
    assert caught.value.code == "VALIDATION_FAILED"
    require_allowed_sizes([replace(row, received_bytes=10)], 10)


def test_a_job_that_ended_is_not_looked_for_and_its_late_file_is_swept(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)
    assert put(job["uploadUrl"], b"late").status_code == 200
    look(api)
    assert state_of(api, customer, job["jobId"]) == "cancelled"
    api.sql(
        "UPDATE jobs SET completed_at = now() - interval '11 seconds' WHERE id = :id",
        id=uuid.UUID(job["jobId"]),
    )
    sweep(api)
    assert objects_of(api, job) == []


def test_a_file_that_came_in_time_may_be_noticed_a_little_later(
    api: RunningApi, customer: Customer
) -> None:
    jobs = [create(api, customer) for _ in range(2)]
    for job, seconds in zip(jobs, (20, 31), strict=True):
        api.sql(
            f"UPDATE jobs SET upload_expires_at = now() - interval '{seconds} seconds'"  # noqa: S608
            " WHERE id = :id",
            id=uuid.UUID(job["jobId"]),
        )
    sweep(api)
    states = [state_of(api, customer, job["jobId"]) for job in jobs]
    assert states == ["awaiting_upload", "expired"]


def test_a_file_that_lies_in_the_bucket_keeps_its_job_from_expiring(
    api: RunningApi, customer: Customer
) -> None:
    """Nobody looked for it: the service was away, or is still copying it."""
    arrived, empty, ancient = (create(api, customer) for _ in range(3))
    for job in (arrived, ancient):
        put(job["uploadUrl"], b"footage")
    for job, hours in ((arrived, 1), (empty, 1), (ancient, 7)):
        api.sql(
            f"UPDATE jobs SET upload_expires_at = now() - interval '{hours} hours'"  # noqa: S608
            " WHERE id = :id",
            id=uuid.UUID(job["jobId"]),
        )
    with contextlib.suppress(ObjectStoreUnavailableError):
        sweep(api, s3_endpoint_url="http://127.0.0.1:9")
    assert state_of(api, customer, empty["jobId"]) == "awaiting_upload"
    sweep(api)
    states = [state_of(api, customer, job["jobId"]) for job in (arrived, empty, ancient)]
    assert states == ["awaiting_upload", "expired", "expired"]
    make_due(api)
    look(api)
    assert state_of(api, customer, arrived["jobId"]) == "queued"


@pytest.mark.parametrize(
    ("age_seconds", "pause_seconds"),
    [(1, 1), (60, 1), (300, 5), (3600, LONGEST_PAUSE_SECONDS)],
    ids=["at once", "a minute", "five minutes", "an hour"],
)
def test_the_longer_a_job_waits_the_rarer_it_is_looked_for(
    api: RunningApi, customer: Customer, age_seconds: int, pause_seconds: int
) -> None:
    job = create(api, customer)
    api.sql(
        f"UPDATE jobs SET created_at = now() - interval '{age_seconds} seconds'"  # noqa: S608
        " WHERE id = :id",
        id=uuid.UUID(job["jobId"]),
    )

    async def claim(connection: Any) -> float:
        found = await lease_awaited_uploads(connection, limit=100)
        assert not await lease_awaited_uploads(connection, limit=100)
        [mine] = [item for item in found if str(item.job_id) == job["jobId"]]
        now = (await connection.exec_driver_sql("SELECT now()")).scalar_one()
        return float((mine.look_after - now).total_seconds())

    assert api.transact(claim) == pytest.approx(pause_seconds, abs=0.2)


@pytest.mark.parametrize("mark", ["arriving_until", "writer_expires_at"])
def test_a_file_that_comes_in_through_the_service_is_not_looked_for(
    api: RunningApi, customer: Customer, mark: str
) -> None:
    job = create(api, customer)
    token = ", writer_token = gen_random_uuid()" if mark == "writer_expires_at" else ""
    api.sql(
        f"UPDATE uploads SET {mark} = now() + interval '5 seconds'{token}"  # noqa: S608
        " WHERE job_id = :id",
        id=uuid.UUID(job["jobId"]),
    )
    found = api.transact(lambda connection: lease_awaited_uploads(connection, limit=100))
    assert job["jobId"] not in {str(item.job_id) for item in found}


def test_a_request_that_needs_a_store_that_is_away_gets_503(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=7)
    address = urlsplit(job["resumableUploadUrl"])
    away = api.settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:9"})
    with RunningApi(away) as other:
        answer = patch(f"{other.root}{address.path}?{address.query}", 0, b"footage")
    body = answer.json()
    assert (answer.status_code, body["code"]) == (503, "SERVICE_UNAVAILABLE"), body
    assert answer.headers["retry-after"] == "30"
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"


def test_a_store_that_is_away_is_asked_again(
    api: RunningApi, customer: Customer, caplog: pytest.LogCaptureFixture
) -> None:
    job = create(api, customer)
    put(job["uploadUrl"], b"footage")

    async def run() -> None:
        context = build_context(api.settings)
        away = S3Store(replace(bucket(api).place, endpoint_url="http://127.0.0.1:9"))
        await DirectUploadWatcher(context, away).look()
        await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()
    assert "uploads are not looked for" in caplog.text
    assert direct_key(uuid.UUID(job["jobId"]), "media") in str(objects_of(api, job))
    make_due(api)
    look(api)
    assert state_of(api, customer, job["jobId"]) == "queued"
