"""RESULTS_UNAVAILABLE: every reason, with the fields that go with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from storage import jobs
from storage.types import SkipReason, StageName, StageStatus
from tests.contract.calling import Caller, refusal
from tests.contract.runner_side import AUDIO_ONLY, SILENT, TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import covers, covers_each, rows_of

Reached = tuple[str, str, dict[str, Any]]
"""A job, a path below it, and what the refusal says beside the reason."""


def says(stage: str, state: str, status: str = "skipped", **more: Any) -> dict[str, Any]:
    return {"stage": stage, "state": state, "stageStatus": status} | more


def processing_mode(caller: Caller, _: RunnerSide) -> Reached:
    job_id = caller.create(processingMode="vision")["jobId"]
    return job_id, "transcript", says("transcript", "awaiting_upload")


def audio_only_input(caller: Caller, runner: RunnerSide) -> Reached:
    return runner.complete(caller, AUDIO_ONLY), "scenes", says("vision", "completed")


def no_audio(caller: Caller, runner: RunnerSide) -> Reached:
    return runner.complete(caller, SILENT), "transcript", says("transcript", "completed")


def stage_skipped(caller: Caller, runner: RunnerSide) -> Reached:
    """No stage of ours is skipped without a better reason; storage could say so."""
    job_id = runner.queued(caller)
    caller.api.transact(
        lambda c: jobs.set_stage(
            c,
            uuid.UUID(job_id),
            StageName.VISION,
            StageStatus.SKIPPED,
            skip_reason=SkipReason.STAGE_SKIPPED,
        )
    )
    return job_id, "scenes", says("vision", "queued")


def stage_failed(caller: Caller, runner: RunnerSide) -> Reached:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.fail(lease, "vision", "CONTENT_BLOCKED")
    more = says("vision", "processing", "failed", errorCode="CONTENT_BLOCKED")
    return job_id, "scenes", more


def track_failed(caller: Caller, runner: RunnerSide) -> Reached:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease, TWO_TRACKS)
    runner.publish_transcripts(lease, tracks=2, broken=1)
    more = {"trackIndex": 1, "errorCode": "TRANSCRIPT_FAILED"}
    return job_id, "transcript?track=1", says("transcript", "processing", "completed", **more)


def job_cancelled(caller: Caller, _: RunnerSide) -> Reached:
    job_id = caller.create()["jobId"]
    caller.post(f"/jobs/{job_id}/cancel")
    return job_id, "scenes", says("vision", "cancelled", errorCode="CANCELLED")


def job_expired(caller: Caller, runner: RunnerSide) -> Reached:
    job_id = caller.create()["jobId"]
    runner.expire(job_id)
    return job_id, "transcript", says("transcript", "expired", errorCode="EXPIRED")


def job_failed(caller: Caller, runner: RunnerSide) -> Reached:
    job_id = runner.queued(caller)
    runner.fail(runner.lease(job_id), "ingest", "VALIDATION_FAILED")
    return job_id, "scenes", says("vision", "failed")


WAYS: dict[str, Callable[[Caller, RunnerSide], Reached]] = {
    way.__name__: way
    for way in (
        processing_mode,
        audio_only_input,
        no_audio,
        stage_skipped,
        stage_failed,
        track_failed,
        job_cancelled,
        job_expired,
        job_failed,
    )
}


@covers("error-codes/RESULTS_UNAVAILABLE")
@covers_each("reasons", {name: (name, WAYS[name]) for name in WAYS}, "reason")
def test_results_are_unavailable_because_of(
    caller: Caller,
    runner: RunnerSide,
    reason: tuple[str, Callable[[Caller, RunnerSide], Reached]],
) -> None:
    name, way = reason
    job_id, path, more = way(caller, runner)
    answer = caller.get(f"/jobs/{job_id}/{path}")
    refusal(answer, 404, "RESULTS_UNAVAILABLE", reason=name, **more)


def test_the_interface_document_knows_these_reasons_and_no_others(caller: Caller) -> None:
    schemas = caller.api.discover("/openapi.json").json()["components"]["schemas"]
    assert sorted(_reasons(schemas["ResultsUnavailableError"])) == sorted(rows_of("reasons"))


def _reasons(schema: Any) -> list[str]:
    """The values of ``reason`` wherever it stands in a schema."""
    if isinstance(schema, list):
        return [value for part in schema for value in _reasons(part)]
    if not isinstance(schema, dict):
        return []
    if "reason" in schema.get("properties", {}):
        return list(schema["properties"]["reason"]["enum"])
    return [value for part in schema.values() for value in _reasons(part)]
