"""How jobs and stages move: the table of transitions, the rules of stages, money and events."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.calling import Caller, refusal, shown
from tests.contract.runner_side import RunnerSide
from tests.contract.spec_rows import covers, covers_each
from tests.tables import every

CALLBACK = "https://customer.example.com/hook"
ENDED = ("completed", "failed", "cancelled", "expired")


def in_state(caller: Caller, runner: RunnerSide, state: str) -> str:
    """A job with a callback, brought to ``state`` as jobs get there."""
    job = caller.create(callbackUrl=CALLBACK)
    job_id = str(job["jobId"])
    if state == "expired":
        runner.expire(job_id)
    if state in {"queued", "processing", "completed", "failed"}:
        runner.upload(job)
    if state in {"processing", "completed", "failed"}:
        lease = runner.lease(job_id)
        runner.ingest(lease)
        if state != "processing":
            runner.publish_scenes(lease)
        if state == "completed":
            runner.publish_transcripts(lease)
        if state == "failed":
            runner.fail(lease, "transcript", "TRANSCRIPT_FAILED")
    if state == "cancelled":
        caller.post(f"/jobs/{job_id}/cancel")
    assert caller.job(job_id)["state"] == state
    return job_id


def events(caller: Caller, job_id: str) -> list[str]:
    records = shown(caller.get("/webhooks/deliveries", jobId=job_id))
    return [record["eventType"] for record in records]


@covers("transitions/by-upload")
def test_a_created_job_awaits_its_upload(caller: Caller) -> None:
    answer = caller.post("/jobs", {"fileName": "clip.mp4"})
    assert answer.status_code == 201
    job = shown(answer)
    assert answer.headers["location"] == job["links"]["self"]
    assert job["state"] == "awaiting_upload"
    assert job["uploadUrl"].startswith(caller.api.root)


@covers("transitions/by-url")
def test_a_job_from_a_url_is_queued(caller: Caller) -> None:
    answer = caller.post("/jobs/from-url", {"url": "https://media.example.com/clip.mp4"})
    assert answer.status_code == 201
    assert shown(answer)["state"] == "queued"
    assert "uploadUrl" not in shown(answer)


CANCEL: dict[str, Callable[[Caller, str], object]] = {
    "POST": lambda caller, job_id: shown(caller.post(f"/jobs/{job_id}/cancel")),
    "DELETE": lambda caller, job_id: shown(caller.ask("DELETE", f"/jobs/{job_id}")),
}


@covers("transitions/cancelled", "notes/cancel-response", "event-kinds/job.cancelled")
@every("verb", list(CANCEL))
@every("state", ["awaiting_upload", "queued", "processing"])
def test_an_unfinished_job_can_be_cancelled(
    caller: Caller, runner: RunnerSide, state: str, verb: str
) -> None:
    job_id = in_state(caller, runner, state)
    before = caller.job(job_id)["stages"]
    job = CANCEL[verb](caller, job_id)
    assert isinstance(job, dict)
    assert job["state"] == "cancelled"
    assert "processedData" not in job
    assert events(caller, job_id) == ["job.cancelled"]
    for name, stage in job["stages"].items():
        if before[name]["status"] == "completed":
            assert stage["status"] == "completed"
        else:
            assert (stage["status"], stage["error"]["code"]) == ("skipped", "CANCELLED")


@covers("transitions/cancelled")
def test_completed_stages_of_a_cancelled_job_stay_charged_and_readable(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    runner.publish_scenes(lease)
    charged = caller.job(job_id)["chargedCents"]
    assert charged > 0
    cancelled = shown(caller.post(f"/jobs/{job_id}/cancel"))
    assert cancelled["chargedCents"] == charged
    assert len(shown(caller.get(f"/jobs/{job_id}/scenes"))["scenes"]) == 2
    quota = shown(caller.get("/quota"))["api"]
    assert (quota["balanceCents"], quota["heldCents"]) == (1000 - charged, 0)


@covers("transitions/not-cancellable", "error-codes/JOB_NOT_CANCELLABLE")
@every("state", ENDED)
def test_a_job_that_has_ended_stays_as_it_is(
    caller: Caller, runner: RunnerSide, state: str
) -> None:
    job_id = in_state(caller, runner, state)
    before = caller.job(job_id)
    for method, path in (("POST", f"/jobs/{job_id}/cancel"), ("DELETE", f"/jobs/{job_id}")):
        answer = caller.ask(method, path)
        refusal(answer, 409, "JOB_NOT_CANCELLABLE", jobId=job_id, state=state)
    assert caller.job(job_id) == before


@covers("transitions/completed", "event-kinds/job.completed")
def test_a_completed_job_writes_its_event(caller: Caller, runner: RunnerSide) -> None:
    job_id = in_state(caller, runner, "completed")
    assert events(caller, job_id) == ["job.completed"]
    assert events(caller, runner.complete(caller)) == []  # no callbackUrl, no event


@covers("transitions/failed", "event-kinds/job.failed")
def test_a_failed_job_says_why_and_writes_its_event(caller: Caller, runner: RunnerSide) -> None:
    job_id = in_state(caller, runner, "failed")
    assert caller.job(job_id)["error"]["code"] == "TRANSCRIPT_FAILED"
    assert events(caller, job_id) == ["job.failed"]
    assert shown(caller.get(f"/jobs/{job_id}/scenes"))["scenes"]


@covers("stage-rules/1")
def test_the_stage_values_seen_are_the_specified_ones(caller: Caller, runner: RunnerSide) -> None:
    seen = set()
    for state in ("awaiting_upload", "queued", "processing", *ENDED):
        job = caller.job(in_state(caller, runner, state))
        seen |= {stage["status"] for stage in job["stages"].values()}
    running = runner.queued(caller)
    runner.start(runner.lease(running), "ingest")
    seen.add(caller.job(running)["stages"]["ingest"]["status"])
    assert seen == {"pending", "running", "completed", "skipped", "failed"}


RESULTS = {"vision": "scenes", "transcript": "transcript"}


@covers("stage-rules/2", "error-codes/RESULTS_NOT_READY")
@every("stage", list(RESULTS))
def test_results_are_not_ready_then_readable_or_never(
    caller: Caller, runner: RunnerSide, stage: str
) -> None:
    job_id = runner.queued(caller)
    path = f"/jobs/{job_id}/{RESULTS[stage]}"

    def expect_not_ready(state: str, status: str) -> None:
        fields = {"state": state, "stage": stage, "stageStatus": status}
        refusal(caller.get(path), 409, "RESULTS_NOT_READY", retry_after="15", **fields)

    expect_not_ready("queued", "pending")
    lease = runner.lease(job_id)
    expect_not_ready("processing", "pending")
    runner.ingest(lease)
    runner.start(lease, stage)
    expect_not_ready("processing", "running")
    if stage == "vision":
        runner.publish_scenes(lease)
    else:
        runner.publish_transcripts(lease)
    assert caller.get(path).status_code == 200


@covers("stage-rules/2")
def test_skipped_and_failed_stages_have_no_results(caller: Caller, runner: RunnerSide) -> None:
    skipped = caller.create(processingMode="vision")["jobId"]
    failed = in_state(caller, runner, "failed")
    for job_id in (skipped, failed):
        answer = caller.get(f"/jobs/{job_id}/transcript")
        assert (answer.status_code, answer.json()["code"]) == (404, "RESULTS_UNAVAILABLE")


@covers("stage-rules/3", "get-job-query/include")
def test_get_job_includes_each_result_once_its_stage_is_completed(
    caller: Caller, runner: RunnerSide
) -> None:
    def included(**query: str) -> set[str]:
        job = shown(caller.get(f"/jobs/{job_id}", **query))
        return set(job.get("processedData", {})) & {"scenes", "transcript"}

    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    assert included() == set()
    runner.ingest(lease)
    runner.publish_scenes(lease)
    assert included() == {"scenes"}
    runner.publish_transcripts(lease)
    assert included() == {"scenes", "transcript"}
    assert included(include="scenes,transcript") == {"scenes", "transcript"}
    assert included(include="transcript") == {"transcript"}
    assert included(include="none") == set()
    for bad in ("words", "scenes,none", ""):
        answer = caller.get(f"/jobs/{job_id}", include=bad)
        refusal(answer, 400, "INVALID_REQUEST", param="include")


@covers("notes/failed-stage-is-free")
def test_a_failed_stage_is_not_charged_and_the_others_are(
    caller: Caller, runner: RunnerSide
) -> None:
    both = caller.job(runner.complete(caller))["chargedCents"]
    job = caller.job(in_state(caller, runner, "failed"))
    assert 0 < job["chargedCents"] < both
    assert shown(caller.get(f"/jobs/{job['jobId']}/scenes"))["scenes"]
    assert shown(caller.get("/quota"))["api"]["heldCents"] == 0


@covers("notes/resubmit")
def test_resubmitting_the_missing_stage_charges_only_that(
    caller: Caller, runner: RunnerSide
) -> None:
    whole = caller.job(runner.complete(caller))["chargedCents"]
    first = caller.job(in_state(caller, runner, "failed"))["chargedCents"]
    second = caller.job(runner.complete(caller, processingMode="transcript"))["chargedCents"]
    assert first + second == whole


FAILURES: dict[str, tuple[str, str]] = {
    "VALIDATION_FAILED": ("ingest", "INGEST_FAILED"),
    "FETCH_FAILED": ("ingest", "FAILED_FETCH"),
    "INGEST_FAILED": ("ingest", "INGEST_FAILED"),
    "EXTERNAL_AUDIO_FAILED": ("ingest", "INGEST_FAILED"),
    "VISION_FAILED": ("vision", "VISION_FAILED"),
    "CONTENT_BLOCKED": ("vision", "VISION_FAILED"),
    "TRANSCRIPT_FAILED": ("transcript", "TRANSCRIPT_FAILED"),
}
"""Code to its stage, and the legacy status that such a job shows."""


@covers_each("job-error-codes", {code: (code, *FAILURES[code]) for code in FAILURES}, "failure")
def test_a_stage_that_fails_gives_its_code_to_the_job(
    caller: Caller, runner: RunnerSide, failure: tuple[str, str, str]
) -> None:
    code, stage, legacy_status = failure
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    if stage != "ingest":
        runner.ingest(lease)
        if stage == "vision":
            runner.publish_transcripts(lease)
        else:
            runner.publish_scenes(lease)
    runner.start(lease, stage)
    runner.fail(lease, stage, code)
    job = caller.job(job_id)
    assert (job["state"], job["error"]["code"], job["status"]) == ("failed", code, legacy_status)
    assert job["stages"][stage]["status"] == "failed"
    assert job["stages"][stage]["error"]["code"] == code
    completed = [
        name for name, shown_stage in job["stages"].items() if shown_stage["status"] == "completed"
    ]
    assert (job["chargedCents"] > 0) == bool(completed)


@covers("job-error-codes/INSUFFICIENT_CREDITS")
def test_a_balance_below_the_full_price_fails_ingest_and_costs_nothing(
    runner: RunnerSide,
) -> None:
    """What a runner does when holding the price for the found duration is refused."""
    caller = runner.api.caller(credits_cents=2)
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.start(lease, "ingest")
    runner.fail_unpayable(lease)
    job = caller.job(job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "INSUFFICIENT_CREDITS")
    assert job["stages"]["ingest"]["error"]["code"] == "INSUFFICIENT_CREDITS"
    quota = shown(caller.get("/quota"))["api"]
    assert (quota["balanceCents"], quota["heldCents"], job["chargedCents"]) == (2, 0, 0)


@covers("job-error-codes/PROCESSING_FAILED")
def test_a_job_whose_runners_are_lost_is_given_up(caller: Caller, runner: RunnerSide) -> None:
    job_id = runner.queued(caller)
    for expected in ("queued", "queued", "failed"):
        runner.lose(job_id)
        assert caller.job(job_id)["state"] == expected
    assert caller.job(job_id)["error"]["code"] == "PROCESSING_FAILED"
    assert shown(caller.get("/quota"))["api"]["balanceCents"] == 1000


@covers("job-error-codes/CANCELLED")
def test_stages_that_a_cancel_kept_from_running_say_so(caller: Caller, runner: RunnerSide) -> None:
    job_id = in_state(caller, runner, "processing")
    stages = shown(caller.post(f"/jobs/{job_id}/cancel"))["stages"]
    codes = {name: stage.get("error", {}).get("code") for name, stage in stages.items()}
    assert codes == {"ingest": None, "vision": "CANCELLED", "transcript": "CANCELLED"}
    assert "error" not in caller.job(job_id)


@covers("job-error-codes/EXPIRED")
def test_stages_of_an_expired_job_say_so(caller: Caller, runner: RunnerSide) -> None:
    job_id = in_state(caller, runner, "expired")
    job = caller.job(job_id)
    assert {stage["status"] for stage in job["stages"].values()} == {"skipped"}
    assert {stage["error"]["code"] for stage in job["stages"].values()} == {"EXPIRED"}
    assert events(caller, job_id) == []
