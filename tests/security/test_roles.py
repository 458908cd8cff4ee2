"""Who may do what: every operation of the interface document and every page of the dashboard, for
every role."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from serve_app.api.authentication import OPERATIONS, PAGES, Auth
from serve_app.dashboard.access import OperatorRoute, PageRoute
from serve_app.dashboard.routes import ROUTERS
from storage import people
from storage.database import Connection
from storage.types import Role
from tests.contract.calling import Caller, ContractApi
from tests.contract.runner_side import RunnerSide
from tests.security.test_audit import state_of
from tests.serve_app.interface_contract import OPERATIONS as DOCUMENTED

READ = [
    "listJobs",
    "getJob",
    "getScenes",
    "getTranscript",
    "listAudioTracks",
    "getAudioTrack",
    "getChapters",
    "getSummary",
    "getPeople",
    "getClip",
    "exportJob",
    "search",
    "listTranscriptRevisions",
    "listTranslations",
    "getTranslation",
    "lintCaptions",
    "streamJobEvents",
    "listVoices",
    "listWebhookDeliveries",
    "getReceipt",
    "getReview",
    "compareJobs",
    "getComparison",
    "listArchives",
    "getArchive",
    "listArchiveObjects",
    "listDuplicates",
    "listArchiveDuplicates",
    "getVocabulary",
    "ask",
    "listComments",
]
WRITE = [
    "createJob",
    "createJobFromUrl",
    "createBatch",
    "cancelJob",
    "cancelJobDeprecated",
    "changeJob",
    "eraseJob",
    "rerunJob",
    "redactJob",
    "editTranscript",
    "revertTranscript",
    "createTranslation",
    "nameSpeaker",
    "resetSpeaker",
    "nameVoice",
    "deleteVoice",
    "deletePeople",
    "createArchive",
    "changeArchive",
    "pauseArchive",
    "resumeArchive",
    "deleteArchive",
    "replaceVocabulary",
    "addComment",
    "changeComment",
    "deleteComment",
    "shareJob",
]
BILLING = ["getQuota", "getKeysPortal"]
OWNERS = [
    "listKeys",
    "rotateKey",
    "getWebhookSecret",
    "rotateWebhookSecret",
    "sendTestWebhook",
    "listWebhookEndpoints",
    "createWebhookEndpoint",
    "getWebhookEndpoint",
    "changeWebhookEndpoint",
    "deleteWebhookEndpoint",
    "rotateWebhookEndpoint",
    "listAuditLog",
]
ALLOWED = {
    Role.OWNER: {*READ, *WRITE, *BILLING, *OWNERS},
    Role.EDITOR: {*READ, *WRITE},
    Role.VIEWER: {*READ},
    Role.BILLER: {*BILLING},
}
READ_PAGES = [
    "get_jobs",
    "get_jobs_with_slash",
    "get_job",
    "get_captions",
    "get_changes",
    "get_part",
    "get_whole",
    "get_search",
    "get_archives",
    "get_compare",
    "get_vocabulary",
    "get_editors",
    "get_wave",
]
WRITE_PAGES = [
    "create_from_urls", "erase_job", "cancel_job", "change_archive", "change_vocabulary"
]  # fmt: skip
OWNER_PAGES = [
    "get_keys",
    "create_key",
    "rotate_key",
    "revoke_key",
    "rotate_webhook_secret",
    "add_endpoint",
    "delete_endpoint",
    "rotate_endpoint",
    "change_recognition",
    "get_people",
    "invite",
    "withdraw_invitation",
    "change_role",
    "remove_user",
    "make_link",
    "end_session",
    "get_audit",
    "export_audit",
]
ALLOWED_PAGES = {
    Role.OWNER: {*READ_PAGES, *WRITE_PAGES, "get_account", *OWNER_PAGES},
    Role.EDITOR: {*READ_PAGES, *WRITE_PAGES},
    Role.VIEWER: {*READ_PAGES},
    Role.BILLER: {"get_account"},
}
EVERYBODY = {"sign_out", "get_nothing"}


@dataclass(frozen=True, slots=True)
class Person:
    """A user who is signed in, as a browser and as a script."""

    caller: Caller
    user_id: uuid.UUID
    session: str

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"vas_session={self.session}"}

    def csrf(self) -> str:
        [token] = re.findall(r'<meta name="csrf" content="([^"]+)">', self.get("/people").text)
        return str(token)

    def get(self, path: str) -> httpx.Response:
        url = f"{self.caller.api.root}/dashboard{path}"
        return httpx.get(url, headers=self.cookie, trust_env=False, timeout=60)

    def post(self, path: str, **form: str) -> httpx.Response:
        """A form of a page of theirs."""
        url = f"{self.caller.api.root}/dashboard{path}"
        data = {"csrf": form.get("csrf") or self.csrf(), **form}
        return httpx.post(url, data=data, headers=self.cookie, trust_env=False, timeout=60)

    def script(self, method: str, path: str) -> httpx.Response:
        """An operation as a script of a page calls it."""
        url = f"{self.caller.api.root}/dashboard/api{path}"
        headers = self.cookie | {"X-CSRF-Token": self.csrf()}
        body: dict[str, Any] | None = None if method in {"GET", "DELETE"} else {}
        return httpx.request(method, url, json=body, headers=headers, trust_env=False, timeout=60)


def join(caller: Caller, role: Role) -> Person:
    """A new user of the caller's account, by invitation."""
    account_id, address = caller.customer.account_id, f"{role}-{uuid.uuid4().hex}@example.com"

    async def accept(connection: Connection) -> tuple[str, uuid.UUID]:
        token = await people.invite(connection, account_id, address, role)
        session = await people.accept_invitation(connection, token)
        user = await people.find_user(connection, account_id, address)
        assert session is not None
        assert user is not None
        return session, user.id

    session, user_id = caller.api.transact(accept)
    return Person(caller, user_id, session)


