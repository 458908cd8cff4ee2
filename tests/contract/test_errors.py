"""Error codes: status, condition, extra fields, param and Retry-After, code by code.

Codes that belong to a subject of their own stand in that subject's module: keys in
test_authentication, idempotency and URLs in test_creation_rules, cancelling and
unfinished stages in test_transitions, rates in test_limits.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from serve_app.api.schemas import OPTIONAL_FIELDS, REQUIRED_FIELDS
from serve_app.errors import CATALOGUE, ErrorCode
from storage import jobs, keys, ledger
from storage.types import SkipReason, StageName, StageStatus
from tests.contract.calling import RATE_HEADERS, Caller, ContractApi, fresh_api, refusal, shown
from tests.contract.runner_side import AUDIO_ONLY, SILENT, TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import ROWS, covers, covers_each, row_cells, rows_of
from tests.tables import every

Ask = Callable[[Caller], httpx.Response]


def test_the_catalogue_has_the_statuses_and_waits_of_the_table() -> None:
    for code in rows_of("error-codes"):
        entry = CATALOGUE[ErrorCode(code)]
        assert entry.status == int(row_cells(f"error-codes/{code}")[1])
        own = REQUIRED_FIELDS.get(ErrorCode(code), {}) | OPTIONAL_FIELDS.get(ErrorCode(code), {})
        for field in own.keys() - {"param"}:
            assert f"`{field}`" in ROWS[f"error-codes/{code}"]
        if entry.retry_after_seconds is not None:
            assert "Retry-After" in ROWS[f"error-codes/{code}"]


INVALID: dict[str, tuple[str, Ask]] = {
    "missing fileName": ("fileName", lambda caller: caller.post("/jobs", {})),
    "unknown processingMode": (
        "processingMode",
        lambda caller: caller.post("/jobs", {"fileName": "a.mp4", "processingMode": "both"}),
    ),
    "metadata over limits": (
        "metadata",
        lambda caller: caller.post(
            "/jobs", {"fileName": "a.mp4", "metadata": {f"k{n}": n for n in range(51)}}
        ),
    ),
    "bad cursor": ("cursor", lambda caller: caller.get("/jobs", cursor="bad")),
    "state with status": (
        "status",
        lambda caller: caller.get("/jobs", state="queued", status="QUEUED"),
    ),
}


@covers("error-codes/INVALID_REQUEST")
@every("condition", list(INVALID))
def test_invalid_request_names_the_field(caller: Caller, condition: str) -> None:
    param, ask = INVALID[condition]
    refusal(ask(caller), 400, "INVALID_REQUEST", param=param)


@covers("error-codes/INVALID_REQUEST")
def test_a_track_must_be_named_for_files_of_several_tracks(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.complete(caller, TWO_TRACKS)
    answer = caller.get(f"/jobs/{job_id}/transcript", format="srt")
    refusal(answer, 400, "INVALID_REQUEST", param="track")


@covers("error-codes/INVALID_REQUEST")
@every("content", [b"", b"{", b"null", b"\xff", b'{"fileName": "a", "fileName": "b"}'])
def test_a_malformed_body_blames_no_field(caller: Caller, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = caller.ask("POST", "/jobs", content=content, headers=headers)
    refusal(answer, 400, "INVALID_REQUEST")


@covers("error-codes/INSUFFICIENT_CREDITS")
def test_credits_less_holds_must_cover_thirty_seconds(api: ContractApi) -> None:
    caller = api.caller(credits_cents=3)  # 30 seconds of both stages cost 2
    assert caller.post("/jobs", {"fileName": "a.mp4"}).status_code == 201
    answer = caller.post("/jobs", {"fileName": "a.mp4"})
    refusal(answer, 402, "INSUFFICIENT_CREDITS")
    assert len(caller.get("/jobs").json()["data"]) == 1
    account = caller.customer.account_id
    api.transact(lambda c: ledger.grant(c, account, 100, "topping up"))
    assert caller.post("/jobs", {"fileName": "a.mp4"}).status_code == 201


@covers("error-codes/UNSUPPORTED_FORMAT")
@every("name", ["setup.exe", "run.sh", "clip.braw", "clip.ari"])
def test_executables_scripts_and_raw_formats_not_enabled_are_unsupported(
    caller: Caller, name: str
) -> None:
    upload = caller.post("/jobs", {"fileName": name})
    refusal(upload, 415, "UNSUPPORTED_FORMAT", param="fileName")
    fetched = caller.post("/jobs/from-url", {"url": f"https://media.example.com/{name}"})
    refusal(fetched, 415, "UNSUPPORTED_FORMAT", param="url")


@covers("error-codes/TOO_MANY_ACTIVE_JOBS", "limits/unfinished-jobs-per-account")
def test_an_account_has_at_most_50_unfinished_jobs(caller: Caller) -> None:
    clips = [{"sourceUrl": "https://media.example.com/a.mp4"}] * 50
    batch = shown(caller.post("/jobs/batch", {"mode": "independent", "clips": clips}))
    answer = caller.post("/jobs", {"fileName": "a.mp4"})
    refusal(answer, 429, "TOO_MANY_ACTIVE_JOBS", retry_after="30", maxActiveJobs=50, activeJobs=50)
    assert all(name in answer.headers for name in RATE_HEADERS)
    caller.post(f"/jobs/{batch['jobs'][0]['jobId']}/cancel")
    assert caller.post("/jobs", {"fileName": "a.mp4"}).status_code == 201


@covers("error-codes/THROTTLED")
def test_a_throttled_account_creates_nothing(caller: Caller) -> None:
    account = caller.customer.account_id
    caller.api.transact(lambda c: keys.set_restrictions(c, account, throttled=True))
    answer = caller.post("/jobs", {"fileName": "a.mp4"})
    refusal(answer, 429, "THROTTLED", retry_after="3600")
    assert caller.get("/jobs").json()["data"] == []


@pytest.fixture(scope="module")
def fragile(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ContractApi, str]]:
    """An API whose database may be broken; and the name of that database."""
    with fresh_api(postgres_url, tmp_path_factory.mktemp("fragile")) as api:
        [(name,)] = api.sql("SELECT current_database()")
        yield api, name


@covers("error-codes/INTERNAL_ERROR")
def test_a_failure_of_the_service_is_an_internal_error(fragile: tuple[ContractApi, str]) -> None:
    api, _ = fragile
    caller = api.caller()
    api.sql("ALTER TABLE jobs RENAME TO jobs_away")
    try:
        answers = [caller.get("/jobs"), caller.post("/jobs", {"fileName": "a.mp4"})]
    finally:
        api.sql("ALTER TABLE jobs_away RENAME TO jobs")
    for answer in answers:
        body = refusal(answer, 500, "INTERNAL_ERROR")
        assert all(name in answer.headers for name in RATE_HEADERS)
        assert "jobs" not in body["error"]
    assert caller.get("/jobs").status_code == 200


@covers("error-codes/INTERNAL_ERROR")
def test_the_connection_stays_open_after_an_internal_error(
    fragile: tuple[ContractApi, str],
) -> None:
    """A client that sends its retry on the same connection must not run into a reset."""
    api, _ = fragile
    headers = {"X-API-Key": api.customer().key}
    connection = http.client.HTTPConnection(urlsplit(api.root).netloc, timeout=120)
    connection.connect()
    connection.auto_open = 0
    api.sql("ALTER TABLE jobs RENAME TO jobs_away")
    statuses = []
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("GET", "/v1/api/jobs", headers=headers)
            answer = connection.getresponse()
            statuses.append((answer.status, json.loads(answer.read()).get("code")))
            if len(statuses) == 2:
                api.sql("ALTER TABLE jobs_away RENAME TO jobs")
    assert statuses == [(500, "INTERNAL_ERROR"), (500, "INTERNAL_ERROR"), (200, None)]


@covers("error-codes/SERVICE_UNAVAILABLE")
def test_more_uploads_at_once_than_a_replica_takes_are_told_to_come_back(api: ContractApi) -> None:
    one_at_a_time = api.settings.model_copy(update={"upload_concurrency": 1})
    with ContractApi(one_at_a_time) as replica:
        caller = replica.caller()
        first, second = (caller.create()["uploadUrl"] for _ in range(2))
        with half_an_upload(first):
            refused = httpx.put(second, content=b"footage", trust_env=False)
        refusal(refused, 503, "SERVICE_UNAVAILABLE", retry_after="30")


@contextlib.contextmanager
def half_an_upload(url: str) -> Iterator[None]:
    """A PUT that has begun, and does not go on for the block."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=120)
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        connection.putheader("Content-Length", "1000")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        # The server asks for the body once the endpoint reads it: then the place is taken.
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 100")
        yield


@covers("error-codes/SERVICE_UNAVAILABLE")
def test_without_its_database_the_service_is_unavailable(
    fragile: tuple[ContractApi, str], postgres_url: str
) -> None:
    api, name = fragile
    caller = api.caller()
    assert caller.get("/quota").status_code == 200
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        operator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        answer = caller.post("/jobs", {"fileName": "a.mp4"})
        operator.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    refusal(answer, 503, "SERVICE_UNAVAILABLE", retry_after="30")
    api.run(api.database.engine.dispose())


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
