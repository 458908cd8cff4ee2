"""Query parameters, one by one; the order and the links of lists."""

from __future__ import annotations

import re
import uuid
from typing import Any

import httpx
import pytest

from storage import jobs as stored_jobs
from storage.database import Connection
from storage.job_records import JobSource, NewJob
from storage.types import JobState, ProcessingMode
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.runner_side import TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import covers
from tests.tables import every

SOURCE = JobSource(kind="upload", base_url="http://x")


def insert_jobs(caller: Caller, count: int) -> list[str]:
    """Waiting jobs, oldest first; past the limit on creations a minute."""
    account = caller.customer.account_id
    new = [
        NewJob(account, JobState.QUEUED, ProcessingMode.ALL, "a.mp4", SOURCE) for _ in range(count)
    ]

    async def insert(connection: Connection) -> None:
        for job in new:
            await stored_jobs.insert_job(connection, job)

    caller.api.transact(insert)
    for position, job in enumerate(new):
        caller.api.sql(
            "UPDATE jobs SET created_at = now() + make_interval(secs => :n) WHERE id = :id",
            n=position - count,
            id=job.id,
        )
    return [str(job.id) for job in new]


def listed(caller: Caller, **query: Any) -> list[str]:
    return [job["jobId"] for job in caller.get("/jobs", **query).json()["data"]]


@covers("list-jobs-query/limit", "limits/limit-on-job-list", "notes/newest-first")
def test_limit_is_1_to_100_and_20_by_default_newest_first(caller: Caller) -> None:
    newest_first = insert_jobs(caller, 101)[::-1]
    assert listed(caller) == newest_first[:20]
    assert listed(caller, limit=1) == newest_first[:1]
    assert listed(caller, limit=100) == newest_first[:100]
    for bad in (0, 101, -1, "many", "1.5", ""):
        refusal(caller.get("/jobs", limit=bad), 400, "INVALID_REQUEST", param="limit")


@covers("list-jobs-query/cursor")
def test_a_cursor_goes_on_where_the_page_ended_and_a_bad_one_is_refused(caller: Caller) -> None:
    newest_first = insert_jobs(caller, 5)[::-1]
    found, query = [], {"limit": 2}
    while True:
        page = caller.get("/jobs", **query).json()
        found += [job["jobId"] for job in page["data"]]
        if not page["hasMore"]:
            break
        query["cursor"] = page["nextCursor"]
    assert found == newest_first
    foreign = Caller(caller.api, caller.api.customer())
    for who, bad in ((caller, "x"), (caller, ""), (foreign, query["cursor"])):
        refusal(who.get("/jobs", cursor=bad), 400, "INVALID_REQUEST", param="cursor")


@covers("list-jobs-query/state")
def test_state_takes_every_job_state_and_uploading(caller: Caller) -> None:
    uploading = caller.create()["jobId"]
    [queued] = insert_jobs(caller, 1)
    expected = {"awaiting_upload": [uploading], "uploading": [uploading], "queued": [queued]}
    for state in (*JobState, "uploading"):
        assert listed(caller, state=state) == expected.get(state, [])
    for bad in ("done", "QUEUED", ""):
        refusal(caller.get("/jobs", state=bad), 400, "INVALID_REQUEST", param="state")


def test_jobs_are_found_by_a_part_of_their_name_and_by_their_day(caller: Caller) -> None:
    first, second, third = insert_jobs(caller, 3)
    for job_id, name, day in ((first, "Council 1.mp4", 1), (second, "council_2.mp4", 2)):
        caller.api.sql(
            "UPDATE jobs SET file_name = :name, created_at = CAST(:at AS timestamptz)"
            " WHERE id = :id", name=name, at=f"2024-05-0{day}T12:00Z", id=job_id,
        )  # fmt: skip
    assert listed(caller, name="COUNCIL") == [second, first]
    assert listed(caller, name="council_") == [second]
    assert listed(caller, name="%") == []
    assert listed(caller, **{"from": "2024-05-02"}) == [third, second]
    assert listed(caller, to="2024-05-02T14:00:00+02:00", name="c") == [first]
    for field, bad in (("name", ""), ("name", "a" * 256), ("from", "May"), ("to", "2024-05-01")):
        query = {"from": "2024-05-01", field: bad}
        refusal(caller.get("/jobs", **query), 400, "INVALID_REQUEST", param=field)