@pytest.fixture(scope="module")
def caller(api: ContractApi) -> Caller:
    made = api.caller()
    join(made, Role.OWNER)
    return made


@pytest.fixture(autouse=True)
def fresh_rates(api: ContractApi) -> Iterator[None]:
    yield
    api.sql("DELETE FROM rate_limits")


def test_the_tables_hold_every_operation_and_every_page() -> None:
    keyed = {each.operation_id for each in DOCUMENTED if each.auth is not Auth.NONE}
    assert keyed == ALLOWED[Role.OWNER] >= set(OPERATIONS)
    assert {route.name for route in page_routes()} == set(PAGES)
    assert set(PAGES) == ALLOWED_PAGES[Role.OWNER] | EVERYBODY


def page_routes() -> list[PageRoute]:
    routes = [route for router in ROUTERS for route in router.routes]
    return [r for r in routes if isinstance(r, PageRoute) and not isinstance(r, OperatorRoute)]


def filled(path: str) -> str:
    """A path that names nothing that is there."""
    return re.sub(r"{\w+(:path)?}", str(uuid.uuid4()), path).removeprefix("/dashboard")


def is_refused(answer: httpx.Response) -> bool:
    return answer.status_code == 403 and "does not include" in answer.text


@pytest.mark.parametrize("role", Role)
def test_each_role_may_call_these_operations_and_no_others(caller: Caller, role: Role) -> None:
    person = join(caller, role)
    for operation in DOCUMENTED:
        if operation.auth is Auth.NONE:
            continue
        caller.api.sql("DELETE FROM rate_limits")
        path = filled(operation.path)
        answers = [person.script(operation.method, path)]
        if operation.auth is Auth.SESSION:
            headers = {"Authorization": f"Bearer {person.session}"}
            answers.append(caller.api.client.request(operation.method, path, headers=headers))
        allowed = operation.operation_id in ALLOWED[role]
        for answer in answers:
            assert is_refused(answer) is not allowed, (operation.operation_id, answer.text)
            if not allowed:
                body = answer.json()
                assert (body["code"], body["role"]) == ("ROLE_NOT_ALLOWED", role)


