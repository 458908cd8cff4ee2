"""The month's volume threshold: jobs that cross it, alone and side by side; the charge itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipelines.types import MediaInfo, PipelineWarning, WarningCode
from serve_app.work.publishing import Lease
from storage import ledger
from tests.contract.calling import Caller, shown
from tests.contract.runner_side import AUDIO_ONLY, FOOTAGE, SILENT, TWO_TRACKS, RunnerSide
from tests.tables import every

HOUR = 3600
HOURS_100 = replace(FOOTAGE, duration_seconds=float(100 * HOUR))
LONG = replace(FOOTAGE, duration_seconds=float(2 * HOUR))
RICH = 10**6


def estimate(caller: Caller, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = shown(caller.api.discover("/pricing/estimate", **query))
    return found


def use(runner: RunnerSide, caller: Caller, hours: int) -> None:
    """Earlier footage of the month, quoted and charged."""
    media = replace(FOOTAGE, duration_seconds=float(hours * HOUR))
    runner.complete(caller, media)


ESTIMATED = [
    pytest.param(FOOTAGE, "all", 0, id="a minute"),
    pytest.param(replace(FOOTAGE, duration_seconds=3.2), "all", 0, id="the minimum"),
    pytest.param(replace(FOOTAGE, duration_seconds=60.0004), "all", 0, id="a hair over a minute"),
    pytest.param(LONG, "all", 99, id="across the threshold"),
    pytest.param(LONG, "vision", 99, id="vision across the threshold"),
    pytest.param(LONG, "transcript", 100, id="transcript above the threshold"),
    pytest.param(replace(TWO_TRACKS, duration_seconds=7000.5), "all", 99, id="two tracks across"),
    pytest.param(AUDIO_ONLY, "transcript", 0, id="sound only"),
    pytest.param(SILENT, "vision", 0, id="picture only"),
]


@every(("media", "mode", "used_hours"), ESTIMATED)
def test_the_estimate_is_exactly_what_the_completed_job_is_charged(
    runner: RunnerSide, media: MediaInfo, mode: str, used_hours: int
) -> None:
    caller = runner.api.caller(RICH)
    if used_hours:
        use(runner, caller, used_hours)
    prior = shown(caller.get("/quota"))["api"]["monthUsageSeconds"]
    assert prior == used_hours * HOUR
    job = caller.job(runner.complete(caller, media, processingMode=mode))
    expected = estimate(
        caller,
        durationSeconds=job["durationSeconds"],
        mode=mode,
        audioTracks=max(1, len(media.audio)),
        priorUsageSeconds=prior,
    )
    assert job["state"] == "completed"
    assert job["chargedCents"] == expected["cents"]
    read = shown(caller.get("/quota"))["api"]
    assert read["monthUsageSeconds"] == prior + expected["billableSeconds"]
    assert read["tier"] == ("volume" if read["monthUsageSeconds"] >= 100 * HOUR else "standard")


REPEATED, QUIET = (
    PipelineWarning(code, "x", track_index=1)
    for code in (WarningCode.AUDIO_REPEATED, WarningCode.AUDIO_QUIET)
)


def silent(*tracks: int) -> list[PipelineWarning]:
    return [PipelineWarning(WarningCode.AUDIO_SILENT, "x", track_index=each) for each in tracks]


@every(
    ("of_ingest", "of_transcript", "charged"),
    [
        pytest.param((), (), 160, id="all"),
        pytest.param(silent(3), [REPEATED], 80, id="not a silent one, nor a copy"),
        pytest.param(silent(1), [REPEATED], 120, id="one that is both, once"),
        pytest.param([QUIET], (), 160, id="a quiet one too"),
        pytest.param(silent(0, 1, 2, 3), (), 0, id="none of silent ones"),
    ],
)
def test_tracks_without_anything_new_are_not_charged(
    runner: RunnerSide,
    of_ingest: Sequence[PipelineWarning],
    of_transcript: Sequence[PipelineWarning],
    charged: int,
) -> None:
    caller = runner.api.caller(RICH)
    media = replace(AUDIO_ONLY, audio=AUDIO_ONLY.audio * 4, duration_seconds=float(HOUR))
    lease = runner.lease(job_id := runner.queued(caller, processingMode="transcript"))
    runner.ingest(lease, media, of_ingest)
    runner.start(lease, "transcript")
    runner.publish_transcripts(lease, 4, warnings=of_transcript)
    job = caller.job(job_id)
    assert (job["state"], job["chargedCents"]) == ("completed", charged)
    assert shown(caller.get("/quota"))["api"]["balanceCents"] == RICH - charged
    assert runner.api.transact(ledger.find_discrepancies) == []


def test_jobs_that_cross_the_threshold_at_once_cross_it_one_after_the_other(
    runner: RunnerSide,
) -> None:
    """Eight jobs of an hour, quoted at the same moment, five hours below the threshold.

    Whoever comes first is cheaper by nothing: five pay the base rate, three the volume rate.
    """
    caller = runner.api.caller(RICH)
    use(runner, caller, 95)
    job_ids = [runner.queued(caller) for _ in range(8)]
    leases = [runner.lease(job_id) for job_id in job_ids]
    media = replace(FOOTAGE, duration_seconds=float(HOUR))

    def price(lease: Lease) -> None:
        runner.start(lease, "ingest")
        runner.price(lease, media)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(price, leases))
    rows = caller.api.sql(
        "SELECT held_cents, count(*) FROM jobs WHERE account_id = :id AND completed_at IS NULL"
        " GROUP BY 1 ORDER BY 1",
        id=caller.customer.account_id,
    )
    assert rows == [(90 + 30, 3), (120 + 40, 5)]


def test_last_months_media_do_not_count(runner: RunnerSide) -> None:
    caller = runner.api.caller(RICH)
    runner.complete(caller, HOURS_100)
    assert shown(caller.get("/quota"))["api"]["tier"] == "volume"
    month_start = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    caller.api.sql(
        "UPDATE jobs SET quoted_at = CAST(:start AS timestamptz) - interval '1 microsecond'"
        " WHERE account_id = :id",
        id=caller.customer.account_id,
        start=month_start,
    )
    read = shown(caller.get("/quota"))["api"]
    assert (read["monthUsageSeconds"], read["tier"]) == (0, "standard")
    job = caller.job(runner.complete(caller, replace(FOOTAGE, duration_seconds=float(HOUR))))
    assert job["chargedCents"] == 160


def test_a_failed_stage_is_not_charged_and_its_hold_comes_back(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.publish_scenes(lease)
    runner.fail(lease, "transcript", "TRANSCRIPT_FAILED")
    assert caller.job(job_id)["chargedCents"] == 2
    read = shown(caller.get("/quota"))["api"]
    assert (read["balanceCents"], read["heldCents"]) == (998, 0)


def test_a_runner_that_did_not_hear_of_its_commit_publishes_again_and_is_charged_once(
    caller: Caller, runner: RunnerSide
) -> None:
    """The connection broke while the commit's answer was on its way; the stage runs once more."""
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.publish_scenes(lease)
    runner.publish_scenes(lease)
    runner.fail(lease, "vision", "VISION_FAILED")
    job = caller.job(job_id)
    assert job["stages"]["vision"]["status"] == "completed"
    assert (job["state"], job["chargedCents"]) == ("processing", 2)
    runner.publish_transcripts(lease)
    assert caller.job(job_id)["state"] == "completed"


def test_ingest_that_was_published_cannot_fail_any_more(caller: Caller, runner: RunnerSide) -> None:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.fail(lease, "ingest", "FETCH_FAILED")
    assert caller.job(job_id)["state"] == "processing"


def test_a_job_whose_length_is_not_covered_fails_and_costs_nothing(
    runner: RunnerSide,
) -> None:
    caller = runner.api.caller(100)
    job_id = runner.queued(caller)
    runner.fail_unpayable(runner.lease(job_id))
    job = caller.job(job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "INSUFFICIENT_CREDITS")
    assert job["chargedCents"] == 0
    read = shown(caller.get("/quota"))["api"]
    assert (read["availableCents"], read["monthUsageSeconds"]) == (100, 0)
