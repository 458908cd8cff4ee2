"""Request rates, their headers, and the other limits, row by row."""

from __future__ import annotations

import contextlib
import http.client
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from storage import keys
from tests.contract.calling import (
    RATE_HEADERS,
    Caller,
    ContractApi,
    refusal,
    shown,
)
from tests.contract.runner_side import FOOTAGE, RunnerSide
from tests.contract.spec_rows import covers, covers_each
from tests.serve_app.running_api import within_a_minute

Ask = Callable[[Caller, int], httpx.Response]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket's limit, requests that count in it, and one that counts elsewhere."""

    limit: int
    ask: Ask
    elsewhere: Ask
    unasked: int = 0
    """Requests after the first that are counted only: hundreds take long on a busy machine."""


def in_turn(*requests: tuple[str, str]) -> Ask:
    """These requests one after the other; refused bodies and unknown ids count as well."""

    def ask(caller: Caller, number: int) -> httpx.Response:
        method, path = requests[number % len(requests)]
        body: dict[str, Any] | None = {} if method == "POST" else None
        return caller.ask(method, path.format(uuid.uuid4()), json=body)

    return ask


def visit(network: str) -> Ask:
    """The four discovery endpoints in turn, from one address for each caller."""
    paths = ("/openapi.json", "/pricing", "/pricing/estimate", "/formats")

    def ask(caller: Caller, number: int) -> httpx.Response:
        host = caller.customer.account_id.int % 60_000
        address = f"{network}.{host // 250}.{host % 250 + 1}"
        return caller.api.discover(paths[number % 4], address)

    return ask


BUCKETS = {
    "reads": Bucket(
        600,
        in_turn(
            ("GET", "/quota"), ("GET", "/jobs/{}"), ("GET", "/jobs"), ("GET", "/jobs/{}/scenes")
        ),
        in_turn(("POST", "/jobs/{}/cancel")),
        unasked=560,
    ),
    "job-creation": Bucket(
        30,
        in_turn(("POST", "/jobs"), ("POST", "/jobs/from-url"), ("POST", "/jobs/batch")),
        in_turn(("GET", "/jobs")),
    ),
    "other-writes": Bucket(
        120, in_turn(("POST", "/jobs/{}/cancel"), ("DELETE", "/jobs/{}")), in_turn(("GET", "/jobs"))
    ),
    "keyless-discovery": Bucket(120, visit("198.18"), visit("198.19")),
    "webhook-test": Bucket(
        5, in_turn(("POST", "/webhooks/test")), in_turn(("POST", "/jobs/{}/cancel"))
    ),
}


def spend(api: ContractApi, bucket: Bucket) -> tuple[Caller, list[httpx.Response]]:
    """A new caller who asked once more than the limit, all within one minute."""

    def once_more() -> tuple[Caller, list[httpx.Response]]:
        caller = api.caller()
        first = bucket.ask(caller, 0)
        api.sql(
            "UPDATE rate_limits SET used = used + :unasked WHERE bucket = :name",
            unasked=bucket.unasked,
            name=f"{caller.customer.account_id}:reads",
        )
        rest = range(1 + bucket.unasked, bucket.limit + 1)
        return caller, [first, *(bucket.ask(caller, number) for number in rest)]

    return within_a_minute(once_more)


@covers("error-codes/RATE_LIMITED")
@covers_each("rate-buckets", BUCKETS, "bucket")
def test_bucket_takes_its_limit_a_minute_and_no_more(api: ContractApi, bucket: Bucket) -> None:
    caller, [*answers, refused] = spend(api, bucket)
    left = [int(answer.headers["x-ratelimit-remaining"]) for answer in answers]
    assert left == [bucket.limit - 1, *reversed(range(bucket.limit - 1 - bucket.unasked))]
    assert 429 not in {answer.status_code for answer in answers}
    wait = refused.headers["retry-after"]
    refusal(refused, 429, "RATE_LIMITED", retry_after=wait)
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert abs(int(refused.headers["x-ratelimit-reset"]) - time.time() - int(wait)) <= 1.5
    assert bucket.elsewhere(caller, 0).status_code != 429


