"""Uploads that nobody ends: what is swept away, and that nothing in flight is."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

import pytest

from serve_app.settings import Settings
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, put, state_of
from tests.serve_app.uploads.test_uploads import Sender, eventually, patching
from tests.serve_app.uploads.uploading import files_of, object_of, offset_of, patch
from tests.serve_app.work.test_reaper import sweep


def expire(api: RunningApi, job: dict[str, Any], seconds: int = 60) -> None:
    api.sql(
        "UPDATE jobs SET upload_expires_at = now() - make_interval(secs => :seconds) "
        "WHERE id = :id",
        id=uuid.UUID(job["jobId"]),
        seconds=seconds,
    )


def end_long_ago(api: RunningApi, job: dict[str, Any]) -> None:
    api.sql(
        "UPDATE jobs SET completed_at = now() - interval '2 hours' WHERE id = :id",
        id=uuid.UUID(job["jobId"]),
    )


def leave_a_dead_writers_file(api: RunningApi, job: dict[str, Any]) -> None:
    folder = api.settings.data_dir / "objects" / "jobs" / job["jobId"] / "source"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".tmp-0123456789abcdef").write_bytes(b"half a file")


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_what_an_unfinished_upload_left_goes_with_its_job(
    api: RunningApi, customer: Customer, end: str
) -> None:
    job = create(api, customer)
    patch(job["resumableUploadUrl"], 0, b"half a file")
    leave_a_dead_writers_file(api, job)
    if end == "expired":
        expire(api, job)
    else:
        api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)
    sweep(api)
    assert state_of(api, customer, job["jobId"]) == end
    end_long_ago(api, job)
    sweep(api)
    assert files_of(api, job) == []


@pytest.mark.parametrize("way", ["PUT", "tus"])
def test_a_file_that_is_coming_in_holds_its_job_open_past_the_expiry(
    api: RunningApi, customer: Customer, way: str
) -> None:
    job = create(api, customer, fileSizeBytes=10)
    sender = (
        Sender(job["uploadUrl"], 10) if way == "PUT" else patching(job["resumableUploadUrl"], 0, 10)
    )
    with contextlib.closing(sender):
        sender.send(b"12345")
        eventually(lambda: files_of(api, job), "it comes in")
        expire(api, job)
        sweep(api)
        assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
        sender.send(b"67890")
        assert sender.answer().status in {200, 204}
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert api.context.objects.read_bytes(object_of(api, job)) == b"1234567890"


def test_nothing_comes_in_for_ever(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer)
    with contextlib.closing(Sender(job["uploadUrl"], 10)) as sender:
        sender.send(b"12345")
        eventually(lambda: files_of(api, job), "it comes in")
        expire(api, job, seconds=7 * 3600)
        sweep(api)
        assert state_of(api, customer, job["jobId"]) == "expired"
        assert sender.answer().status == 409
    assert files_of(api, job) == []


def lose_the_writer(api: RunningApi, job: dict[str, Any], silent_seconds: int) -> None:
    """As a process leaves it that was killed while it wrote."""
    api.sql(
        "UPDATE uploads SET writer_token = gen_random_uuid(), writer_expires_at = now() - "
        "make_interval(secs => :seconds) WHERE job_id = :id AND slot = 'media'",
        id=uuid.UUID(job["jobId"]),
        seconds=silent_seconds,
    )


def test_an_upload_that_was_complete_when_its_process_died_is_finished_without_its_client(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=7)
    with api.context.objects.append_partial(f"jobs/{job['jobId']}/source/media", 0) as stream:
        stream.write(b"footage")
    lose_the_writer(api, job, silent_seconds=3600)
    sweep(api)
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert api.context.objects.read_bytes(object_of(api, job)) == b"footage"


def test_an_upload_whose_process_died_halfway_waits_for_its_client(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=7)
    patch(job["resumableUploadUrl"], 0, b"foot")
    lose_the_writer(api, job, silent_seconds=3600)
    sweep(api)
    assert offset_of(job["resumableUploadUrl"]) == 4
    assert patch(job["resumableUploadUrl"], 4, b"age").status_code == 204
    assert state_of(api, customer, job["jobId"]) == "queued"


def test_the_next_request_need_not_wait_for_the_sweeper(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=7)
    patch(job["resumableUploadUrl"], 0, b"foot")
    lose_the_writer(api, job, silent_seconds=1)
    assert patch(job["resumableUploadUrl"], 4, b"age").status_code == 204


def test_a_writer_that_stands_still_is_not_taken_for_dead(
    api_settings: Settings, customer: Customer
) -> None:
    """Its lease has lapsed, so another may have its place; but a sweeper does not want it."""
    hasty = api_settings.model_copy(update={"upload_lease_seconds": 2.0})
    with RunningApi(hasty) as api:
        job = create(api, customer, fileSizeBytes=10)
        with contextlib.closing(patching(job["resumableUploadUrl"], 0, 10)) as sender:
            sender.send(b"12345")
            eventually(lambda: offset_of(job["resumableUploadUrl"]) == 5, "it comes in")
            time.sleep(2.5)
            sweep(api)
            sender.send(b"67890")
            assert sender.answer().status == 204
        assert state_of(api, customer, job["jobId"]) == "queued"


def test_a_put_whose_process_died_can_be_sent_again(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer)
    leave_a_dead_writers_file(api, job)
    assert put(job["uploadUrl"], b"whole").status_code == 200
    assert api.context.objects.read_bytes(object_of(api, job)) == b"whole"
