"""Two replicas of the API, twenty clients at once: limits hold to the request, keys to the job."""

from __future__ import annotations

import collections
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.api.authentication import LIMITS, Bucket
from serve_app.settings import Settings
from tests.serve_app.running_api import Customer, RunningApi, within_a_minute

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

    async def work(connection: AsyncConnection) -> None:
        query = text("UPDATE rate_limits SET used = :used WHERE bucket = :name")
        name = f"{customer.account_id}:{Bucket.READS}"
        await connection.execute(query, {"used": number, "name": name})

    api.transact(work)


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

    async def count(connection: AsyncConnection) -> int:
        ids = [customer.account_id for customer in accounts]
        query = text("SELECT count(*) FROM jobs WHERE account_id = ANY(:ids)")
        return int((await connection.execute(query, {"ids": ids})).scalar_one())

    assert replicas[0].transact(count) == TRIES


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
