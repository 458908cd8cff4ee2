"""The retry rules, as our own client follows them against the running API."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from serve_app.client.api import ApiClient, RequestFailedError
from storage import keys
from storage.access import IdempotencyKey, try_lock_key
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.contract.spec_rows import covers
from tests.serve_app.running_api import within_a_minute

URL = "https://media.example.com/clip.mp4"


@dataclass(slots=True)
class Sleeps:
    """Stands in for sleeping: notes how long, and does what meanwhile changes the world."""

    meanwhile: Callable[[], object] = lambda: None
    seconds: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.meanwhile()


def client_of(caller: Caller, sleeps: Sleeps) -> ApiClient:
    return ApiClient(f"{caller.api.root}/v1/api", caller.customer.key, sleep=sleeps)


def used_up(caller: Caller, bucket: str) -> Callable[[], object]:
    """Spend a bucket's window; give back what starts a new one."""
    account = str(caller.customer.account_id)
    caller.api.sql(
        "UPDATE rate_limits SET used = 1000 WHERE bucket = :name", name=f"{account}:{bucket}"
    )
    return lambda: caller.api.sql(
        "UPDATE rate_limits SET minute = minute - 1 WHERE bucket = :name",
        name=f"{account}:{bucket}",
    )


@covers("retry-rules/1", "error-codes/RATE_LIMITED")
def test_a_rate_limited_request_is_repeated_after_its_wait(api: ContractApi) -> None:
    def waits() -> list[float]:
        caller = api.caller()
        caller.create()
        sleeps = Sleeps(meanwhile=used_up(caller, "creation"))
        with client_of(caller, sleeps) as client:
            client.create_job("clip.mp4")
        return sleeps.seconds

    [seconds] = within_a_minute(waits)
    assert 1 <= seconds <= 60


@covers("retry-rules/1")
def test_too_many_active_jobs_are_waited_out(caller: Caller) -> None:
    account = caller.customer.account_id
    caller.api.sql("UPDATE accounts SET max_active_jobs = 1 WHERE id = :id", id=account)
    first = caller.create()["jobId"]
    sleeps = Sleeps(meanwhile=lambda: caller.post(f"/jobs/{first}/cancel"))
    with client_of(caller, sleeps) as client:
        client.create_job("clip.mp4")
    assert sleeps.seconds == [30]


@covers("retry-rules/1")
def test_results_that_are_not_ready_are_waited_for(caller: Caller, runner: RunnerSide) -> None:
    job_id = runner.queued(caller)
    lease = runner.lease(job_id)
    runner.ingest(lease)
    sleeps = Sleeps(meanwhile=lambda: runner.publish_scenes(lease))
    with client_of(caller, sleeps) as client:
        assert len(client.get_scenes(job_id)) == 2
    assert sleeps.seconds == [15]


@covers("retry-rules/1")
def test_a_creation_in_progress_is_repeated_with_the_same_key(caller: Caller) -> None:
    refused = threading.Event()
    sleeps = Sleeps(meanwhile=refused.set)
    client = client_of(caller, sleeps)

    def create() -> dict[str, Any]:
        return client.create_job("clip.mp4", idempotency_key="mine")

    async def create_beside_a_first_request() -> dict[str, Any]:
        async with caller.api.database.transaction() as connection:
            slot = IdempotencyKey(caller.customer.account_id, "createJob", "mine")
            assert await try_lock_key(connection, slot)
            repeated = asyncio.create_task(asyncio.to_thread(create))
            assert await asyncio.to_thread(refused.wait, 10)
        return await repeated

    job = caller.api.run(create_beside_a_first_request())
    assert set(sleeps.seconds) == {2}
    assert create() == job
    assert [item["jobId"] for item in caller.get("/jobs").json()["data"]] == [job["jobId"]]
    client.close()


