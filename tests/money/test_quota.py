"""What the account has, as it is told; and that nobody is told anything that could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from serve_app.settings import Settings
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.runner_side import FOOTAGE, RunnerSide


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[ContractApi]:
    """A service that is quick to give up waiting for its database."""
    with ContractApi(settings.model_copy(update={"database_timeout_seconds": 0.7})) as running:
        yield running


def quota(caller: Caller) -> dict[str, object]:
    found: dict[str, object] = shown(caller.get("/quota"))["api"]
    return found


def test_quota_follows_a_job_from_hold_to_charge(caller: Caller, runner: RunnerSide) -> None:
    """65.5 s are 66 billable seconds: 2.2 and 0.73 cents, rounded to 2 and 1."""
    job_id = runner.queued(caller)
    assert quota(caller) == {
        "available": True,
        "balanceCents": 1000,
        "heldCents": 2,
        "availableCents": 998,
        "payAsYouGo": False,
        "monthUsageSeconds": 0,
        "tier": "standard",
        "volumeThresholdSeconds": 360_000,
    }
    lease = runner.lease(job_id)
    runner.ingest(lease, FOOTAGE)
    read = quota(caller)
    assert (read["heldCents"], read["availableCents"], read["monthUsageSeconds"]) == (3, 997, 66)
    runner.publish_scenes(lease)
    read = quota(caller)
    assert (read["balanceCents"], read["heldCents"]) == (998, 1)
    runner.publish_transcripts(lease)
    read = quota(caller)
    assert (read["balanceCents"], read["heldCents"], read["monthUsageSeconds"]) == (997, 0, 66)
    assert caller.job(job_id)["chargedCents"] == 3


@contextmanager
def locked(api: ContractApi, statement: str) -> Iterator[None]:
    """Somebody else's transaction that keeps what ``statement`` locks."""
    with psycopg.connect(api.settings.database_url or "") as connection:
        connection.execute(statement)
        yield


LOCKED = [
    pytest.param("LOCK TABLE jobs", False, id="the jobs of the month cannot be read"),
    pytest.param("LOCK TABLE ledger_entries", True, id="the ledger cannot be written"),
    pytest.param(
        "SELECT FROM accounts WHERE id = '{account}' FOR UPDATE", True, id="the account is locked"
    ),
]


@pytest.mark.parametrize(("statement", "readable"), LOCKED)
def test_an_unreadable_balance_is_said_to_be_and_creates_nothing(
    caller: Caller, statement: str, readable: bool
) -> None:
    with locked(caller.api, statement.format(account=caller.customer.account_id)):
        read = quota(caller)
        assert read["available"] is readable
        assert (set(read) == {"available"}) is not readable
        answer = caller.post("/jobs", {"fileName": "clip.mp4"}, idempotency_key="once")
        refusal(answer, 503, "SERVICE_UNAVAILABLE", retry_after="30")
    assert caller.api.sql(
        "SELECT count(*) FROM jobs WHERE account_id = :id", id=caller.customer.account_id
    ) == [(0,)]
    assert quota(caller)["available"] is True
    # What could not be verified is not remembered: the same key creates the job now.
    retried = caller.post("/jobs", {"fileName": "clip.mp4"}, idempotency_key="once")
    assert shown(retried)["state"] == "awaiting_upload"
    assert "Idempotent-Replayed" not in retried.headers


def test_a_balance_that_is_gone_altogether_is_unavailable_too(caller: Caller) -> None:
    caller.api.sql("ALTER TABLE accounts RENAME COLUMN balance_cents TO balance_away")
    try:
        assert quota(caller) == {"available": False}
        answer = caller.post("/jobs", {"fileName": "clip.mp4"})
        refusal(answer, 503, "SERVICE_UNAVAILABLE", retry_after="30")
    finally:
        caller.api.sql("ALTER TABLE accounts RENAME COLUMN balance_away TO balance_cents")
    assert quota(caller)["availableCents"] == 1000
