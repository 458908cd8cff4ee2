"""``vas keys`` and ``vas sessions``: an operator sees and takes back what opens an account."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app, user_sentence
from serve_app.cli.output import UsageError
from storage import cleaning, keys
from storage.history import publish_versions
from storage.jobs import lease_next
from storage.tables import jobs
from storage.types import StageName
from tests.serve_app.dashboard.test_dashboard_pages import link_token, visitor
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.tables import every


def run_vas(api: RunningApi, *words: object) -> Any:
    """What the command printed as JSON. Raises what it raises."""
    environment = {
        "VAS_DATABASE_URL": api.settings.database_url or "",
        "VAS_DATA_DIR": str(api.settings.data_dir),
        "VAS_SECRET_KEY": SECRET,
    }
    command = [*map(str, words), "--json"]
    result = CliRunner().invoke(app, command, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def status(api: RunningApi, customer: Customer) -> int:
    return api.client.get("/quota", headers=customer.headers).status_code


def test_a_key_that_is_revoked_opens_nothing_and_others_stay(
    api: RunningApi, customer: Customer
) -> None:
    spare = api.transact(lambda c: keys.create_key(c, customer.account_id))
    listed = run_vas(api, "keys", "list", customer.account_id)["keys"]
    assert [each["status"] for each in listed] == ["active", "active"]
    shown = {each["displayKey"]: each["id"] for each in listed}
    assert all(secret not in json.dumps(listed) for secret in (customer.key, spare.secret))
    leaked = shown[keys.display_key(customer.key[-4:])]
    assert run_vas(api, "keys", "revoke", leaked) == {"id": leaked, "status": "revoked"}
    assert status(api, customer) == 401
    assert status(api, Customer(customer.account_id, spare.secret)) == 200
    after = {
        each["id"]: each["status"]
        for each in run_vas(api, "keys", "list", customer.account_id)["keys"]
    }
    assert after == {leaked: "revoked", str(spare.id): "active"}
    for gone in (leaked, uuid.uuid4()):
        with pytest.raises(UsageError, match="There is no active key"):
            run_vas(api, "keys", "revoke", gone)


def test_an_operator_sets_retention_holds_and_erases(api: RunningApi, customer: Customer) -> None:
    name = api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name
    kept = run_vas(api, "accounts", "retain", name, "--source-seconds", 0, "--result-days", 7)
    assert (kept["sourceSeconds"], kept["resultDays"]) == (0, 7)
    assert run_vas(api, "accounts", "retain", name)["resultDays"] is None
    job = created(api, customer)
    assert run_vas(api, "legal-hold", job) == {"job": job, "legalHold": True}
    answer = api.client.post(f"/jobs/{job}/erase", headers=customer.headers)
    assert answer.json()["code"] == "LEGAL_HOLD"
    assert run_vas(api, "legal-hold", job, "--release") == {"job": job, "legalHold": False}
    assert run_vas(api, "legal-hold", name) == {"account": name, "legalHold": True}
    with pytest.raises(UsageError, match="legal hold"):
        run_vas(api, "accounts", "erase", name, "--yes")
    with pytest.raises(keys.AccountNotFoundError):
        run_vas(api, "legal-hold", uuid.uuid4())
    run_vas(api, "legal-hold", name, "--release")
    erased = run_vas(api, "accounts", "erase", name, "--yes")
    assert erased["name"] == f"erased-{customer.account_id}"
    assert erased["erasedAt"] is not None
    assert status(api, customer) == 401


def sign_in(client: httpx.Client, token: str) -> int:
    return client.post("/dashboard/sign-in", data={"token": token}).status_code


def test_all_sessions_and_links_of_one_account_end_and_no_others(
    api: RunningApi, customer: Customer
) -> None:
    other = api.customer()
    with visitor(api) as ours, visitor(api) as theirs:
        assert sign_in(ours, link_token(api, customer)) == 303
        assert sign_in(theirs, link_token(api, other)) == 303
        unused = link_token(api, customer)
        listed = run_vas(api, "sessions", "list", customer.account_id)["sessions"]
        assert [each["kind"] for each in listed] == ["session", "link"]
        assert run_vas(api, "sessions", "end", customer.account_id) == {"ended": 2}
        assert ours.get("/dashboard").headers["location"] == "/dashboard/sign-in?ended=1"
        assert sign_in(ours, unused) == 401
        assert theirs.get("/dashboard").status_code == 200
    assert run_vas(api, "sessions", "list", customer.account_id) == {"sessions": []}
    assert status(api, customer) == 200


def test_all_sessions_of_operators_end(api: RunningApi, customer: Customer) -> None:
    with visitor(api) as operator, visitor(api) as account:
        assert sign_in(operator, api.transact(keys.create_operator_link)) == 303
        assert sign_in(account, link_token(api, customer)) == 303
        unused = api.transact(keys.create_operator_link)
        listed = run_vas(api, "sessions", "list", "--operator")["sessions"]
        assert sorted(each["kind"] for each in listed) == ["link", "session"]
        assert run_vas(api, "sessions", "end", "--operator") == {"ended": 2}
        assert operator.get("/dashboard/operator").status_code == 303
        assert sign_in(operator, unused) == 401
        assert account.get("/dashboard").status_code == 200


@every("command", ["create", "list", "end"])
@every("whose", [(), ("studio", "--operator")], ids=["nobody", "both"])
def test_sessions_are_of_an_account_or_of_operators(
    api: RunningApi, command: str, whose: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match="one of both"):
        run_vas(api, "sessions", command, *whose)


@pytest.mark.parametrize("words", [("keys", "list"), ("sessions", "list"), ("sessions", "end")])
def test_an_account_that_is_not_there_is_named(api: RunningApi, words: tuple[str, ...]) -> None:
    with pytest.raises(keys.AccountNotFoundError) as refused:
        run_vas(api, *words, "nobody")
    assert user_sentence(refused.value) == "No account has that name or id. (nobody)"


def test_an_operator_sets_an_accounts_share_of_the_queue(
    api: RunningApi, customer: Customer
) -> None:
    name = api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name
    rules = ["--weight", 2.5, "--running", 1, "--priority", "normal"]
    shown = run_vas(api, "accounts", "queue", name, *rules)
    of_queue = (shown["queueWeight"], shown["maxRunningJobs"], shown["highestPriority"])
    assert of_queue == (2.5, 1, "normal")
    job_ids = [created(api, customer), created(api, customer)]
    places = [
        api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]["queuePosition"]
        for job_id in job_ids
    ]
    assert places[1] is None
    shown = run_vas(api, "accounts", "queue", name, "--running", 0)
    assert (shown["queueWeight"], shown["maxRunningJobs"]) == (2.5, None)
    admitted = api.client.get(f"/jobs/{job_ids[1]}", headers=customer.headers).json()["data"]
    assert admitted["queuePosition"] == places[0] + 1


def test_an_operator_runs_jobs_again_by_conditions(api: RunningApi, customer: Customer) -> None:
    name = api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name
    while api.transact(lambda c: lease_next(c, lease=timedelta(minutes=5))):
        pass
    job = created(api, customer)
    complete(api, job, [track(0)], [])
    made_with = {StageName.VISION: "1", StageName.TRANSCRIPT: "1"}
    api.transact(lambda c: publish_versions(c, made_with))
    where = ["--where", f"account={name}", "--where", "created-after=2026-01-01"]
    unchanged, gone, held = (created(api, customer) for _ in range(3))
    for other in (unchanged, gone, held):
        complete(api, other, [track(0)], [])
    made = "UPDATE stages SET made_with = '1' WHERE stage <> 'ingest' AND job_id = :id"
    cleaned = "UPDATE jobs SET cleaned_at = now() WHERE id = :id"
    api.sql(made, id=unchanged)
    api.sql(cleaned, id=gone)
    api.transact(lambda c: cleaning.set_legal_hold(c, jobs, uuid.UUID(held), holds=True))
    [row] = run_vas(api, "rerun", *where, "--dry-run")["jobs"]
    assert (row["jobId"], row["stages"], row["rerunJobId"]) == (job, "vision transcript", None)
    assert row["cents"] > 0
    rows = run_vas(api, "rerun", *where, f"--where=job={job}", "--stage", "vision", "--yes")["jobs"]
    [row] = rows
    assert row["stages"] == "vision"
    assert run_vas(api, "rerun", *where, "--dry-run")["jobs"] == []
    shown = api.client.get(f"/jobs/{row['rerunJobId']}", headers=customer.headers).json()["data"]
    assert (shown["rerunOf"], shown["state"]) == (job, "queued")
    assert run_vas(api, "rerun", "--where", f"job={uuid.uuid4()}", "--yes")["jobs"] == []


@pytest.mark.parametrize(
    "words",
    [
        ("--where", "owner=x"),
        ("--where", "account="),
        ("--where", "account=a", "--where", "account=b"),
        ("--where", "created-after=yesterday"),
        ("--where", "account=a", "--stage", "ingest"),
    ],
    ids=" ".join,
)
def test_conditions_of_a_rerun_that_are_none_are_refused(
    api: RunningApi, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=r"--where|--stage"):
        run_vas(api, "rerun", *words)
