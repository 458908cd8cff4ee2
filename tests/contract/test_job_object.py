"""The Job object, and the other objects, field by field."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.contract.spec_rows import covers, covers_each, rows_of

METADATA = {"assetId": "a-1", "take": 7, "ratio": 1.5, "final": True, "note": None}
STAGES = {"ingest", "vision", "transcript"}
JOB_ERRORS = set(rows_of("job-error-codes"))


@dataclass(frozen=True, slots=True)
class Jobs:
    """One account's jobs, as getJob shows them."""

    caller: Caller
    completed: dict[str, Any]
    failed: dict[str, Any]
    created: dict[str, Any]


@pytest.fixture(scope="module")
def jobs(api: ContractApi, runner: RunnerSide) -> Jobs:
    caller = api.caller()
    completed = runner.complete(caller, metadata=METADATA)
    failed = runner.queued(caller)
    lease = runner.lease(failed)
    runner.ingest(lease)
    runner.start(lease, "vision")
    runner.fail(lease, "vision", "VISION_FAILED")
    runner.publish_transcripts(lease)
    return Jobs(
        caller,
        shown(caller.get(f"/jobs/{completed}")),
        shown(caller.get(f"/jobs/{failed}")),
        caller.create(),
    )


def check_job_id(jobs: Jobs) -> None:
    for job in (jobs.completed, jobs.failed, jobs.created):
        assert str(uuid.UUID(job["jobId"])) == job["jobId"]


def check_state(jobs: Jobs) -> None:
    shown_states = [job["state"] for job in (jobs.completed, jobs.failed, jobs.created)]
    assert shown_states == ["completed", "failed", "awaiting_upload"]


def check_processing_mode(jobs: Jobs) -> None:
    for mode in ("all", "transcript", "vision"):
        assert jobs.caller.create(processingMode=mode)["processingMode"] == mode
    assert jobs.created["processingMode"] == "all"


def check_stages(jobs: Jobs) -> None:
    for job in (jobs.completed, jobs.failed, jobs.created):
        assert set(job["stages"]) == STAGES
    assert all("error" not in stage for stage in jobs.completed["stages"].values())
    assert jobs.failed["stages"]["vision"]["status"] == "failed"
    assert jobs.failed["stages"]["vision"]["error"]["code"] == "VISION_FAILED"
    assert jobs.failed["stages"]["transcript"]["status"] == "completed"


def check_error(jobs: Jobs) -> None:
    assert jobs.failed["error"]["code"] == "VISION_FAILED"
    assert "error" not in jobs.completed
    assert "error" not in jobs.created


def check_metadata(jobs: Jobs) -> None:
    assert jobs.completed["metadata"] == METADATA
    assert jobs.created["metadata"] == {}


def check_links(jobs: Jobs) -> None:
    links = jobs.completed["links"]
    assert set(links) == {"self", "transcript", "scenes"}
    for link in links.values():
        headers = {"X-API-Key": jobs.caller.customer.key}
        assert httpx.get(link, headers=headers, trust_env=False).status_code == 200
    assert links["self"].endswith(f"/v1/api/jobs/{jobs.completed['jobId']}")


def check_processed_data(jobs: Jobs) -> None:
    assert len(jobs.completed["processedData"]["scenes"]) == 2
    assert len(jobs.completed["processedData"]["transcript"]) == 1
    bare = jobs.caller.job(jobs.completed["jobId"], include="none")
    cancelled = shown(jobs.caller.post(f"/jobs/{jobs.caller.create()['jobId']}/cancel"))
    for job in (bare, cancelled, jobs.created):
        assert "processedData" not in job


@covers_each(
    "job-fields",
    {
        "jobId": check_job_id,
        "state": check_state,
        "processingMode": check_processing_mode,
        "stages": check_stages,
        "error": check_error,
        "metadata": check_metadata,
        "links": check_links,
        "processedData": check_processed_data,
    },
    "check",
)
def test_job_field(jobs: Jobs, check: Callable[[Jobs], None]) -> None:
    check(jobs)


@covers("create-job-fields/uploadUrl", "create-job-fields/uploadHeaders", "notes/upload")
def test_put_to_the_upload_url_with_its_headers_queues_the_job(caller: Caller) -> None:
    job = caller.create()
    assert all(isinstance(value, str) for value in job["uploadHeaders"].values())
    answer = httpx.put(
        job["uploadUrl"], content=b"footage", headers=job["uploadHeaders"], trust_env=False
    )
    assert answer.status_code == 200
    assert caller.job(job["jobId"])["state"] == "queued"


@covers("create-job-fields/resumableUploadUrl")
def test_the_media_may_be_sent_piece_by_piece_over_tus(caller: Caller) -> None:
    job = caller.create(fileSizeBytes=7)
    url, tus = job["resumableUploadUrl"], {"Tus-Resumable": "1.0.0"}
    piece = tus | {"Content-Type": "application/offset+octet-stream"}
    for offset, content in ((0, b"foo"), (3, b"tage")):
        asked = httpx.head(url, headers=tus, trust_env=False)
        assert (asked.status_code, asked.headers["upload-offset"]) == (200, str(offset))
        assert asked.headers["upload-length"] == "7"
        headers = piece | {"Upload-Offset": str(offset)}
        sent = httpx.patch(url, content=content, headers=headers, trust_env=False)
        assert sent.status_code == 204
    assert caller.job(job["jobId"])["state"] == "queued"


@covers("create-job-fields/uploadMethod")
def test_the_upload_method_is_put(caller: Caller) -> None:
    job = caller.create()
    assert job["uploadMethod"] == "PUT"
    answer = httpx.post(job["uploadUrl"], content=b"footage", trust_env=False)
    assert answer.status_code == 405
    assert caller.job(job["jobId"])["state"] == "awaiting_upload"


