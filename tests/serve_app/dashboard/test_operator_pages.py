"""The operator's pages over HTTP: who gets in, what each shows, and how much it reads for that."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection
from typer.testing import CliRunner

from models.registry import REGISTRY
from serve_app.cli.main import app
from serve_app.cli.output import UsageError
from serve_app.dashboard.operators import served_models
from storage import audit, keys, metrics
from tests.databases import fresh_database
from tests.serve_app.dashboard.test_dashboard_pages import HOSTILE, csrf, link_token, visitor
from tests.serve_app.published_jobs import complete, created, fail, lease_of, track
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.tables import every

PAGES = ("", "/accounts", "/throughput", "/failures", "/system")
SUSPEND = "/dashboard/operator/accounts/{}/suspend"


@pytest.fixture
def operator(api: RunningApi) -> Iterator[httpx.Client]:
    """A client that is signed in as the operator."""
    with visitor(api) as client:
        token = api.transact(keys.create_operator_link)
        answer = client.post("/dashboard/sign-in", data={"token": token})
        assert answer.headers["location"] == "/dashboard/operator"
        yield client


def test_the_operators_link_signs_in_once_and_not_for_long(api: RunningApi) -> None:
    token = api.transact(keys.create_operator_link)
    with visitor(api) as client:
        assert client.get("/dashboard/sign-in", params={"token": token}).status_code == 200
        answer = client.post("/dashboard/sign-in", data={"token": token})
        cookie = set(answer.headers["set-cookie"].split("; "))
        assert {"HttpOnly", "Path=/dashboard/operator", "SameSite=strict"} <= cookie
        assert "Max-Age=14400" in cookie
        assert client.get("/dashboard/operator").status_code == 200
        assert client.post("/dashboard/sign-in", data={"token": token}).status_code == 401
        api.sql("UPDATE operator_sessions SET expires_at = now()")
        ended = client.get("/dashboard/operator")
        assert ended.headers["location"] == "/dashboard/sign-in?ended=operator"
        assert "vas sessions create --operator" in client.get(ended.headers["location"]).text
    late = api.transact(keys.create_operator_link)
    api.sql("UPDATE operator_sessions SET link_expires_at = now()")
    with visitor(api) as client:
        assert client.post("/dashboard/sign-in", data={"token": late}).status_code == 401
    api.transact(keys.forget_old_sign_ins)
    assert api.sql("SELECT count(*) FROM operator_sessions") == [(0,)]


def test_an_operators_session_opens_nothing_of_an_account(
    api: RunningApi, operator: httpx.Client
) -> None:
    session = operator.cookies["vas_operator"]
    token = api.transact(keys.create_operator_link)
    assert api.client.post("/sessions", json={"token": token}).status_code == 401
    for path in ("/keys", "/jobs", "/webhooks/secret"):
        for headers in ({"Authorization": f"Bearer {session}"}, {"X-API-Key": session}):
            assert api.client.get(path, headers=headers).status_code == 401
    forged = csrf(operator.get("/dashboard/operator"))
    with visitor(api) as client:
        client.cookies.set("vas_session", session)
        for path in ("/dashboard", "/dashboard/account", "/dashboard/keys", "/dashboard/nothing"):
            there = client.get(path).headers["location"]
            assert there.startswith("/dashboard/sign-in?ended=1")
        assert client.get("/dashboard/api/jobs").status_code == 401
        headers = {"X-CSRF-Token": forged}
        made = client.post("/dashboard/api/jobs", json={"fileName": "a.mp4"}, headers=headers)
        assert made.status_code == 401
    assert operator.get("/dashboard").status_code == 303  # the cookie is not sent there


def test_to_accounts_the_operators_pages_are_not_there(api: RunningApi, customer: Customer) -> None:
    with visitor(api) as client:
        client.post("/dashboard/sign-in", data={"token": link_token(api, customer)})
        missing = without_token(client.get("/dashboard/nothing"))
        for path in (*PAGES, "/nothing"):
            answer = client.get(f"/dashboard/operator{path}")
            assert (answer.status_code, without_token(answer)) == (404, missing)
        form = {"csrf": csrf(client.get("/dashboard"))}
        for path in (SUSPEND.format(customer.account_id), "/dashboard/operator/sign-out"):
            assert client.post(path, data=form).status_code == 404
        client.cookies.set("vas_operator", client.cookies["vas_session"])
        assert client.get("/dashboard/operator").status_code == 404
    assert api.client.get("/quota", headers=customer.headers).status_code == 200


def without_token(answer: httpx.Response) -> str:
    return re.sub(r"[\w-]+\.[0-9a-f]{64}", "", answer.text)


@every("path", [*PAGES, "/nothing"])
def test_who_is_not_signed_in_comes_to_the_sign_in_page(api: RunningApi, path: str) -> None:
    with visitor(api) as client:
        answer = client.get(f"/dashboard/operator{path}")
        there = f"/dashboard/sign-in#/dashboard/operator{path}"
        assert (answer.status_code, answer.headers["location"]) == (303, there)
        client.cookies.set("vas_operator", "vas_oper_" + "x" * 43)
        again = client.get(f"/dashboard/operator{path}")
        assert again.headers["location"] == "/dashboard/sign-in?ended=operator"


def test_signing_out_ends_the_operators_session_everywhere(
    api: RunningApi, operator: httpx.Client
) -> None:
    session = operator.cookies["vas_operator"]
    form = {"csrf": csrf(operator.get("/dashboard/operator"))}
    answer = operator.post("/dashboard/operator/sign-out", data=form)
    assert answer.headers["location"] == "/dashboard/sign-in?ended=operator-out"
    assert "vas_operator" not in operator.cookies
    with visitor(api) as client:
        client.cookies.set("vas_operator", session)
        assert client.get("/dashboard/operator").status_code == 303


@pytest.mark.parametrize("forged", ["no token", "an account's", "cross-site", "origin"])
def test_a_change_that_no_page_of_the_operator_sent_is_refused(
    api: RunningApi, customer: Customer, operator: httpx.Client, forged: str
) -> None:
    form, headers = {"csrf": csrf(operator.get("/dashboard/operator"))}, {}
    if forged == "no token":
        form = {"csrf": ""}
    elif forged == "an account's":
        with visitor(api) as other:
            other.post("/dashboard/sign-in", data={"token": link_token(api, customer)})
            form = {"csrf": csrf(other.get("/dashboard"))}
    elif forged == "cross-site":
        headers = {"Sec-Fetch-Site": "cross-site"}
    else:
        headers = {"Origin": "https://evil.example"}
    for path in (SUSPEND.format(customer.account_id), "/dashboard/operator/sign-out"):
        assert operator.post(path, data=form, headers=headers).status_code == 403
    assert operator.get("/dashboard/operator").status_code == 200  # still signed in
    assert api.client.get("/quota", headers=customer.headers).status_code == 200


def test_the_queue_shows_what_waits_and_what_runs(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    empty = operator.get("/dashboard/operator").text
    assert "No jobs are queued." in empty
    assert "No jobs are running." in empty
    first, second = created(api, customer), created(api, customer)
    lease = api.transact(lambda c: lease_of(c, first))
    shown = operator.get("/dashboard/operator").text
    at_work, waiting = shown.partition("<h2>Running</h2>")[2].split("Next in line")
    assert first in at_work
    assert second in waiting
    name = api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name
    assert name in at_work
    assert re.search(r"<dt>Queued, the oldest for \d+ s</dt><dd>1</dd>", shown)
    assert shown.count("clip.mp4<br>") == 2
    form = {"csrf": csrf(operator.get("/dashboard/operator"))}
    path = f"/dashboard/operator/jobs/{second}/priority"
    assert operator.post(path, data=form | {"priority": "soon"}).status_code == 400
    assert operator.post(path, data=form | {"priority": "high"}).status_code == 303
    answer = api.client.get(f"/jobs/{second}", headers=customer.headers)
    assert answer.json()["data"]["priority"] == "high"
    for job_id, status in ((first, 303), (second, 303), (second, 409), (uuid.uuid4(), 404)):
        path = f"/dashboard/operator/jobs/{job_id}/cancel"
        assert operator.post(path).status_code in {400, 403}
        assert operator.post(path, data=form).status_code == status
    entries = api.transact(lambda c: audit.list_entries(c, uuid.UUID(str(customer.account_id))))
    cancelled = [(str(it.job_id), it.actor_kind) for it in entries if it.action == "cancelJob"]
    assert cancelled == [(first, "operator"), (second, "operator")]
    assert lease.job_id == uuid.UUID(first)


def test_an_account_is_suspended_and_resumed(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    account = api.transact(lambda c: keys.get_account(c, str(customer.account_id)))
    job_id = created(api, customer)
    here = {"first": account.name}
    line = row_of(operator.get("/dashboard/operator/accounts", params=here), account.name)
    assert line[1:6] == ["Active", "$10.00", "$0.02", "1", "1"]
    form = here | {"csrf": csrf(operator.get("/dashboard/operator"))}
    answer = operator.post(SUSPEND.format(account.id), data=form)
    assert answer.headers["location"] == f"/dashboard/operator/accounts?first={account.name}"
    assert row_of(operator.get(answer.headers["location"]), account.name)[1] == "Suspended"
    assert api.client.get("/quota", headers=customer.headers).status_code == 403
    operator.post(SUSPEND.format(account.id).replace("suspend", "resume"), data=form)
    assert api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers).status_code == 200
    assert operator.post(SUSPEND.format(uuid.uuid4()), data=form).status_code == 404
    assert operator.post(SUSPEND.format("x"), data=form).status_code == 404


def row_of(answer: httpx.Response, name: str) -> list[str]:
    """The texts of the cells of an account's row."""
    [row] = re.findall(rf"<tr><th scope=\"row\">{name}</th>.*?</tr>", answer.text, re.S)
    cells = re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S)
    return [re.sub(r"<.*?>", "", cell).strip() for cell in cells]


