"""The objects other than the Job, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.runner_side import TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import covers, rows_of


@covers("objects/batch", "objects/batch-item")
def test_a_batch_is_its_jobs_with_their_positions(caller: Caller) -> None:
    urls = [f"https://media.example.com/{name}.mp4" for name in "abc"]
    body = {"mode": "independent", "clips": [{"sourceUrl": url} for url in urls]}
    batch = shown(caller.post("/jobs/batch", body))
    assert set(batch) == {"batchId", "mode", "jobs"}
    assert batch["mode"] == "independent"
    assert [job["index"] for job in batch["jobs"]] == [0, 1, 2]
    for job, name in zip(batch["jobs"], "abc", strict=True):
        assert set(rows_of("job-fields")) - {"error", "processedData"} <= set(job)
        assert job["fileName"] == f"{name}.mp4"


@pytest.fixture(scope="module")
def single(api: ContractApi, runner: RunnerSide) -> tuple[Caller, str]:
    """A completed job with one track."""
    caller = api.caller()
    return caller, runner.complete(caller)


@pytest.fixture(scope="module")
def two_tracks(api: ContractApi, runner: RunnerSide) -> tuple[Caller, str]:
    """A job with two tracks, of which the second could not be transcribed."""
    caller = api.caller()
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease, TWO_TRACKS)
    runner.publish_scenes(lease)
    runner.publish_transcripts(lease, 2, broken=1)
    return caller, job_id


@covers("objects/scene", "objects/scene-list")
def test_scenes(single: tuple[Caller, str]) -> None:
    caller, job_id = single
    data = shown(caller.get(f"/jobs/{job_id}/scenes"))
    assert set(data) == {"jobId", "scenes", "overview"}
    assert data["jobId"] == job_id
    fields = {"index", "startTime", "endTime", "description", "objects", "colorPalette"}
    for index, scene in enumerate(data["scenes"]):
        assert fields | {"shotType", "shotAngle"} <= set(scene)
        assert scene["index"] == index
        assert 0 <= scene["startTime"] < scene["endTime"]


@covers("objects/transcript")
def test_transcript(single: tuple[Caller, str], two_tracks: tuple[Caller, str]) -> None:
    caller, job_id = single
    alone = shown(caller.get(f"/jobs/{job_id}/transcript"))
    fields = {"jobId", "language", "speakers", "turns", "sounds", "text", "segments"}
    fields |= {"revision", "calibrated"}
    assert set(alone) == fields
    assert (alone["jobId"], alone["language"], alone["text"]) == (job_id, "en", "track 1")
    caller, job_id = two_tracks
    both = shown(caller.get(f"/jobs/{job_id}/transcript"))
    one = shown(caller.get(f"/jobs/{job_id}/transcript", track=0))
    assert set(both) == {*alone, "tracks", "trackIndex", "trackName"}
    assert set(one) == {*alone, "trackIndex", "trackName"}
    assert (one["trackIndex"], one["trackName"]) == (0, "Track 1")


@covers("objects/audio-track", "objects/audio-track-list")
def test_audio_tracks(two_tracks: tuple[Caller, str]) -> None:
    caller, job_id = two_tracks
    data = shown(caller.get(f"/jobs/{job_id}/audioTracks"))
    assert set(data) == {"jobId", "tracks"}
    good, bad = data["tracks"]
    fields = {"trackIndex", "trackName", "status", "transcript", "speakers", "language"}
    assert set(good) == fields
    # A string always: published clients take no null for a language.
    assert set(bad) == fields | {"errorCode"}
    assert (good["language"], bad["language"]) == ("en", "und")
    assert [track["trackIndex"] for track in data["tracks"]] == [0, 1]
    assert (good["status"], bad["status"]) == ("completed", "failed")
    assert bad["errorCode"] == "TRANSCRIPT_FAILED"
    entry = {"StartTime": 1.0, "EndTime": 1.9, "Text": "track 1", "Speaker": "Speaker 1"}
    assert good["transcript"] == [entry]
    assert shown(caller.get(f"/jobs/{job_id}/audioTracks/1")) == bad


@covers("objects/quota")
def test_quota(caller: Caller) -> None:
    caller.create()
    quota = shown(caller.get("/quota"))["api"]
    assert quota == {
        "available": True,
        "balanceCents": 1000,
        "heldCents": 2,
        "availableCents": 998,
        "payAsYouGo": False,
        "monthUsageSeconds": 0,
        "tier": "standard",
        "volumeThresholdSeconds": 360_000,
    }


@covers("objects/delivery")
def test_delivery_record(caller: Caller) -> None:
    job_id = caller.create(callbackUrl="https://customer.example.com/hook?secret=1")["jobId"]
    caller.post(f"/jobs/{job_id}/cancel")
    [record] = shown(caller.get("/webhooks/deliveries"))
    assert record == record | {
        "id": f"{job_id}:job.cancelled",
        "jobId": job_id,
        "eventType": "job.cancelled",
        "urlHost": "customer.example.com",
        "attempts": 0,
        "lastStatus": None,
        "lastError": None,
        "disabled": False,
        "deliveredAt": None,
    }
    assert set(record) - {"status", "createdAt"} == {
        *("id", "jobId", "eventType", "urlHost", "attempts"),
        *("lastStatus", "lastError", "disabled", "deliveredAt"),
    }


@covers("objects/price-estimate")
def test_price_estimate(api: ContractApi) -> None:
    query: dict[str, Any] = {
        "durationSeconds": 3600,
        "tier": "raw",
        "mode": "all",
        "audioTracks": 2,
    }
    estimate = shown(api.discover("/pricing/estimate", **query))
    assert estimate == estimate | query | {
        "cents": 260,
        "usd": 2.6,
        "currency": "usd",
        "billableSeconds": 3600,
        "priorUsageSeconds": 0,
    }


@covers("notes/quota-unavailable")
def test_a_balance_that_cannot_be_read_leaves_the_rest_out(caller: Caller) -> None:
    caller.api.sql("ALTER TABLE accounts RENAME COLUMN balance_cents TO balance_away")
    try:
        assert shown(caller.get("/quota"))["api"] == {"available": False}
    finally:
        caller.api.sql("ALTER TABLE accounts RENAME COLUMN balance_away TO balance_cents")
    assert shown(caller.get("/quota"))["api"]["available"] is True


@covers("notes/no-scene-cuts")
def test_a_video_without_cuts_has_an_empty_list_of_scenes(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.queued(caller, processingMode="vision")
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.publish_scenes(lease, count=0)
    seen = shown(caller.get(f"/jobs/{job_id}/scenes"))
    assert seen["scenes"] == []
    overview = seen["overview"]
    assert overview["description"]
    assert "index" not in overview
    assert "thumbnailKey" not in overview
    assert overview["thumbnailUrl"].partition("?")[0].endswith("/thumbnails/overview.jpg")
    assert shown(caller.get(f"/jobs/{job_id}"))["processedData"]["overview"] == overview
    refusal_of_tracks = caller.get(f"/jobs/{job_id}/audioTracks")
    refusal(refusal_of_tracks, 404, "NOT_FOUND")