@covers("create-job-fields/expiresInSeconds", "limits/upload-url-lifetime")
def test_the_upload_url_lives_an_hour(caller: Caller) -> None:
    job = caller.create()
    assert job["expiresInSeconds"] == 3600
    expires = int(re.findall(r"expires=(\d+)", job["uploadUrl"])[0])
    row = "SELECT extract(epoch FROM now())::float8, extract(epoch FROM created_at)::float8"
    now, created = caller.api.sql(f"{row} FROM jobs WHERE id = :id", id=uuid.UUID(job["jobId"]))[0]
    assert abs(expires - created - 3600) <= 1
    assert now < expires
    earlier = job["uploadUrl"].replace(f"expires={expires}", f"expires={int(now) - 1}")
    assert httpx.put(earlier, content=b"footage", trust_env=False).status_code == 401


@covers("create-job-fields/audioUploadUrl-or-audioTrackUploadUrls")
def test_separate_audio_has_upload_urls_of_its_own(caller: Caller) -> None:
    single = caller.create(audioFileName="boom.wav")
    several = caller.create(audioTracks=[{"fileName": "boom.wav"}, {"fileName": "lav.wav"}])
    plain = caller.create()
    assert "audioTrackUploadUrls" not in single
    assert "audioUploadUrl" not in several
    assert not {"audioUploadUrl", "audioTrackUploadUrls"} & set(plain)
    assert [track["trackIndex"] for track in several["audioTrackUploadUrls"]] == [0, 1]
    for job, urls in (
        (single, [single["audioUploadUrl"]]),
        (several, [track["url"] for track in several["audioTrackUploadUrls"]]),
    ):
        for url in (*urls, job["uploadUrl"]):
            assert caller.job(job["jobId"])["state"] == "awaiting_upload"
            assert httpx.put(url, content=b"sound", trust_env=False).status_code == 200
        assert caller.job(job["jobId"])["state"] == "queued"


@covers("create-job-fields/audioUploadHeaders")
def test_separate_audio_has_headers_to_send(caller: Caller) -> None:
    job = caller.create(audioFileName="boom.wav")
    answer = httpx.put(
        job["audioUploadUrl"], content=b"x", headers=job["audioUploadHeaders"], trust_env=False
    )
    assert answer.status_code == 200
    assert "audioUploadHeaders" not in caller.create()


STATUS_STORY = ["pending", "running", "completed"]


@covers("stage-status/pending", "stage-status/running", "stage-status/completed")
def test_a_stage_is_pending_then_running_then_completed(caller: Caller, runner: RunnerSide) -> None:
    def ingest_status() -> str:
        return str(caller.job(job_id)["stages"]["ingest"]["status"])

    job_id = runner.queued(caller)
    story = [ingest_status()]
    lease = runner.lease(job_id)
    runner.start(lease, "ingest")
    story.append(ingest_status())
    runner.ingest(lease)
    story.append(ingest_status())
    assert story == STATUS_STORY


@covers("stage-status/skipped")
def test_a_stage_that_is_not_asked_for_is_skipped(caller: Caller) -> None:
    stages = caller.create(processingMode="vision")["stages"]
    assert stages["transcript"]["status"] == "skipped"
    assert stages["vision"]["status"] == "pending"


@covers("stage-status/failed")
def test_a_stage_that_broke_is_failed(jobs: Jobs) -> None:
    statuses = {name: stage["status"] for name, stage in jobs.failed["stages"].items()}
    assert statuses == {"ingest": "completed", "vision": "failed", "transcript": "completed"}


Reach = Callable[[Caller, RunnerSide], str]


def reach_processing(caller: Caller, runner: RunnerSide) -> str:
    job_id = runner.queued(caller)
    runner.lease(job_id)
    return job_id


def reach_failed(caller: Caller, runner: RunnerSide) -> str:
    job_id = runner.queued(caller)
    runner.fail(runner.lease(job_id), "ingest", "INGEST_FAILED")
    return job_id


def reach_cancelled(caller: Caller, runner: RunnerSide) -> str:
    job_id = str(caller.create()["jobId"])
    caller.post(f"/jobs/{job_id}/cancel")
    return job_id


def reach_expired(caller: Caller, runner: RunnerSide) -> str:
    job_id = str(caller.create()["jobId"])
    runner.expire(job_id)
    return job_id


REACHED: dict[str, tuple[str, Reach]] = {
    "awaiting_upload": ("awaiting_upload", lambda caller, _: str(caller.create()["jobId"])),
    "queued": ("queued", lambda caller, runner: runner.queued(caller)),
    "processing": ("processing", reach_processing),
    "completed": ("completed", lambda caller, runner: runner.complete(caller)),
    "failed": ("failed", reach_failed),
    "cancelled": ("cancelled", reach_cancelled),
    "expired": ("expired", reach_expired),
    "uploading": ("awaiting_upload", lambda caller, _: str(caller.create()["jobId"])),
}


@covers_each("job-states", {name: (name, *REACHED[name]) for name in REACHED}, "state")
def test_job_state_is_shown_and_filtered_by(
    api: ContractApi, runner: RunnerSide, state: tuple[str, str, Reach]
) -> None:
    caller, (name, expected, reach) = api.caller(), state
    other = reach_cancelled(caller, runner) if name != "cancelled" else runner.queued(caller)
    job_id = reach(caller, runner)
    assert caller.job(job_id)["state"] == expected
    listed = [job["jobId"] for job in caller.get("/jobs", state=name).json()["data"]]
    assert listed == [job_id] != [other]
