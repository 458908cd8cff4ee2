"""Invitations, roles, sessions and keys of an account's people, by the dashboard's own forms."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app
from storage import audit, cleaning, keys, people
from storage.database import Connection
from storage.types import Role
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.runner_side import FOOTAGE, RunnerSide
from tests.security.test_roles import Person, join
from tests.tables import every


@pytest.fixture
def caller(api: ContractApi) -> Caller:
    return api.caller()


@pytest.fixture
def owner(caller: Caller) -> Person:
    return join(caller, Role.OWNER)


@pytest.fixture(autouse=True)
def fresh_rates(api: ContractApi) -> Iterator[None]:
    yield
    api.sql("DELETE FROM rate_limits")


def actions(caller: Caller) -> list[str]:
    account_id = caller.customer.account_id
    entries = caller.api.transact(lambda c: audit.list_entries(c, account_id))
    return [each.action for each in entries]


def linked(page: httpx.Response, name: str) -> str:
    """The token of the link that a page shows once."""
    assert page.status_code == 200, page.text
    [token] = re.findall(rf'<code id="new-link">[^<]+\?{name}=([^<]+)</code>', page.text)
    return unescape(str(token))


def visit(api: ContractApi, path: str, **form: str) -> httpx.Response:
    """A form of somebody who is not signed in, or without one a page."""
    url = f"{api.root}/dashboard{path}"
    if not form:
        return httpx.get(url, trust_env=False, timeout=60)
    return httpx.post(url, data=form, trust_env=False, timeout=60)


def test_an_invitation_makes_a_user_once(api: ContractApi, owner: Person) -> None:
    token = linked(
        owner.post("/invitations", email="Anna@Example.com", role="editor"), "invitation"
    )
    page = visit(api, f"/sign-in?invitation={token}")
    assert "anna@example.com is invited as editor" in page.text  # a preview uses nothing up
    answer = visit(api, "/invitation", invitation=token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    assert "HttpOnly" in answer.headers["set-cookie"]
    before = actions(owner.caller)
    for again in (
        visit(api, "/invitation", invitation=token),
        visit(api, f"/sign-in?invitation={token}"),
    ):
        assert again.status_code == 404
        assert "set-cookie" not in again.headers
        assert "was used or withdrawn" in again.text
    assert actions(owner.caller) == before
    account_id = owner.caller.customer.account_id
    found = api.transact(lambda c: people.find_user(c, account_id, "anna@example.com"))
    assert found is not None
    assert found.role is Role.EDITOR


def test_an_invitation_used_by_two_at_once_makes_one_user(api: ContractApi, owner: Person) -> None:
    token = linked(owner.post("/invitations", email="b@example.com", role="viewer"), "invitation")
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: visit(api, "/invitation", invitation=token), range(4)))
    assert sorted(each.status_code for each in answers) == [303, 404, 404, 404]


VOID: dict[str, Callable[[Person, str], object]] = {
    "expired": lambda owner, _: owner.caller.api.sql("UPDATE invitations SET expires_at = now()"),
    "withdrawn": lambda owner, _: owner.post(
        f"/invitations/{invitation_of(owner, 'void@example.com')}/withdraw"
    ),
    "replaced": lambda owner, _: owner.post(
        "/invitations", email="void@example.com", role="viewer"
    ),
}


def invitation_of(owner: Person, email: str) -> uuid.UUID:
    account_id = owner.caller.customer.account_id
    found = owner.caller.api.transact(lambda c: people.list_invitations(c, account_id))
    return next(each.id for each in found if each.email == email)


@pytest.mark.parametrize("how", VOID)
def test_a_void_invitation_opens_nothing(api: ContractApi, owner: Person, how: str) -> None:
    page = owner.post("/invitations", email="void@example.com", role="owner")
    token = linked(page, "invitation")
    VOID[how](owner, token)
    assert visit(api, "/invitation", invitation=token).status_code == 404
    account_id = owner.caller.customer.account_id
    assert api.transact(lambda c: people.find_user(c, account_id, "void@example.com")) is None


WRONG = {
    "no address": {"email": "nobody", "role": "viewer"},
    "two addresses": {"email": "a@example.com, b@example.com", "role": "viewer"},
    "markup": {"email": "<b>@example.com", "role": "viewer"},
    "no role": {"email": "a@example.com", "role": "god"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_who_cannot_be_invited_is_refused(owner: Person, wrong: str) -> None:
    before = actions(owner.caller)
    assert owner.post("/invitations", **WRONG[wrong]).status_code == 400
    assert actions(owner.caller) == before


def test_somebody_is_invited_once(owner: Person) -> None:
    member = join(owner.caller, Role.VIEWER)
    account_id = owner.caller.customer.account_id
    users = owner.caller.api.transact(lambda c: people.list_users(c, account_id))
    email = next(each.email for each in users if each.id == member.user_id)
    assert owner.post("/invitations", email=email.upper(), role="owner").status_code == 400


def test_an_account_has_so_many_people(owner: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "MOST_PEOPLE", 2)
    assert owner.post("/invitations", email="c@example.com", role="viewer").status_code == 200
    assert owner.post("/invitations", email="d@example.com", role="viewer").status_code == 400


@pytest.mark.parametrize("form", [{"role": "editor"}, {}], ids=["another role", "removed"])
def test_the_last_owner_stays(owner: Person, form: dict[str, str]) -> None:
    join(owner.caller, Role.EDITOR)
    before = actions(owner.caller)
    path = f"/people/{owner.user_id}/{'role' if form else 'remove'}"
    answer = owner.post(path, **form)
    assert answer.status_code == 409
    assert "without an owner" in answer.text
    assert actions(owner.caller) == before
    assert owner.get("/people").status_code == 200


def test_owners_who_remove_each_other_at_once_leave_one(owner: Person) -> None:
    other, account_id = join(owner.caller, Role.OWNER), owner.caller.customer.account_id
    # Read before: whoever is removed first gets no page any more to read a token from.
    removals = [(one, two, one.csrf()) for one, two in ((owner, other), (other, owner))]
    with ThreadPoolExecutor(2) as threads:
        list(
            threads.map(
                lambda it: it[0].post(f"/people/{it[1].user_id}/remove", csrf=it[2]), removals
            )
        )
    left = owner.caller.api.transact(lambda c: people.list_users(c, account_id))
    assert [each.role for each in left] == [Role.OWNER]


def test_a_session_is_listed_and_ended(owner: Person) -> None:
    member = join(owner.caller, Role.VIEWER)
    assert member.get("").status_code == 200
    account_id = owner.caller.customer.account_id
    found = owner.caller.api.transact(lambda c: people.list_sessions(c, account_id))
    [theirs] = [each for each in found if each.user_id == member.user_id]
    assert str(theirs.id) in owner.get("/people").text
    assert owner.post(f"/sessions/{theirs.id}/end").status_code == 303
    assert member.get("").headers["location"] == "/dashboard/sign-in?ended=1"
    assert owner.post(f"/sessions/{theirs.id}/end").status_code == 404


def test_a_link_for_a_user_signs_in_as_that_user(api: ContractApi, owner: Person) -> None:
    member = join(owner.caller, Role.VIEWER)
    token = linked(owner.post(f"/people/{member.user_id}/link"), "token")
    session = shown(api.client.post("/sessions", json={"token": token}))["session"]
    answer = api.client.get("/audit", headers={"Authorization": f"Bearer {session}"})
    refusal(answer, 403, "ROLE_NOT_ALLOWED", role="viewer")


def test_what_is_anothers_is_not_there(api: ContractApi, owner: Person) -> None:
    stranger = join(api.caller(), Role.OWNER)
    page = stranger.post("/invitations", email="e@example.com", role="viewer")
    linked(page, "invitation")
    sessions = api.transact(lambda c: people.list_sessions(c, stranger.caller.customer.account_id))
    [key] = api.transact(lambda c: keys.list_keys(c, stranger.caller.customer.account_id))
    for path, form in (
        (f"/people/{stranger.user_id}/role", {"role": "viewer"}),
        (f"/people/{stranger.user_id}/remove", {}),
        (f"/people/{stranger.user_id}/link", {}),
        (f"/invitations/{invitation_of(stranger, 'e@example.com')}/withdraw", {}),
        (f"/sessions/{sessions[0].id}/end", {}),
        (f"/keys/{key.id}/revoke", {}),
    ):
        assert owner.post(path, **form).status_code == 404, path
    assert stranger.get("/people").status_code == 200


def test_the_audit_log_names_who_did_it(owner: Person) -> None:
    member = join(owner.caller, Role.VIEWER)
    assert owner.post(f"/people/{member.user_id}/role", role="biller").status_code == 303
    page = owner.get("/audit").text
    assert "changeRole" in page
    assert "from=viewer role=biller" in page
    assert "owner-" in page
    export = owner.get("/audit/export")
    last = json.loads(export.text.splitlines()[-1])
    assert last["actor"] == {"kind": "user", "id": str(owner.user_id)}
    assert last["target"] == str(member.user_id)


def new_key(page: httpx.Response) -> str:
    assert page.status_code == 200, page.text
    [secret] = re.findall(r'<code id="new-key">([^<]+)</code>', page.text)
    return str(secret)


def with_key(api: ContractApi, key: str, **body: Any) -> httpx.Response:
    return api.client.post("/jobs", json={"fileName": "a.mp4"} | body, headers={"X-API-Key": key})


def test_a_key_carries_who_made_it_and_outlives_them(api: ContractApi, owner: Person) -> None:
    maker, account_id = join(owner.caller, Role.OWNER), owner.caller.customer.account_id
    key = new_key(maker.post("/keys", days="30"))
    found = api.transact(lambda c: keys.list_keys(c, account_id))[0]
    users = api.transact(lambda c: people.list_users(c, account_id))
    assert found.made_by == next(each.email for each in users if each.id == maker.user_id)
    assert found.expires_at is not None
    assert owner.post(f"/people/{maker.user_id}/remove").status_code == 303
    assert with_key(api, key).status_code == 201
    assert found.made_by in owner.get("/keys").text
    assert owner.post(f"/keys/{found.id}/revoke").status_code == 303
    assert with_key(api, key).status_code == 401


@every("field", ["days", "dollars", "active_jobs"])
@every("value", ["0", "-1", "1.5", "many", "9" * 12])
def test_terms_of_a_key_are_whole_numbers_within_bounds(
    owner: Person, field: str, value: str
) -> None:
    assert owner.post("/keys", **{field: value}).status_code == 400


def test_an_account_has_so_many_keys(owner: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 2)  # one is there
    new_key(owner.post("/keys"))
    assert owner.post("/keys").status_code == 400


def test_a_key_has_so_many_jobs_at_once_and_rotating_does_not_make_more(
    api: ContractApi, owner: Person
) -> None:
    key, account_id = (
        new_key(owner.post("/keys", active_jobs="2")),
        owner.caller.customer.account_id,
    )
    first = shown(with_key(api, key))["jobId"]
    shown(with_key(api, key))
    refusal(
        with_key(api, key), 429, "TOO_MANY_ACTIVE_JOBS", retry_after="30", maxActiveJobs=2,
        activeJobs=2,
    )  # fmt: skip
    owner.caller.create()  # another key of the account goes on
    [capped] = [
        each
        for each in api.transact(lambda c: keys.list_keys(c, account_id))
        if each.max_active_jobs
    ]
    rotated = new_key(owner.post(f"/keys/{capped.id}/rotate"))
    assert with_key(api, rotated).status_code == 429
    api.client.post(f"/jobs/{first}/cancel", headers={"X-API-Key": rotated})
    assert with_key(api, rotated).status_code == 201


def test_jobs_of_a_key_cost_at_most_its_cap_in_a_month(
    api: ContractApi, owner: Person, runner: RunnerSide
) -> None:
    """The minimum at creation, the rest once the length is known."""
    caller = owner.caller
    key = new_key(owner.post("/keys", dollars="1"))
    job = shown(with_key(api, key))
    runner.upload(job)
    lease = runner.lease(job["jobId"])
    runner.fail_unpayable(lease)  # an hour is a dollar and sixty cents; the account has ten
    refused = caller.job(job["jobId"])
    assert refused["error"]["code"] == "INSUFFICIENT_CREDITS"
    assert refused["chargedCents"] == 0
    short = shown(with_key(api, key))
    runner.upload(short)
    runner.ingest(runner.lease(short["jobId"]), FOOTAGE)
    held = api.sql("SELECT held_cents FROM jobs WHERE id = :id", id=short["jobId"])[0][0]
    api.sql(
        "UPDATE api_keys SET max_monthly_cents = :held WHERE max_monthly_cents = 100", held=held
    )
    answer = with_key(api, key)
    refusal(answer, 402, "INSUFFICIENT_CREDITS")
    assert "what the key may use in a month" in answer.json()["error"]
    assert caller.create()["state"] == "awaiting_upload"
    api.sql("UPDATE jobs SET created_at = created_at - interval '32 days' WHERE id = :id",
            id=short["jobId"])  # fmt: skip
    assert with_key(api, key).status_code == 201


def test_an_erased_account_keeps_no_address_of_its_people(owner: Person) -> None:
    caller, account_id = owner.caller, owner.caller.customer.account_id
    owner.post("/invitations", email="zebrafish@example.com", role="viewer")
    member = join(caller, Role.VIEWER)

    async def erase(connection: Connection) -> None:
        await people.remove_user(connection, account_id, member.user_id)
        assert await cleaning.erase_account(connection, account_id)

    caller.api.transact(erase)
    for table in ("users", "invitations", "sessions", "audit_log"):
        query = f"SELECT t::text FROM {table} AS t WHERE account_id = :id"  # noqa: S608
        rows = caller.api.sql(query, id=account_id)
        text = "\n".join(row for (row,) in rows)
        assert "example.com" not in text, table
        assert "127.0.0.1" not in text, table
    assert owner.get("/people").headers["location"].startswith("/dashboard/sign-in")


def test_the_operator_manages_people_from_the_command_line(
    api: ContractApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VAS_DATABASE_URL", api.settings.database_url or "")
    monkeypatch.setenv("VAS_SECRET_KEY", api.settings.secret_key.get_secret_value())
    monkeypatch.chdir(tmp_path)

    def vas(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.output)

    name = f"team-{uuid.uuid4()}"
    vas("accounts", "create", name)
    link = vas("users", "invite", name, "first@example.com")["invitationUrl"]
    visit(api, "/invitation", invitation=link.partition("?invitation=")[2])
    vas("users", "invite", name, "second@example.com", "--role", "viewer")
    listed = vas("users", "list", name)
    assert [each["role"] for each in listed["users"]] == ["owner"]
    [invited] = listed["invitations"]
    assert (invited["email"], invited["role"]) == ("second@example.com", "viewer")
    shown = CliRunner().invoke(app, ["users", "list", name]).stdout
    assert invited["expiresAt"] in shown
    for words in (
        ("role", name, "first@example.com", "viewer"),
        ("remove", name, "first@example.com"),
    ):
        refused = CliRunner().invoke(app, ["users", *words])
        assert "only owner" in str(refused.exception)
    made = vas("sessions", "create", name, "--user", "first@example.com")
    assert made["expiresInSeconds"] == 900
    body = {"token": made["token"]}
    assert api.client.post("/sessions", json=body).status_code == 201
    key = vas("keys", "create", name, "--days", "3", "--active-jobs", "1")
    [listed] = vas("keys", "list", name)["keys"]
    assert (listed["id"], listed["maxActiveJobs"]) == (key["id"], 1)