def test_a_renamed_job_keeps_its_suffix_and_is_found_by_its_new_name(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.complete(caller)
    path, old = f"/jobs/{job_id}", caller.job(job_id)["fileName"]
    renamed = shown(caller.ask("PATCH", path, json={"fileName": "Council", "metadata": {"a": 1}}))
    assert (renamed["fileName"], renamed["metadata"]) == ("Council.mp4", {"a": 1})
    assert shown(caller.ask("PATCH", path, json={}))["fileName"] == "Council.mp4"
    for name, hits in (("council", 1), (old.removesuffix(".mp4"), 0)):
        assert len(caller.get("/search", q=name, kinds="file").json()["data"]) == hits
    long = shown(caller.ask("PATCH", path, json={"fileName": "ä" * 255}))
    assert long["fileName"] == "ä" * 251 + ".mp4"
    for body, field in (({"fileName": 5}, "fileName"), ({"metadata": {"": 1}}, "metadata.")):
        refusal(caller.ask("PATCH", path, json=body), 400, "INVALID_REQUEST", param=field)
    caller.api.sql("UPDATE jobs SET legal_hold_at = now() WHERE id = :id", id=job_id)
    refusal(caller.ask("PATCH", path, json={"fileName": "a.mp4"}), 409, "LEGAL_HOLD")
    caller.api.sql("UPDATE jobs SET legal_hold_at = NULL WHERE id = :id", id=job_id)
    caller.post(f"{path}/erase")
    refusal(caller.ask("PATCH", path, json={"fileName": "a.mp4"}), 404, "NOT_FOUND")


@covers("list-jobs-query/status")
def test_the_legacy_status_filters_too_but_not_with_state(caller: Caller) -> None:
    uploading = caller.create()["jobId"]
    [queued] = insert_jobs(caller, 1)
    assert listed(caller, status="AWAITING_UPLOAD") == [uploading]
    assert listed(caller, status="QUEUED") == [queued]
    assert listed(caller, status="COMPLETED") == []
    both = caller.get("/jobs", status="QUEUED", state="queued")
    refusal(both, 400, "INVALID_REQUEST", param="status")


@covers("notes/next-link")
def test_a_next_link_is_sent_while_more_pages_exist(caller: Caller) -> None:
    insert_jobs(caller, 3)
    first = caller.get("/jobs", limit=2, state="queued")
    link = re.fullmatch(r'<(http[^>]+)>; rel="next"', first.headers["link"])
    assert link
    headers = {"X-API-Key": caller.customer.key}
    second = httpx.get(link[1], headers=headers, trust_env=False)
    assert len(first.json()["data"]) + len(second.json()["data"]) == 3
    assert "link" not in second.headers
    assert second.json()["hasMore"] is False


@pytest.fixture(scope="module")
def single(api: ContractApi, runner: RunnerSide) -> tuple[Caller, str]:
    caller = api.caller()
    return caller, runner.complete(caller)


@pytest.fixture(scope="module")
def several(api: ContractApi, runner: RunnerSide) -> tuple[Caller, str]:
    caller = api.caller()
    return caller, runner.complete(caller, TWO_TRACKS)


@covers("transcript-query/format")
def test_format_is_json_by_default_or_a_file(single: tuple[Caller, str]) -> None:
    caller, job_id = single
    path = f"/jobs/{job_id}/transcript"
    assert shown(caller.get(path)) == shown(caller.get(path, format="json"))
    assert "00:00:01,000 --> 00:00:01,900" in caller.get(path, format="srt").text
    assert caller.get(path, format="vtt").text.startswith("WEBVTT\n")
    assert "track 1" in caller.get(path, format="txt").text
    for bad in ("ttxt", "SRT", ""):
        refusal(caller.get(path, format=bad), 400, "INVALID_REQUEST", param="format")


@covers("transcript-query/track")
@every("form", ["srt", "vtt", "txt"])
def test_files_of_a_multi_track_job_need_a_track(
    single: tuple[Caller, str], several: tuple[Caller, str], form: str
) -> None:
    caller, job_id = several
    path = f"/jobs/{job_id}/transcript"
    refusal(caller.get(path, format=form), 400, "INVALID_REQUEST", param="track")
    assert "track 2" in caller.get(path, format=form, track=1).text
    assert shown(caller.get(path, track=1))["text"] == "track 2"
    for bad in ("x", -1, "1.0"):
        answer = caller.get(path, format=form, track=bad)
        refusal(answer, 400, "INVALID_REQUEST", param="track")
    refusal(caller.get(path, format=form, track=2), 404, "NOT_FOUND", param="track")
    alone, job_id = single
    assert alone.get(f"/jobs/{job_id}/transcript", format=form).status_code == 200


@covers("deliveries-query/jobId", "limits/delivery-log-size")
def test_the_log_holds_the_last_100_deliveries_and_filters_by_job(caller: Caller) -> None:
    ids = insert_jobs(caller, 101)
    for position, job_id in enumerate(ids):
        caller.api.sql(
            "INSERT INTO webhook_events (id, account_id, job_id, event_type, url, body, created_at)"
            " VALUES (:event, :account, :job, 'job.completed', 'https://x.example.com/', '',"
            " now() + make_interval(secs => :n))",
            event=f"{job_id}:job.completed",
            account=caller.customer.account_id,
            job=uuid.UUID(job_id),
            n=position,
        )
    log = shown(caller.get("/webhooks/deliveries"))
    assert [record["jobId"] for record in log] == ids[:0:-1]
    [one] = shown(caller.get("/webhooks/deliveries", jobId=ids[0]))
    assert one["id"] == f"{ids[0]}:job.completed"
    for foreign in (str(uuid.uuid4()), "no-uuid"):
        assert shown(caller.get("/webhooks/deliveries", jobId=foreign)) == []


def estimate(api: ContractApi, **query: Any) -> httpx.Response:
    return api.discover("/pricing/estimate", **{"durationSeconds": 3600} | query)


@covers("estimate-query/durationSeconds", "limits/durationSeconds-for-estimates")
def test_estimates_take_0_to_2678400_seconds(api: ContractApi) -> None:
    for good in (0, 2_678_400, 12.5):
        assert shown(estimate(api, durationSeconds=good))["durationSeconds"] == good
    for bad in (-1, 2_678_401, "long", "nan", ""):
        answer = estimate(api, durationSeconds=bad)
        refusal(answer, 400, "INVALID_REQUEST", param="durationSeconds")
    missing = api.discover("/pricing/estimate")
    refusal(missing, 400, "INVALID_REQUEST", param="durationSeconds")


@covers("estimate-query/tier")
def test_estimates_take_a_tier(api: ContractApi) -> None:
    costs = [shown(estimate(api, **query))["cents"] for query in ({}, {"tier": "standard"})]
    assert costs[0] == costs[1] < shown(estimate(api, tier="raw"))["cents"]
    refusal(estimate(api, tier="gold"), 400, "INVALID_REQUEST", param="tier")


@covers("estimate-query/mode")
def test_estimates_take_a_mode(api: ContractApi) -> None:
    cents = {
        mode: shown(estimate(api, mode=mode))["cents"] for mode in ("all", "transcript", "vision")
    }
    assert cents["all"] == cents["transcript"] + cents["vision"] == 160
    refusal(estimate(api, mode="both"), 400, "INVALID_REQUEST", param="mode")


@covers("estimate-query/audioTracks", "limits/audioTracks-for-estimates")
def test_estimates_take_1_to_16_audio_tracks(api: ContractApi) -> None:
    single = shown(estimate(api, mode="transcript", audioTracks=1))["cents"]
    for tracks in (1, 16):
        data = shown(estimate(api, mode="transcript", audioTracks=tracks))
        assert (data["audioTracks"], data["cents"]) == (tracks, tracks * single)
    for bad in (0, 17, "two", 1.5):
        refusal(estimate(api, audioTracks=bad), 400, "INVALID_REQUEST", param="audioTracks")


@covers("estimate-query/priorUsageSeconds")
def test_estimates_take_what_was_used_this_month(api: ContractApi) -> None:
    first, after = (shown(estimate(api, priorUsageSeconds=used))["cents"] for used in (0, 360_000))
    assert (first, after) == (160, 120)
    for bad in (-1, "much"):
        answer = estimate(api, priorUsageSeconds=bad)
        refusal(answer, 400, "INVALID_REQUEST", param="priorUsageSeconds")
