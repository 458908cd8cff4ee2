"""The same key: the same answer. Another body: a refusal."""

from __future__ import annotations

import collections
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from serve_app.api.authentication import LIMITS, Bucket
from serve_app.settings import Settings
from storage import ledger
from tests.serve_app.running_api import Customer, RunningApi, within_a_minute
from tests.serve_app.test_jobs_api import expect_error

BODY = {"fileName": "a.mp4", "metadata": {"n": 1}}


def create(
    api: RunningApi, customer: Customer, key: str | None, body: Any = None, **more: Any
) -> Any:
    headers = customer.headers | ({} if key is None else {"Idempotency-Key": key})
    return api.client.post("/jobs", json=(BODY if body is None else body) | more, headers=headers)


def count_jobs(api: RunningApi, customer: Customer) -> int:
    query = "SELECT count(*) FROM jobs WHERE account_id = :id"
    [(count,)] = api.sql(query, id=customer.account_id)
    return int(count)


def test_a_repeat_gives_the_first_answer_to_the_byte(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k1")
    again = create(api, customer, "k1")
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["x-request-id"] == again.json()["requestId"]
    assert count_jobs(api, customer) == 1


def test_the_order_of_fields_does_not_matter(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k2")
    again = create(api, customer, "k2", {"metadata": {"n": 1}, "fileName": "a.mp4"})
    assert again.content == first.content


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"], ids=["empty", "long", "not ASCII"])
def test_a_malformed_key_is_refused(api: RunningApi, customer: Customer, key: str) -> None:
    answer = create(api, customer, None, idempotencyKey=key)
    expect_error(answer, 400, "INVALID_REQUEST", "idempotencyKey")


def test_keys_belong_to_an_operation(api: RunningApi, customer: Customer) -> None:
    create(api, customer, "k6")
    body = {"url": "https://example.com/a.mp4"}
    headers = customer.headers | {"Idempotency-Key": "k6"}
    assert api.client.post("/jobs/from-url", json=body, headers=headers).status_code == 201


def test_a_validation_failure_is_not_remembered(api: RunningApi, customer: Customer) -> None:
    expect_error(create(api, customer, "k7", {}), 400, "INVALID_REQUEST", "fileName")
    assert create(api, customer, "k7").status_code == 201


def test_a_refusal_for_want_of_credits_is_remembered(api: RunningApi) -> None:
    poor = api.customer(credits_cents=0)
    first = create(api, poor, "k8")
    expect_error(first, 402, "INSUFFICIENT_CREDITS")

    api.transact(lambda c: ledger.grant(c, poor.account_id, 100, "test"))
    again = create(api, poor, "k8")
    assert again.content == first.content
    assert create(api, poor, "k9").status_code == 201


def test_a_429_is_not_remembered(api: RunningApi, customer: Customer) -> None:
    jobs = [create(api, customer, None) for _ in range(api.settings.max_active_jobs)]
    expect_error(create(api, customer, "k10"), 429, "TOO_MANY_ACTIVE_JOBS")
    job_id = jobs[0].json()["data"]["jobId"]
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    assert create(api, customer, "k10").status_code == 201


CLIENTS = 20
TRIES = int(os.environ.get("VAS_IDEMPOTENCY_TRIES", "60"))
REPEATS = 4
TRIES_AN_ACCOUNT = 5


@pytest.fixture(scope="module")
def replicas(api_settings: Settings) -> Iterator[list[RunningApi]]:
    """Two servers over one database, as two replicas are."""
    with RunningApi(api_settings) as first, RunningApi(api_settings) as second:
        yield [first, second]


def count_reads(api: RunningApi, customer: Customer, number: int) -> None:
    """As if so many had been made: hundreds take long on a busy machine."""
    api.client.get("/quota", headers=customer.headers)
    statement = "UPDATE rate_limits SET used = :used WHERE bucket = :name"
    api.sql(statement, used=number, name=f"{customer.account_id}:{Bucket.READS}")


def test_not_one_request_over_the_limit_and_not_one_under_it_refused(
    replicas: list[RunningApi],
) -> None:
    limit = LIMITS[Bucket.READS]
    each, unasked = 10, limit - 100

    def ask() -> list[httpx.Response]:
        customer = replicas[0].customer()
        count_reads(replicas[0], customer, unasked)

        def work(number: int) -> list[httpx.Response]:
            base = replicas[number % 2].client.base_url
            with httpx.Client(
                base_url=base, headers=customer.headers, trust_env=False, timeout=60
            ) as client:
                return [client.get("/quota") for _ in range(each)]

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [answer for part in pool.map(work, range(CLIENTS)) for answer in part]

    answers = within_a_minute(ask)
    counts = collections.Counter(answer.status_code for answer in answers)
    assert counts == {200: 100, 429: each * CLIENTS - 100}
    passed = [a for a in answers if a.status_code == 200]
    remaining = sorted(int(a.headers["x-ratelimit-remaining"]) for a in passed)
    assert remaining == list(range(100))
    for answer in answers:
        assert answer.headers["x-ratelimit-limit"] == str(limit)
        assert answer.headers["x-ratelimit-reset"] == answers[0].headers["x-ratelimit-reset"]
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_concurrent_creations_with_one_key_make_one_job(replicas: list[RunningApi]) -> None:
    """VAS_IDEMPOTENCY_TRIES=1000 for the long run."""
    accounts = [replicas[0].customer() for _ in range(-(-TRIES // TRIES_AN_ACCOUNT))]
    clients = [
        httpx.Client(base_url=r.client.base_url, trust_env=False, timeout=30) for r in replicas
    ]
    seen: collections.Counter[int] = collections.Counter()

    def attempt(number: int) -> None:
        customer = accounts[number // TRIES_AN_ACCOUNT]
        seen.update(_race(clients, customer, str(uuid.uuid4())))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attempt, range(TRIES)))
    for client in clients:
        client.close()
    assert set(seen) <= {201, 409}
    assert seen[201] >= TRIES
    ids = [customer.account_id for customer in accounts]
    query = "SELECT count(*) FROM jobs WHERE account_id = ANY(:ids)"
    assert replicas[0].sql(query, ids=ids) == [(TRIES,)]


def _race(clients: list[httpx.Client], customer: Customer, key: str) -> list[int]:
    """The same creation REPEATS times at once; all that succeed must be the same answer."""
    barrier = threading.Barrier(REPEATS)

    def create(number: int) -> httpx.Response:
        barrier.wait()
        return clients[number % 2].post(
            "/jobs",
            json={"fileName": "a.mp4", "metadata": {"key": key}},
            headers=customer.headers | {"Idempotency-Key": key},
        )

    with ThreadPoolExecutor(REPEATS) as pool:
        answers = list(pool.map(create, range(REPEATS)))
    bodies = {answer.content for answer in answers if answer.status_code == 201}
    assert len(bodies) == 1
    replayed = [a for a in answers if a.headers.get("idempotent-replayed") == "true"]
    created = [a for a in answers if a.status_code == 201]
    assert len(created) - len(replayed) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "IDEMPOTENCY_IN_PROGRESS"
            assert answer.headers["retry-after"] == "2"
    return [answer.status_code for answer in answers]
