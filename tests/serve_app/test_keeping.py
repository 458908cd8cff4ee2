"""How long things are kept, legal holds, and accounts that are erased."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.context import build_context
from serve_app.work.reaper import Reaper
from storage import cleaning, keys
from storage.objects.folder import FolderStore
from storage.tables import accounts, jobs
from tests.serve_app.beside_jobs import clean_due
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_erasing import MARKER, job, places_of
from tests.serve_app.test_retention import fill
from tests.tables import every

__all__ = ["job"]
DAY = 86_400


def reap(api: RunningApi, **settings: Any) -> None:
    """A round of the reaper, under other settings than the API's."""

    async def run() -> None:
        context = build_context(api.settings.model_copy(update=settings))
        context = replace(context, objects=api.context.objects)
        await Reaper(context).sweep_database()
        await clean_due(context)
        await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()


def ended(api: RunningApi, customer: Customer, seconds_ago: int = 0, **body: Any) -> str:
    """A completed job with objects; its event, if any, is delivered."""
    job_id = created(api, customer, **body)
    complete(api, job_id, [track(0)], [])
    fill(api.context.objects, job_id)
    api.sql("UPDATE webhook_events SET status = 'delivered', next_attempt_at = NULL"
                 " RETURNING id")  # fmt: skip
    api.sql("UPDATE jobs SET completed_at = completed_at - make_interval(secs => :s)"
                 " WHERE id = :id RETURNING id", id=uuid.UUID(job_id), s=seconds_ago)  # fmt: skip
    return job_id


def is_erased(api: RunningApi, job_id: str) -> bool:
    return bool(api.sql("SELECT erased_at FROM jobs WHERE id = :id", id=uuid.UUID(job_id))[0][0])


def has_source(api: RunningApi, job_id: str) -> bool:
    return any(api.context.objects.list_keys(f"jobs/{job_id}/source"))


def retain(
    api: RunningApi, customer: Customer, source_seconds: int | None, days: int | None
) -> None:
    async def set_values(connection: AsyncConnection) -> None:
        await keys.set_retention(
            connection, customer.account_id, source_seconds=source_seconds, result_days=days
        )

    api.transact(set_values)


@pytest.mark.parametrize("retention", [{"sourceSeconds": 0, "resultDays": 30}, {"resultDays": 0}])
def test_a_job_shows_the_retention_that_it_was_created_with(
    api: RunningApi, customer: Customer, retention: dict[str, int]
) -> None:
    plain, chosen = created(api, customer), created(api, customer, retention=retention)
    for job_id, expected in ((plain, None), (chosen, retention)):
        shown = api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]
        assert shown.get("retention") == expected
        api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)


def hold(api: RunningApi, table: Any, row_id: uuid.UUID, *, holds: bool = True) -> None:
    assert api.transact(lambda c: cleaning.set_legal_hold(c, table, row_id, holds=holds))


@pytest.mark.parametrize(
    ("retention", "param"),
    [
        ({"sourceSeconds": -1}, "retention.sourceSeconds"),
        ({"sourceSeconds": DAY + 1}, "retention.sourceSeconds"),
        ({"resultDays": 1.5}, "retention.resultDays"),
        ({"resultDays": 36_501}, "retention.resultDays"),
        (3, "retention"),
    ],
)
def test_a_bad_retention_is_refused_and_one_beyond_the_operators_most(
    api: RunningApi, customer: Customer, retention: Any, param: str
) -> None:
    body = {"url": "https://media.example.com/a.mp4", "retention": retention}
    answer = api.client.post("/jobs/from-url", json=body, headers=customer.headers)
    assert (answer.status_code, answer.json().get("param")) == (400, param)


KEPT: dict[str, tuple[Any, ...]] = {
    # account (seconds, days), job, settings, seconds since the end: source there, content there
    "the service's": ((None, None), {}, {}, 60, True, True),
    "the service's, over": ((None, None), {}, {"result_retention_days": 1}, DAY + 60, False, False),
    "for good": ((None, None), {}, {"source_retention_seconds": None}, 999 * DAY, True, True),
    "the account's": ((30, 2), {}, {}, 60, False, True),
    "the account's days, over": ((None, 0), {}, {}, 60, False, False),
    "the job's over the account's": ((0, 0), {"sourceSeconds": 90, "resultDays": 1}, {}, 60,
                                     True, True),
    "down to zero": ((None, None), {"sourceSeconds": 0, "resultDays": 0}, {}, 1, False, False),
    "not beyond the most": ((90, 9), {}, {"source_retention_seconds": 9, "result_retention_days": 9,
                            "result_retention_max_days": 0}, 60, False, False),
    "beyond the service's where allowed": ((200_000, None), {}, {
        "source_retention_max_seconds": 300_000}, 150_000, True, True),
}  # fmt: skip