@pytest.mark.parametrize("role", Role)
def test_each_role_may_use_these_pages_and_no_others(caller: Caller, role: Role) -> None:
    person = join(caller, role)
    for route in page_routes():
        caller.api.sql("DELETE FROM rate_limits")
        if route.name == "sign_out":
            continue
        path = filled(route.path)
        answer = person.get(path) if "GET" in (route.methods or ()) else person.post(path)
        if role is Role.BILLER and route.name == "get_jobs":  # where every sign-in leads to
            assert answer.headers["location"] == "/dashboard/account"
            continue
        allowed = route.name in ALLOWED_PAGES[role] | EVERYBODY
        assert is_refused(answer) is not allowed, (route.name, answer.status_code)
    assert person.post("/sign-out").status_code == 303


@pytest.mark.parametrize("role", [Role.EDITOR, Role.VIEWER, Role.BILLER])
def test_what_a_role_may_not_do_changes_nothing(caller: Caller, role: Role) -> None:
    """Nor does it leave an entry in the audit log."""
    person, uncounted = join(caller, role), frozenset({"rate_limits"})
    before = state_of(caller.api, uncounted)
    for operation in DOCUMENTED:
        if operation.auth is Auth.NONE or operation.operation_id in ALLOWED[role]:
            continue
        caller.api.sql("DELETE FROM rate_limits")
        assert is_refused(person.script(operation.method, filled(operation.path)))
    for route in page_routes():
        if route.name in ALLOWED_PAGES[role] | EVERYBODY or "GET" in (route.methods or ()):
            continue
        caller.api.sql("DELETE FROM rate_limits")
        assert is_refused(person.post(filled(route.path)))
    assert state_of(caller.api, uncounted) == before


def test_pages_offer_only_what_a_role_may_do(caller: Caller, runner: RunnerSide) -> None:
    job_id = runner.complete(caller)

    def offered(person: Person, path: str) -> set[str]:
        text = person.get(path).text
        forms = set(re.findall(r'<form[^>]*method="post" action="([^"]+)"', text))
        return forms - {"/dashboard/sign-out"} | set(re.findall(r'<button id="(edit)"', text))

    viewer, editor = join(caller, Role.VIEWER), join(caller, Role.EDITOR)
    job = f"/jobs/{job_id}"
    assert offered(editor, "") == {"/dashboard/jobs"}
    assert offered(editor, job) == {f"/dashboard{job}/erase", "edit"}
    assert offered(viewer, "") == offered(viewer, job) == set()


def test_a_role_that_changes_during_a_session_holds_from_the_next_request_on(
    caller: Caller,
) -> None:
    person, account_id = join(caller, Role.VIEWER), caller.customer.account_id

    def becomes(role: Role) -> None:
        change = lambda c: people.change_role(c, account_id, person.user_id, role)  # noqa: E731
        assert caller.api.transact(change)

    assert is_refused(person.script("POST", "/jobs"))
    becomes(Role.EDITOR)
    assert person.script("POST", "/jobs").json()["param"] == "fileName"
    becomes(Role.BILLER)
    assert is_refused(person.script("POST", "/jobs"))
    assert is_refused(person.script("GET", "/jobs"))
    assert caller.api.transact(lambda c: people.remove_user(c, account_id, person.user_id))
    there = person.get("/account").headers["location"]
    assert there == "/dashboard/sign-in?ended=1#/dashboard/account"


def test_what_a_redaction_hides_is_read_by_who_may_correct_it(
    caller: Caller, runner: RunnerSide
) -> None:
    job_id = runner.complete(caller)
    path = f"/jobs/{job_id}/transcript?original=true"
    viewer, editor = join(caller, Role.VIEWER), join(caller, Role.EDITOR)
    assert viewer.script("GET", path).status_code == 200  # nothing is hidden yet
    redact = 'UPDATE jobs SET source = source || \'{"redact": ["email"]}\' WHERE id = :id'
    caller.api.sql(redact, id=job_id)
    assert is_refused(viewer.script("GET", path))
    assert not is_refused(editor.script("GET", path))
    assert caller.get(path).status_code == editor.script("GET", path).status_code


def test_a_one_time_link_of_the_account_is_an_owners(caller: Caller) -> None:
    assert caller.api.client.get("/audit", headers=caller.sign_in()).is_success
