"""When a job will be done, told from its stages after a tenth of its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from serve_app.jobs.answers import gain_alone, seconds_left, timings_of
from storage import jobs, queue
from storage.job_records import StageRecord
from storage.types import ANALYSES, Priority, SkipReason, StageName, StageStatus
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every

Stages = dict[StageName, StageRecord]


def stage(status: StageStatus, progress: float, seconds: float) -> StageRecord:
    reason = SkipReason.NO_AUDIO if status is StageStatus.SKIPPED else None
    return StageRecord(status, progress, reason, None, None, {}, seconds)


def analysed(
    vision_work: float, transcript_work: float, *, cpus: int, transcribers: int
) -> Iterator[tuple[float, Stages]]:
    """Every second of two analyses that share the processors, as stored: (time, stages).

    Work is processor seconds. Pictures can use all processors, transcribers one each.
    """
    left = {StageName.VISION: vision_work, StageName.TRANSCRIPT: transcript_work}
    whole = dict(left)
    spent = dict.fromkeys(left, 0.0)
    wants = {StageName.VISION: float(cpus), StageName.TRANSCRIPT: float(transcribers)}
    now = 0.0
    while any(work > 0 for work in left.values()):
        yield now, as_stored(left, whole, spent, cpus, transcribers)
        running = [name for name in left if left[name] > 0]
        share = min(1.0, cpus / sum(wants[name] for name in running))
        for name in running:
            left[name] = max(0.0, left[name] - share * min(wants[name], cpus))
            spent[name] += 1.0
        now += 1.0
    yield now, as_stored(left, whole, spent, cpus, transcribers)


def as_stored(
    left: dict[StageName, float],
    whole: dict[StageName, float],
    spent: dict[StageName, float],
    cpus: int,
    transcribers: int,
) -> Stages:
    ingest = stage(StageStatus.COMPLETED, 1.0, 3.0)
    stages = {
        StageName.INGEST: replace(ingest, timings=timings_of(gain_alone(cpus, transcribers), {}))
    }
    for name, work in left.items():
        status = StageStatus.RUNNING if work > 0 else StageStatus.COMPLETED
        progress = 1.0 if whole[name] == 0 else 1 - work / whole[name]
        stages[name] = stage(status, progress, spent[name])
    return stages


@every(
    ("vision", "transcript", "cpus", "transcribers"),
    [
        pytest.param(60, 240, 2, 2, id="two cores, the sound takes longer"),
        pytest.param(400, 200, 2, 2, id="two cores, the pictures take longer"),
        pytest.param(300, 300, 2, 2, id="two cores, alike"),
        pytest.param(900, 240, 16, 2, id="many cores, few transcribers"),
        pytest.param(240, 240, 1, 1, id="one core"),
        pytest.param(0, 240, 2, 2, id="only a transcript"),
    ],
)
def test_after_a_tenth_it_is_right_within_a_quarter(
    vision: float, transcript: float, cpus: int, transcribers: int
) -> None:
    moments = list(analysed(vision, transcript, cpus=cpus, transcribers=transcribers))
    end = moments[-1][0]
    for now, stages in moments:
        left = end - now
        if now >= end / 10 and left >= 2:
            told = seconds_left(stages)
            assert told is not None
            assert told == pytest.approx(left, rel=0.25, abs=1.0), f"at {now} of {end} s"


@every(
    ("ingest", "vision", "transcript"),
    [
        pytest.param(
            stage(StageStatus.RUNNING, 0.5, 5.0),
            stage(StageStatus.PENDING, 0.0, 0.0),
            stage(StageStatus.PENDING, 0.0, 0.0),
            id="the media is still coming in",
        ),
        pytest.param(
            stage(StageStatus.COMPLETED, 1.0, 5.0),
            stage(StageStatus.RUNNING, 0.6, 9.0),
            stage(StageStatus.RUNNING, 0.01, 9.0),
            id="one analysis has only begun",
        ),
    ],
)
def test_where_too_little_is_known_nothing_is_told(
    ingest: StageRecord, vision: StageRecord, transcript: StageRecord
) -> None:
    stages = {
        StageName.INGEST: ingest,
        StageName.VISION: vision,
        StageName.TRANSCRIPT: transcript,
    }
    assert seconds_left(stages) is None


@every(("progress", "least", "most"), [(0.05, 400.0, 500.0), (0.1, 550.0, 720.0)], ids=str)
def test_a_busy_machine_is_believed_soon(progress: float, least: float, most: float) -> None:
    """A stage of 100 s that takes 800."""
    told = seconds_left(only_vision(progress, 2 + 800 * progress, {"vision_expected": 100.0}))
    assert told is not None
    assert least < told < most


def only_vision(progress: float, seconds: float, timings: dict[str, float] | None = None) -> Stages:
    """A video without sound."""
    return {
        StageName.INGEST: replace(stage(StageStatus.COMPLETED, 1.0, 1.0), timings=timings or {}),
        StageName.VISION: stage(StageStatus.RUNNING, progress, seconds),
        StageName.TRANSCRIPT: stage(StageStatus.SKIPPED, 0.0, 0.0),
    }


def test_a_skipped_analysis_is_not_waited_for_nor_the_start_of_workers_counted_as_pace() -> None:
    assert seconds_left(only_vision(0.25, 12.0)) == pytest.approx(30.0)


EXPECTED = timings_of(2.0, {StageName.VISION: 30.0})


def test_what_was_expected_is_told_while_nothing_has_moved() -> None:
    assert seconds_left(only_vision(0.0, 0.0, EXPECTED)) == pytest.approx(30.0)
    # Four seconds went by until a worker was there: by its pace it would take two more minutes.
    told = seconds_left(only_vision(0.02, 4.5, EXPECTED))
    assert told == pytest.approx(30.0, rel=0.1)


@every("seconds", [15.0, 60.0], ids=["twice as fast", "half as fast"])
def test_where_it_is_not_as_expected_its_own_pace_counts_ever_more(seconds: float) -> None:
    errors = [
        abs((seconds_left(only_vision(done, 2 + done * seconds, EXPECTED)) or 0) / left - 1)
        for done in (0.05, 0.15, 0.3, 0.6, 0.9)
        if (left := seconds * (1 - done))
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.25
    assert errors[-1] < 0.05


def test_of_two_analyses_the_expected_end_counts_what_they_share() -> None:
    stages = only_vision(0.0, 0.0, timings_of(2.0, dict.fromkeys(ANALYSES, 60.0)))
    stages[StageName.TRANSCRIPT] = stage(StageStatus.RUNNING, 0.0, 0.0)
    assert seconds_left(stages) == pytest.approx(120.0)
    stages[StageName.VISION] = stage(StageStatus.COMPLETED, 1.0, 0.0)
    assert seconds_left(stages) == pytest.approx(60.0)


def test_of_what_nobody_can_tell_the_end_is_told_once_it_moves() -> None:
    stages = only_vision(0.0, 0.0, EXPECTED)
    stages[StageName.TRANSCRIPT] = stage(StageStatus.RUNNING, 0.0, 1.0)
    assert seconds_left(stages) is None


LEASE = timedelta(minutes=5)
URL = "https://media.example.com/a.mp4"
BODIES: dict[str, dict[str, Any]] = {
    "/jobs": {"fileName": "a.mp4"},
    "/jobs/from-url": {"url": URL},
    "/jobs/batch": {"mode": "independent", "clips": [{"sourceUrl": URL}, {"sourceUrl": URL}]},
}


def created(api: RunningApi, customer: Customer, path: str, **more: Any) -> list[dict[str, Any]]:
    answer = api.client.post(path, json=BODIES[path] | more, headers=customer.headers)
    assert answer.status_code == 201, answer.text
    data = answer.json()["data"]
    return data["jobs"] if path == "/jobs/batch" else [data]


def shown(api: RunningApi, customer: Customer, job_id: str) -> dict[str, Any]:
    answer = api.client.get(f"/jobs/{job_id}", headers=customer.headers)
    data: dict[str, Any] = answer.json()["data"]
    return data


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "normal"), ({"priority": "low"}, "low"), ({"priority": "high"}, "high")],
    ids=["not given", "low", "high"],
)
def test_every_creation_takes_a_priority_and_the_job_shows_it(
    api: RunningApi, customer: Customer, path: str, given: dict[str, Any], kept: str
) -> None:
    for job in created(api, customer, path, **given):
        assert job["priority"] == kept
        assert shown(api, customer, job["jobId"])["priority"] == kept
    [*listed] = api.client.get("/jobs", headers=customer.headers).json()["data"]
    assert {each["priority"] for each in listed} == {kept}


@every("path", BODIES)
@every("priority", ["urgent", "", 5, None], ids=repr)
def test_a_priority_that_there_is_none_of_is_refused(
    api: RunningApi, customer: Customer, path: str, priority: Any
) -> None:
    body = BODIES[path] | {"priority": priority}
    answer = api.client.post(path, json=body, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, "priority")


@pytest.mark.parametrize("path", BODIES)
def test_a_priority_that_the_account_may_not_use_makes_no_job(
    api: RunningApi, customer: Customer, path: str
) -> None:
    own = customer.account_id
    api.transact(lambda c: queue.set_rules(c, own, highest_priority=Priority.NORMAL))
    body = BODIES[path] | {"priority": "high"}
    answer = api.client.post(path, json=body, headers=customer.headers)
    refused = answer.json()
    assert (answer.status_code, refused["code"]) == (400, "INVALID_REQUEST")
    assert refused["param"] == "priority"
    assert api.client.get("/jobs", headers=customer.headers).json()["data"] == []
    assert created(api, customer, path, priority="normal")


def test_a_waiting_job_shows_its_place_and_when_its_turn_may_come(
    api: RunningApi, customer: Customer
) -> None:
    while api.transact(lambda c: jobs.lease_next(c, lease=LEASE)):
        pass
    [running] = created(api, customer, "/jobs/from-url")
    api.transact(lambda c: jobs.lease_next(c, lease=LEASE))
    backlog = [created(api, customer, "/jobs/from-url")[0] for _ in range(3)]
    places = [shown(api, customer, job["jobId"]) for job in backlog]
    assert [each["queuePosition"] for each in places] == [1, 2, 3]
    # Both slots are taken, and no job has been completed yet.
    assert {each["estimatedStartSeconds"] for each in places} <= {None, 0.0}
    [urgent] = created(api, api.customer(), "/jobs/from-url", priority="high")
    assert urgent["priority"] == "high"
    assert shown(api, customer, backlog[0]["jobId"])["queuePosition"] == 2
    [upload] = created(api, customer, "/jobs")
    for job_id in (running["jobId"], upload["jobId"]):
        assert not shown(api, customer, job_id).keys() & {"queuePosition", "estimatedStartSeconds"}