def test_accounts_are_listed_page_by_page(api: RunningApi, operator: httpx.Client) -> None:
    async def make(connection: AsyncConnection) -> None:
        for number in range(60):
            await keys.create_account(connection, f"~{number:03}")

    api.transact(make)
    page = operator.get("/dashboard/operator/accounts", params={"first": "~000"})
    [following] = re.findall(r'href="(\?first=[^"]+)"', page.text)
    assert unescape(following) == "?first=~050"
    rest = operator.get(f"/dashboard/operator/accounts{following}")
    assert len(re.findall(r'<th scope="row">~', rest.text)) == 10
    assert "More accounts" not in rest.text
    beyond = operator.get("/dashboard/operator/accounts", params={"first": "~~~~"})
    assert "No account has a name from there on." in beyond.text
    assert operator.get("/dashboard/operator/accounts?first=%00").status_code == 400


def test_failures_name_job_account_stage_code_and_message(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    job_id = created(api, customer)
    fail(api, job_id)
    page = unescape(operator.get("/dashboard/operator/failures").text)
    row = next(each for each in page.split("<tr>") if job_id in each)
    assert "Ingest" in row
    assert "FETCH_FAILED" in row
    assert "The source answered 404." in row
    api.sql("UPDATE jobs SET completed_at = now() - interval '25 hours' WHERE state = 'failed'")
    assert "No job failed." in operator.get("/dashboard/operator/failures").text


def test_throughput_is_media_against_time_at_work(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    api.sql("UPDATE stages SET started_at = ended_at - interval '10 seconds'"
            " WHERE stage = 'vision' AND status = 'completed'")  # fmt: skip
    page = operator.get("/dashboard/operator/throughput").text
    [row] = re.findall(r'<tr><th scope="row">Vision</th>.*?</tr>', page, re.S)
    assert re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) == [
        "1", "1 min 35 s", "0 min 10 s", "9.5 s", "0 min 10 s", "0 min 10 s",
    ]  # fmt: skip


def test_curves_have_what_waited_and_ended_when(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    """The demo of 95.2 s: it waited for five minutes, half an hour ago, and completed in one."""
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    api.sql("UPDATE jobs SET completed_at = now() - interval '9 days', created_at = now() -"
            " interval '9 days' WHERE completed_at IS NOT NULL")  # fmt: skip
    statement = text(
        "UPDATE jobs SET created_at = now() - interval '36 minutes', started_at = now()"
        " - interval '31 minutes', completed_at = now() - interval '30.2 minutes' WHERE id = :id"
    )
    api.transact(lambda connection: connection.execute(statement, {"id": job_id}))

    async def read(connection: AsyncConnection) -> dict[str, list[float]]:
        return await metrics.list_activity(connection, 1)

    curves = api.transact(read)
    assert len(curves["waiting"]) == metrics.INTERVALS == 48
    of_75_seconds = [at for at, count in enumerate(curves["completed"]) if count]
    assert of_75_seconds == [23]
    assert curves["media_seconds"][23] == pytest.approx(95.2)
    others = curves["waiting"][10]
    assert [each - others for each in curves["waiting"][18:24]] == [0, 1, 1, 1, 1, 0]
    page = operator.get("/dashboard/operator/throughput?hours=168").text
    assert page.count("<polyline") == 4
    assert 'aria-current="true">Week' in page


def test_models_of_every_profile_have_weights_a_use_and_a_place() -> None:
    for profile, entries in REGISTRY.items():
        shown = list(served_models(profile, None))
        uses = {each.task: each.use for each in shown}
        assert uses["describe_scenes"] == "vision"
        assert {uses.get(each, "search") for each in ("embed_text", "embed_pictures")} == {"search"}
        assert [each.task for each in shown] == [task.name for task in entries]
        assert all(each.weights and each.place for each in shown)
    assert list(served_models("auto", None)) == []


def test_the_system_page_says_where_nodes_are_seen(api: RunningApi, operator: httpx.Client) -> None:
    page = operator.get("/dashboard/operator/system").text
    assert page.count("Works") == 4
    assert "VAS_RAY_DASHBOARD_URL" in page
    assert "//" not in re.sub(r"<(link|script|img)[^>]*>", "", page).replace("<!doctype", "")
    places = {"ray_dashboard_url": "https://ray.example", "grafana_url": "https://g.example/d/1"}
    for name, url in places.items():
        object.__setattr__(api.context.settings, name, url)
    try:
        page = operator.get("/dashboard/operator/system").text
    finally:
        for name in places:
            object.__setattr__(api.context.settings, name, None)
    for url in places.values():
        assert f'<a href="{url}" rel="noreferrer">' in page
    assert "VAS_RAY_DASHBOARD_URL" not in page


def test_markup_of_customers_is_text_to_the_operator(
    api: RunningApi, customer: Customer, operator: httpx.Client
) -> None:
    job_id = created(api, customer)
    fail(api, job_id)
    renamed = "UPDATE accounts SET name = :text WHERE id = :id"
    api.sql(renamed, text=HOSTILE, id=customer.account_id)
    told = "UPDATE stages SET error_message = :text WHERE job_id = :id AND status = 'failed'"
    api.sql(told, text=HOSTILE, id=uuid.UUID(job_id))
    for path in ("/failures", "/accounts"):
        page = operator.get(f"/dashboard/operator{path}").text
        assert "<img src=x" not in page
        assert "&lt;img src=x" in page


QUERIES: dict[str, tuple[TextClause, dict[str, Any]]] = {
    "open": (metrics._OPEN_JOBS, {}),
    "leased": (metrics._LEASED_JOBS, {"most": 1}),
    "waiting": (metrics._WAITING_JOBS, {"most": 1}),
    "accounts": (
        metrics._ACCOUNTS, {"first": "", "since": "2026-01-01", "most": 1, "most_counted": 1},
    ),
    "work": (metrics._STAGE_WORK, {"most": 1}),
    "failed": (metrics._FAILED_JOBS, {"most": 1}),
    "codes": (metrics._FAILED_CODES, {"most": 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def large_database(postgres_url: str) -> Iterator[str]:
    """With 50,000 jobs that ended over the last 500 days, and nothing else."""
    with fresh_database(postgres_url) as url:
        with psycopg.connect(url) as connection:
            fill(connection)
        yield url


@every("name", QUERIES)
def test_no_page_reads_all_jobs(large_database: str, name: str) -> None:
    query, values = QUERIES[name]
    with psycopg.connect(large_database) as connection:
        sql = re.sub(r"(?<!:):(\w+)", r"%(\1)s", str(query))
        [(plan,)] = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values).fetchall()
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") in LARGE]
    assert scans
    assert [node["Node Type"] for node in scans if node["Node Type"] == "Seq Scan"] == []
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) < 100


LARGE = ("jobs", "stages")


def fill(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    account = uuid.uuid4()
    connection.execute("INSERT INTO accounts (id, name) VALUES (%s, 'old')", [account])
    connection.execute(
        "INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source,"
        " created_at, completed_at, error_code)"
        " SELECT gen_random_uuid(), %s, CASE WHEN n %% 2 = 0 THEN 'completed' ELSE 'failed' END,"
        " 'all', 'standard', 'a.mp4', '{}', ended - interval '1 minute', ended,"
        " CASE WHEN n %% 2 = 1 THEN 'FETCH_FAILED' END"
        " FROM (SELECT n, now() - n * interval '14.4 minutes' AS ended"
        " FROM generate_series(200, 50000) AS n) AS numbered",
        [account],
    )
    connection.execute(
        "INSERT INTO stages (job_id, stage, status, error_code)"
        " SELECT id, 'ingest', CASE WHEN error_code IS NULL THEN 'completed' ELSE 'failed' END,"
        " error_code FROM jobs"
    )
    connection.execute("ANALYZE jobs, stages")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def test_the_command_makes_a_link_for_an_account_or_for_the_operator(
    api: RunningApi, customer: Customer
) -> None:
    environment = {"VAS_DATABASE_URL": api.settings.database_url, "VAS_SECRET_KEY": SECRET}
    name = api.transact(lambda c: keys.get_account(c, str(customer.account_id))).name

    def run(*words: str) -> dict[str, str]:
        data = str(api.settings.data_dir)
        command = ["sessions", "create", *words, "--json", "--data", data]
        result = CliRunner().invoke(app, command, env=environment)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        made: dict[str, str] = json.loads(result.stdout)
        return made

    for words, target in (([name], "/dashboard"), (["--operator"], "/dashboard/operator")):
        token = run(*words)["signInUrl"].partition("token=")[2]
        with visitor(api) as client:
            answer = client.post("/dashboard/sign-in", data={"token": token})
            assert answer.headers["location"] == target
    for wrong in ([], [name, "--operator"]):
        with pytest.raises(UsageError, match="Name an account, or give --operator"):
            run(*wrong)