def test_requests_of_sessions_count_with_those_of_keys(api: ContractApi) -> None:
    session, account = (caller := api.caller()).sign_in(), caller.customer.account_id

    def asked() -> list[httpx.Response]:
        api.sql("DELETE FROM rate_limits WHERE bucket LIKE :names", names=f"{account}:%")
        first = api.client.get("/audit", headers=session)
        api.sql("UPDATE rate_limits SET used = 598 WHERE bucket = :name", name=f"{account}:reads")
        last = caller.get("/quota"), api.client.get("/keys", headers=session)
        return [first, *last, api.client.get("/audit", headers=session), caller.get("/quota")]

    first, second, third, *refused = within_a_minute(asked)
    left = [each.headers["x-ratelimit-remaining"] for each in (first, second, third)]
    assert left == ["599", "1", "0"]
    for answer in refused:
        refusal(answer, 429, "RATE_LIMITED", retry_after=answer.headers["retry-after"])


def some_answers(caller: Caller) -> list[httpx.Response]:
    """Answers that were counted: successes and refusals of every kind."""
    job = caller.create()
    return [
        caller.get("/quota"),
        caller.get(f"/jobs/{job['jobId']}"),
        caller.post("/jobs", {"fileName": "a.mp4"}),
        caller.post("/jobs", {}),
        caller.post("/jobs", {"fileName": "a.exe"}),
        caller.post("/jobs", {"fileName": "a.mp4", "fileSizeBytes": 2**40}),
        caller.post("/jobs", {"fileName": "a", "idempotencyKey": "b"}, idempotency_key="a"),
        caller.get(f"/jobs/{uuid.uuid4()}"),
        caller.get(f"/jobs/{job['jobId']}/scenes"),
        caller.ask("DELETE", f"/jobs/{job['jobId']}"),
        caller.ask("DELETE", f"/jobs/{job['jobId']}"),
        caller.post("/webhooks/test", {}),
    ]


@covers("notes/rate-headers-carried")
def test_every_counted_answer_carries_the_headers(caller: Caller) -> None:
    answers = some_answers(caller)
    assert {answer.status_code for answer in answers} >= {200, 201, 400, 404, 409, 413, 415, 422}
    answers += [caller.api.discover(path) for path in ("/formats", "/pricing/estimate")]
    account = caller.customer.account_id
    caller.api.transact(lambda c: keys.set_restrictions(c, account, suspended=True))
    answers.append(caller.get("/jobs"))
    for answer in answers:
        assert all(name in answer.headers for name in RATE_HEADERS), answer.request.url
    strangers = caller.api.client.get("/jobs")
    assert not any(name in strangers.headers for name in RATE_HEADERS)


@covers("rate-headers/X-RateLimit-Limit")
def test_limit_is_that_of_the_bucket_charged(caller: Caller) -> None:
    limits = [int(answer.headers["x-ratelimit-limit"]) for answer in some_answers(caller)]
    assert limits == [600, 600, 30, 30, 30, 30, 30, 600, 600, 120, 120, 5]
    assert caller.api.discover("/formats").headers["x-ratelimit-limit"] == "120"


@covers("rate-headers/X-RateLimit-Remaining")
def test_remaining_counts_down_by_one(api: ContractApi) -> None:
    def left() -> list[int]:
        caller = api.caller()
        return [int(caller.get("/quota").headers["x-ratelimit-remaining"]) for _ in range(4)]

    assert within_a_minute(left) == [599, 598, 597, 596]


@covers("rate-headers/X-RateLimit-Reset")
def test_reset_is_the_end_of_the_minute_in_unix_seconds(caller: Caller) -> None:
    before = int(time.time())
    reset = int(caller.get("/quota").headers["x-ratelimit-reset"])
    assert reset % 60 == 0
    assert before < reset <= int(time.time()) + 60


