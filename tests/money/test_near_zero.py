"""Fifty clients on one account near zero: exactly what the balance covers, never a cent more."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from serve_app.settings import Settings
from storage import keys, ledger
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide

CLIENTS = 50
CREATIONS_A_MINUTE = 30


@pytest.fixture(scope="module")
def replicas(settings: Settings) -> Iterator[tuple[ContractApi, ContractApi]]:
    """Two servers over one database, as two replicas are."""
    with ContractApi(settings) as first, ContractApi(settings) as second:
        yield first, second


def concurrency(work: Callable[[int], httpx.Response]) -> collections.Counter[int]:
    """Statuses of CLIENTS requests that start at the same moment."""
    barrier = threading.Barrier(CLIENTS)

    def start(number: int) -> httpx.Response:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return collections.Counter(a.status_code for a in pool.map(start, range(CLIENTS)))


def forget_rates(api: ContractApi) -> None:
    """Money, not the request rate, is what these clients are to run into."""
    api.sql("DELETE FROM rate_limits")


CASES = [
    pytest.param({"processingMode": "all"}, 33, 0, 16, id="16 jobs of 2 cents and a cent over"),
    pytest.param({"processingMode": "vision"}, 20, 0, 20, id="20 jobs of a cent to the last cent"),
    pytest.param({"processingMode": "all"}, 1, 0, 0, id="a cent short of the first"),
    pytest.param({"processingMode": "all"}, 10, 13, 11, id="pay as you go down to the limit"),
]


@pytest.mark.parametrize(("body", "cents", "limit", "covered"), CASES)
def test_exactly_as_many_jobs_are_accepted_as_the_credits_cover(
    replicas: tuple[ContractApi, ContractApi],
    body: dict[str, str],
    cents: int,
    limit: int,
    covered: int,
) -> None:
    api = replicas[0]
    caller = api.caller(cents)
    account_id = caller.customer.account_id
    if limit:
        api.transact(
            lambda c: keys.set_limits(c, account_id, pay_as_you_go=True, credit_limit_cents=limit)
        )

    def create(number: int) -> httpx.Response:
        asked = {"url": "https://media.example.com/clip.mp4", "metadata": {"n": number}} | body
        client = replicas[number % 2].client
        return client.post("/jobs/from-url", json=asked, headers=caller.customer.headers)

    counts = concurrency(create)
    assert set(counts) <= {201, 402, 429}
    assert counts[201] == covered
    assert counts[402] >= CREATIONS_A_MINUTE - covered
    check(caller, created=covered, limit=limit)
    forget_rates(api)
    assert create(0).status_code == 402


def check(caller: Caller, *, created: int, limit: int) -> None:
    account_id = caller.customer.account_id
    assert caller.api.transact(ledger.find_discrepancies) == []
    [(jobs,)] = caller.api.sql("SELECT count(*) FROM jobs WHERE account_id = :id", id=account_id)
    assert jobs == created
    lowest = """
        SELECT min(available) FROM (
            SELECT sum(balance_delta_cents - hold_delta_cents) OVER (ORDER BY id) AS available
              FROM ledger_entries WHERE account_id = :id) AS history
    """
    [(available,)] = caller.api.sql(lowest, id=account_id)
    assert available >= -limit


def test_batches_cancellations_and_runners_at_the_same_moment_never_overdraw(
    replicas: tuple[ContractApi, ContractApi],
) -> None:
    """Fifty clients create, batch and cancel while jobs end: whatever happens, no cent too much."""
    api = replicas[0]
    caller = api.caller(60)
    runner = RunnerSide(api)
    ending = [runner.queued(caller, processingMode="vision") for _ in range(8)]
    leases = [runner.lease(job_id) for job_id in ending]
    for lease in leases:
        runner.ingest(lease)
    forget_rates(api)
    source = "https://media.example.com/clip.mp4"

    def act(number: int) -> httpx.Response:
        client, headers = replicas[number % 2].client, caller.customer.headers
        if number < 4:
            return client.post(f"/jobs/{ending[number]}/cancel", headers=headers)
        if number < 8:
            runner.publish_scenes(leases[number])
            return client.get("/quota", headers=headers)
        if number % 4 == 0:
            clips = {"mode": "independent", "clips": [{"sourceUrl": source}] * 5}
            return client.post("/jobs/batch", json=clips, headers=headers)
        return client.post("/jobs/from-url", json={"url": source}, headers=headers)

    counts = concurrency(act)
    assert set(counts) <= {200, 201, 402, 429}
    assert counts[500] == counts[503] == 0
    assert api.transact(ledger.find_discrepancies) == []
    quota = shown(caller.get("/quota"))["api"]
    # Four jobs completed at 2 cents each, four were cancelled; each new job holds 2 cents.
    assert quota["balanceCents"] == 60 - 4 * 2
    [(new,)] = api.sql(
        "SELECT count(*) FROM jobs WHERE account_id = :id AND state = 'queued'",
        id=caller.customer.account_id,
    )
    assert quota["heldCents"] == 2 * new
    assert quota["availableCents"] >= 0