@every("case", KEPT.values(), ids=KEPT.keys())
def test_the_jobs_value_counts_else_the_accounts_else_the_services(
    api: RunningApi, customer: Customer, case: Any
) -> None:
    of_account, of_job, settings, seconds_ago, source, content = case
    retain(api, customer, *of_account)
    job_id = ended(api, customer, seconds_ago, retention=of_job)
    reap(api, **settings)
    assert (has_source(api, job_id), not is_erased(api, job_id)) == (source, content)


def test_a_job_is_not_erased_with_time_before_its_event_is_delivered(
    api: RunningApi, customer: Customer
) -> None:
    job_id = ended(
        api, customer, 1, callbackUrl="https://x.example.com/a", retention={"resultDays": 0}
    )
    owed = "UPDATE webhook_events SET status = :s, next_attempt_at = CASE WHEN :s = 'in_flight'" \
        " THEN now() END WHERE job_id = :id RETURNING id"  # fmt: skip
    assert api.sql(owed, s="in_flight", id=uuid.UUID(job_id))
    reap(api)
    assert not is_erased(api, job_id)
    assert api.sql(owed, s="failed", id=uuid.UUID(job_id))
    reap(api)
    assert is_erased(api, job_id)


@pytest.mark.parametrize("held", ["job", "account"])
def test_a_legal_hold_wins_over_erasing_and_over_time(
    api: RunningApi, customer: Customer, held: str
) -> None:
    job_id = ended(api, customer, DAY, retention={"sourceSeconds": 0, "resultDays": 0})
    row = (jobs, uuid.UUID(job_id)) if held == "job" else (accounts, customer.account_id)
    hold(api, *row)
    for method, path in (("POST", "erase"), ("DELETE", "people")):
        answer = api.client.request(method, f"/jobs/{job_id}/{path}", headers=customer.headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "LEGAL_HOLD")
    reap(api)
    assert (is_erased(api, job_id), has_source(api, job_id)) == (False, True)
    hold(api, *row, holds=False)
    reap(api)
    assert (is_erased(api, job_id), has_source(api, job_id)) == (True, False)


@pytest.mark.parametrize("held", ["job", "account"])
def test_a_legal_hold_that_is_placed_while_objects_are_removed_stops_it(
    api: RunningApi, customer: Customer, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    others = [ended(api, customer, DAY, retention={"sourceSeconds": 0}) for _ in range(3)]
    removed = list[str]()
    delete_prefix = FolderStore.delete_prefix

    def hold_the_rest(store: FolderStore, prefix: str) -> None:
        if not removed:
            removed.append(prefix.split("/")[1])
            rows = [(jobs, uuid.UUID(each)) for each in others if each not in removed]
            for row in rows if held == "job" else [(accounts, customer.account_id)]:
                hold(api, *row)
        delete_prefix(store, prefix)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "delete_prefix", hold_the_rest)
        reap(api)
    assert [each for each in others if not has_source(api, each)] == removed
    expire = "UPDATE jobs SET cleaning_after = now() WHERE cleaning_after IS NOT NULL RETURNING id"
    api.sql(expire)
    reap(api)
    assert [each for each in others if not has_source(api, each)] == removed
    for row in [(jobs, uuid.UUID(each)) for each in others] + [(accounts, customer.account_id)]:
        hold(api, *row, holds=False)
    api.sql(expire)
    reap(api)
    assert not any(has_source(api, each) for each in others)


def test_nothing_of_an_erased_account_is_left_but_its_books(
    api: RunningApi, customer: Customer, job: str
) -> None:
    running = created(api, customer, fileName=f"{MARKER}.mp4")
    fill(api.context.objects, job)
    endpoint = {"url": f"https://{MARKER}.example.com/all", "events": ["job.erased"]}
    made = api.client.post("/webhooks/endpoints", json=endpoint, headers=customer.headers)
    assert made.status_code == 201
    entries = "SELECT count(*) FROM ledger_entries WHERE account_id = :id"
    before = api.sql(entries, id=customer.account_id)
    hold(api, accounts, customer.account_id)

    def erase() -> bool:
        return api.transact(lambda c: cleaning.erase_account(c, customer.account_id))

    assert not erase()
    hold(api, accounts, customer.account_id, holds=False)
    assert erase()
    assert api.client.get("/quota", headers=customer.headers).status_code in {401, 403}
    reap(api)
    assert places_of(api, MARKER) == set()
    assert is_erased(api, running)
    assert not has_source(api, job)
    assert api.sql(entries, id=customer.account_id)[0][0] >= before[0][0]
    account = api.transact(lambda c: keys.get_account(c, str(customer.account_id)))
    assert (account.name, account.held_cents) == (f"erased-{customer.account_id}", 0)