@covers("retry-rules/2")
def test_a_500_is_retried_with_growing_pauses_and_the_same_key(caller: Caller) -> None:
    """The table comes back after the third attempt; one job is made."""
    api = caller.api
    attempts = itertools.count(1)

    def repair() -> None:
        if next(attempts) == 3:
            api.sql("ALTER TABLE uploads_away RENAME TO uploads")

    sleeps = Sleeps(meanwhile=repair)
    api.sql("ALTER TABLE uploads RENAME TO uploads_away")
    with client_of(caller, sleeps) as client:
        job = client.create_job("clip.mp4", idempotency_key="mine")
    for seconds, middle in zip(sleeps.seconds, (0.5, 1.0, 2.0), strict=True):
        assert 0.75 * middle <= seconds <= 1.25 * middle
        assert seconds != middle
    assert [item["jobId"] for item in caller.get("/jobs").json()["data"]] == [job["jobId"]]


FINAL: dict[str, Callable[[Caller, ApiClient], object]] = {
    "INVALID_REQUEST": lambda caller, client: client.create_job(""),
    "INVALID_URL": lambda caller, client: client.create_job_from_url("clip.mp4"),
    "URL_NOT_ALLOWED": lambda caller, client: client.create_job_from_url("http://10.0.0.1/a.mp4"),
    "NOT_FOUND": lambda caller, client: client.get_job("none"),
    "JOB_NOT_CANCELLABLE": lambda caller, client: client.cancel(cancelled_job(caller)),
    "RESULTS_UNAVAILABLE": lambda caller, client: client.get_scenes(cancelled_job(caller)),
    "FILE_TOO_LARGE": lambda caller, client: client.create_job("a.mp4", size_bytes=2**40),
    "UNSUPPORTED_FORMAT": lambda caller, client: client.create_job("a.exe"),
    "IDEMPOTENCY_BODY_MISMATCH": lambda caller, client: [
        client.create_job(name, idempotency_key="same") for name in ("a.mp4", "b.mp4")
    ],
    "ACCOUNT_SUSPENDED": lambda caller, client: client.get_job(suspended(caller)),
}


def cancelled_job(caller: Caller) -> str:
    job_id = str(caller.create()["jobId"])
    caller.post(f"/jobs/{job_id}/cancel")
    return job_id


def suspended(caller: Caller) -> str:
    """A job of the account, which is then suspended."""
    job_id = str(caller.create()["jobId"])
    account = caller.customer.account_id
    caller.api.transact(lambda c: keys.set_restrictions(c, account, suspended=True))
    return job_id


@covers("retry-rules/3")
@pytest.mark.parametrize("code", list(FINAL))
def test_any_other_4xx_is_final(caller: Caller, code: str) -> None:
    sleeps = Sleeps()
    with client_of(caller, sleeps) as client, pytest.raises(RequestFailedError) as failure:
        FINAL[code](caller, client)
    assert failure.value.code == code
    assert sleeps.seconds == []


@covers("limits/client-retry-wait-honoured-by-sdks")
def test_a_client_waits_at_most_a_minute(caller: Caller) -> None:
    """THROTTLED says an hour: the client gives up at once. Two waits of 30 s are the most."""
    account = caller.customer.account_id
    caller.api.sql("UPDATE accounts SET max_active_jobs = 1 WHERE id = :id", id=account)
    caller.create()
    sleeps = Sleeps()
    with client_of(caller, sleeps) as client, pytest.raises(RequestFailedError) as failure:
        client.create_job("clip.mp4")
    assert failure.value.code == "TOO_MANY_ACTIVE_JOBS"
    assert sleeps.seconds == [30, 30]
    caller.api.transact(lambda c: keys.set_restrictions(c, account, throttled=True))
    sleeps.seconds.clear()
    with client_of(caller, sleeps) as client, pytest.raises(RequestFailedError) as failure:
        client.create_job("clip.mp4")
    assert failure.value.code == "THROTTLED"
    assert sleeps.seconds == []