@covers("rate-headers/Retry-After")
def test_retry_after_tells_the_seconds_until_the_window_ends(api: ContractApi) -> None:
    """And a request after that many seconds passes: the window is moved instead of waited out."""

    def ask() -> tuple[Caller, list[httpx.Response]]:
        caller = api.caller()
        return caller, [caller.post("/webhooks/test", {}) for _ in range(6)]

    caller, answers = within_a_minute(ask)
    assert all("retry-after" not in answer.headers for answer in answers[:5])
    wait = int(answers[5].headers["retry-after"])
    assert answers[5].status_code == 429
    assert 0 <= wait - (int(answers[5].headers["x-ratelimit-reset"]) - time.time()) <= 1.5
    caller.api.sql(
        "UPDATE rate_limits SET minute = minute - 1 WHERE bucket = :name",
        name=f"{caller.customer.account_id}:webhook_test",
    )
    assert caller.post("/webhooks/test", {}).status_code == 400


def clips(count: int) -> dict[str, Any]:
    clip = {"sourceUrl": "https://media.example.com/a.mp4"}
    return {"mode": "continuous", "clips": [clip] * count}


@covers("limits/clips-per-batch")
def test_a_batch_has_1_to_100_clips(caller: Caller) -> None:
    for count in (1, 100):
        assert caller.post("/jobs/batch", clips(count)).status_code == 201
    for count in (0, 101):
        refusal(caller.post("/jobs/batch", clips(count)), 400, "INVALID_REQUEST", param="clips")


@covers_each(
    "limits",
    {
        "maximum-upload-standard-tier": ("a.mp4", "standard", 20 * 1024**3),
        "maximum-upload-camera-raw-tier": ("a.r3d", "raw", 100 * 1024**3),
    },
    "limit",
)
@covers("create-job-fields/maxUploadBytes", "error-codes/FILE_TOO_LARGE")
def test_upload_limit_of_a_tier(caller: Caller, limit: tuple[str, str, int]) -> None:
    name, tier, most = limit
    assert shown(caller.api.discover("/formats"))["limits"][f"{tier}MaxBytes"] == most
    assert caller.create(fileName=name, fileSizeBytes=most)["maxUploadBytes"] == most
    over = caller.post("/jobs", {"fileName": name, "fileSizeBytes": most + 1})
    bounds: dict[str, Any] = {"maxUploadBytes": most, "formatTier": tier}
    refusal(over, 413, "FILE_TOO_LARGE", param="fileSizeBytes", **bounds)
    assert put_announcing(caller.create(fileName=name)["uploadUrl"], most + 1) == 413


def put_announcing(url: str, size_bytes: int) -> int:
    """The status that a PUT gets which announces so many bytes and waits before sending any."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=120)
    with contextlib.closing(connection):
        connection.putrequest("PUT", f"{parts.path}?{parts.query}")
        connection.putheader("Content-Length", str(size_bytes))
        connection.endheaders()
        return connection.getresponse().status


@covers("limits/minimum-billable-duration-per-job")
@pytest.mark.parametrize(("duration", "billable"), [(0.5, 30), (30.0, 30), (30.2, 31)])
def test_a_job_is_billed_for_at_least_30_seconds(
    caller: Caller, runner: RunnerSide, duration: float, billable: int
) -> None:
    runner.complete(caller, replace(FOOTAGE, duration_seconds=duration))
    assert shown(caller.get("/quota"))["api"]["monthUsageSeconds"] == billable
    estimate = shown(caller.api.discover("/pricing/estimate", durationSeconds=duration))
    assert estimate["billableSeconds"] == billable


@covers("limits/recommended-polling-interval-for-a-job")
def test_polling_every_5_seconds_fits_the_reads_bucket_and_the_service_asks_for_15(
    caller: Caller,
) -> None:
    """As many unfinished jobs as an account may have, each polled every 5 seconds."""
    job_id = caller.create()["jobId"]
    not_ready = caller.get(f"/jobs/{job_id}/scenes")
    assert 5 <= int(not_ready.headers["retry-after"]) <= 15
    reads = int(caller.get(f"/jobs/{job_id}", include="none").headers["x-ratelimit-limit"])
    assert reads >= 50 * 60 / 5
