"""Every operation that changes something leaves its entry in the audit log, or changes nothing.

Walks the operations of the interface document: one that stands in no table here fails the first
test.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy.exc
from typer.testing import CliRunner

from serve_app.cli.main import app
from serve_app.keys.routes import read_lines
from storage import audit, cleaning, history, keys
from storage.audit import ChainCheck
from storage.tables import AuditEntry
from storage.types import ActorKind, StageName
from tests.contract.calling import ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.security.furnished_accounts import FurnishedAccount
from tests.security.test_isolation import BY_NAME
from tests.tables import every


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes something, and one of the same operation that is refused."""

    path: str
    body: dict[str, Any] | None = None
    action: str | None = None
    """The operation's name if not given."""
    wrong_path: str | None = None
    """A thing that is not there; else the body is wrong."""
    wrong_body: dict[str, Any] | None = None


JOB, NO_JOB = "/jobs/{done}", f"/jobs/{uuid.uuid4()}"
SPEAKER, NO_SPEAKER = f"{JOB}/speakers/speaker_0", f"{JOB}/speakers/nobody"
ENDPOINT, NO_ENDPOINT = "/webhooks/endpoints/{endpoint}", f"/webhooks/endpoints/{uuid.uuid4()}"
ARCHIVE, NO_ARCHIVE = "/archives/{archive}", f"/archives/{uuid.uuid4()}"
HOOK = {"url": "https://hooks.example.com/x"}
CLIPS = [{"sourceUrl": "https://example.com/a.mp4"}]
BATCH = {"mode": "independent", "clips": CLIPS}
EDIT = {"revision": 0, "trackIndex": 0, "segments": [{"index": 0, "text": "Something else."}]}
STORING_NOTHING = {"compareJobs", "ask"}
COMMENT, NO_COMMENT = f"{JOB}/comments/{{comment}}", f"{JOB}/comments/{uuid.uuid4()}"
CHANGES: dict[str, Change] = {
    "createJob": Change("/jobs", {"fileName": "a.mp4"}, wrong_body={"fileName": 5}),
    "createJobFromUrl": Change(
        "/jobs/from-url", {"url": "https://example.com/a.mp4"}, "createJob", wrong_body={"url": ""}
    ),
    "createBatch": Change("/jobs/batch", BATCH, "createJob", wrong_body=BATCH | {"clips": []}),
    "cancelJob": Change("/jobs/{first}/cancel", wrong_path=f"{JOB}/cancel"),
    "cancelJobDeprecated": Change("/jobs/{second}", action="cancelJob", wrong_path=JOB),
    "nameSpeaker": Change(
        f"{SPEAKER}?track=0", {"label": "Anna"}, wrong_path=f"{NO_SPEAKER}?track=0"
    ),
    "resetSpeaker": Change(f"{SPEAKER}?track=0", wrong_path=f"{NO_SPEAKER}?track=0"),
    "nameVoice": Change(
        f"{SPEAKER}/voice?track=0", {"name": "Anna"}, wrong_path=f"{NO_SPEAKER}/voice?track=0"
    ),
    "deleteVoice": Change("/voices/{voice}", wrong_path=f"/voices/{uuid.uuid4()}"),
    "replaceVocabulary": Change(
        "/vocabulary", {"keyterms": ["Anna"], "replacements": []}, wrong_body={"keyterms": []}
    ),
    "editTranscript": Change(f"{JOB}/transcript", EDIT, wrong_body=EDIT | {"revision": 7}),
    "revertTranscript": Change(
        f"{JOB}/transcript/revert",
        {"revision": 1, "trackIndex": 0, "to": 0},
        wrong_body={"revision": 0, "trackIndex": 0, "to": 9},
    ),
    "createTranslation": Change(
        "/jobs/{german}/translations", {"language": "en"}, wrong_body={"language": "tlh"}
    ),
    "changeJob": Change(JOB, {"fileName": "council.mp4"}, wrong_body={"fileName": ""}),
    "rerunJob": Change(f"{JOB}/rerun", {"stages": ["vision"]}, wrong_path=f"{NO_JOB}/rerun"),
    "addComment": Change(
        f"{JOB}/comments", {"time": 1.0, "text": "Anna?"}, wrong_body={"time": 1.0, "text": ""}
    ),
    "changeComment": Change(COMMENT, {"resolved": True}, wrong_path=NO_COMMENT),
    "deleteComment": Change(COMMENT, wrong_path=NO_COMMENT),
    "shareJob": Change(f"{JOB}/share", {"days": 1}, wrong_body={"days": 0}),
    "redactJob": Change(
        "/jobs/{other}/redact", {"kinds": ["email"]}, wrong_path=f"{NO_JOB}/redact"
    ),
    "deletePeople": Change("/jobs/{other}/people", wrong_path=f"{NO_JOB}/people"),
    "eraseJob": Change("/jobs/{other}/erase", wrong_path=f"{NO_JOB}/erase"),
    "createWebhookEndpoint": Change("/webhooks/endpoints", HOOK, wrong_body={"url": "http://a"}),
    "changeWebhookEndpoint": Change(ENDPOINT, HOOK, wrong_path=NO_ENDPOINT),
    "rotateWebhookEndpoint": Change(f"{ENDPOINT}/rotate", wrong_path=f"{NO_ENDPOINT}/rotate"),
    "deleteWebhookEndpoint": Change(ENDPOINT, wrong_path=NO_ENDPOINT),
    "createArchive": Change("/archives", {"url": "s3://films/"}, wrong_body={"url": "films"}),
    "changeArchive": Change(ARCHIVE, {"maxActiveJobs": 5}, wrong_path=NO_ARCHIVE),
    "pauseArchive": Change(f"{ARCHIVE}/pause", wrong_path=f"{NO_ARCHIVE}/pause"),
    "resumeArchive": Change(f"{ARCHIVE}/resume", wrong_path=f"{NO_ARCHIVE}/resume"),
    "deleteArchive": Change(ARCHIVE, wrong_path=NO_ARCHIVE),
    "sendTestWebhook": Change(
        "/webhooks/test", {"url": "https://hooks.invalid/x"}, wrong_body={"url": "http://a"}
    ),
    "rotateWebhookSecret": Change("/webhooks/secret/rotate"),
    "rotateKey": Change("/keys/{key}/rotate", wrong_path=f"/keys/{uuid.uuid4()}/rotate"),
    "createSession": Change("/sessions", {"token": "{link}"}, wrong_body={"token": "used"}),
}
"""In an order in which each finds what it changes."""


@dataclass(frozen=True, slots=True)
class Changing:
    """An account, and what stands in the paths of its requests."""

    account: FurnishedAccount
    names: dict[str, str]

    @property
    def api(self) -> ContractApi:
        return self.account.caller.api

    def send(self, name: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        self.api.sql("DELETE FROM rate_limits")
        operation = BY_NAME[name]
        filled = None if body is None else json.loads(_filled(json.dumps(body), self.names))
        return self.api.client.request(
            operation.method,
            _filled(path, self.names),
            json=filled,
            headers=self.account.credentials[operation.auth],
        )

    def entries(self) -> list[AuditEntry]:
        account_id = self.account.caller.customer.account_id
        return self.api.transact(lambda c: audit.list_entries(c, account_id))


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


@pytest.fixture(scope="module")
def changing(api: ContractApi, runner: RunnerSide) -> Changing:
    account = FurnishedAccount.furnish(api, runner, "audited")
    caller = account.caller
    api.transact(lambda c: history.publish_versions(c, dict.fromkeys(StageName, "now")))
    link = api.transact(lambda c: keys.create_sign_in_link(c, caller.customer.account_id))
    german = runner.complete(caller)
    api.sql("UPDATE transcripts SET language = 'de' WHERE job_id = :id", id=german)
    comment = uuid.uuid4()
    api.sql(
        "INSERT INTO comments (id, job_id, time_ms, text) VALUES (:id, :job_id, 0, 'Who?')",
        id=comment,
        job_id=account.finished["jobId"],
    )
    clips = [job["jobId"] for job in account.batch["jobs"]]
    names = {
        "done": account.finished["jobId"],
        "other": runner.complete(caller),
        "german": german,
        "first": account.uploading["jobId"],
        "second": clips[0],
        "comment": str(comment),
        "voice": account.voice_id,
        "endpoint": account.endpoint_id,
        "archive": account.archive_id,
        "key": account.key_id,
        "link": link,
    }
    return Changing(account, names)


def test_every_operation_that_may_change_something_stands_in_the_table() -> None:
    not_get = {name for name, operation in BY_NAME.items() if operation.method != "GET"}
    assert set(CHANGES) == not_get - STORING_NOTHING


WRONG = {name: it for name, it in CHANGES.items() if it.wrong_path or it.wrong_body}
"""Of the others only who may not call is refused: test_roles.py."""


@every("name", WRONG)
def test_what_is_refused_leaves_no_entry(changing: Changing, name: str) -> None:
    change = WRONG[name]
    before = changing.entries()
    path, body = change.wrong_path or change.path, change.wrong_body or change.body
    answer = changing.send(name, path, body)
    assert 400 <= answer.status_code < 500, answer.text
    assert changing.entries() == before


@pytest.fixture
def refusing_log(api: ContractApi) -> Iterator[None]:
    """No entry can be written."""
    api.sql("ALTER TABLE audit_log ADD CONSTRAINT unwritable CHECK (false) NOT VALID")
    yield
    api.sql("ALTER TABLE audit_log DROP CONSTRAINT unwritable")


UNCOUNTED = frozenset({"rate_limits", "audit_log"})


def state_of(api: ContractApi, uncounted: Set[str] = UNCOUNTED) -> dict[str, list[Any]]:
    """A digest of every table's rows but those of some."""
    tables = api.sql("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    query = "SELECT md5(coalesce(string_agg(r::text, chr(10) ORDER BY r::text), '')) FROM {} AS r"
    return {name: api.sql(query.format(f'"{name}"')) for (name,) in tables if name not in uncounted}


@every("name", CHANGES)
def test_nothing_is_changed_without_its_entry(
    changing: Changing, refusing_log: None, name: str
) -> None:
    """The entry is in the transaction of the change: where it cannot be written, nothing is."""
    change = CHANGES[name]
    before = state_of(changing.api)
    answer = changing.send(name, change.path, change.body)
    if name == "revertTranscript":  # there is no correction yet
        assert answer.status_code == 409
    else:
        assert answer.status_code == 500, answer.text
    assert state_of(changing.api) == before


@every("name", CHANGES)
def test_what_is_done_leaves_its_entry(changing: Changing, name: str) -> None:
    change, before = CHANGES[name], changing.entries()
    answer = changing.send(name, change.path, change.body)
    assert answer.is_success, answer.text
    added = [each for each in changing.entries() if each not in before]
    entry = added[-1]
    assert entry.action == (change.action or name)
    by_session = BY_NAME[name].auth != "key"
    assert entry.actor_kind is (ActorKind.LINK if by_session else ActorKind.KEY)
    assert entry.request_id == answer.headers["x-request-id"]
    assert entry.address == "127.0.0.1"
    job = "{done}" in change.path or "{other}" in change.path
    assert (entry.job_id is not None) >= job
    content = answer.json()["data"]
    if isinstance(content, dict) and "id" in content and name.startswith("create"):
        assert entry.target == content["id"]


def test_the_log_is_read_page_by_page_and_verifies(changing: Changing) -> None:
    client, session = changing.api.client, changing.account.session
    lines, after = [], 0
    while True:
        page = client.get(f"/audit?after={after}&limit=7", headers=session).json()
        lines += [json.dumps(each) for each in page["data"]]
        after = page["data"][-1]["position"]
        if not page["hasMore"]:
            break
    check = ChainCheck()
    assert [check.find_break(each) for each in read_lines(lines)] == [None] * len(lines)
    assert len(lines) == len(changing.entries()) > len(CHANGES)


LIES: dict[str, Callable[[AuditEntry], AuditEntry]] = {
    "another action": lambda entry: replace(entry, action="getJob"),
    "another actor": lambda entry: replace(entry, actor_id=uuid.uuid4()),
    "another time": lambda entry: replace(entry, created_at=datetime(2001, 1, 1, tzinfo=UTC)),
    "another job": lambda entry: replace(entry, job_id=uuid.uuid4()),
    "another address": lambda entry: replace(entry, address="192.0.2.1"),
    "another account": lambda entry: replace(entry, account_id=uuid.uuid4()),
    "another hash": lambda entry: replace(entry, hash="0" * 64),
    "another place": lambda entry: replace(entry, position=entry.position + 1),
}


@every("lie", LIES)
def test_a_changed_entry_breaks_the_chain(changing: Changing, lie: str) -> None:
    entries = changing.entries()
    entries[3] = LIES[lie](entries[3])
    check = ChainCheck()
    assert any(check.find_break(each) for each in entries)


def test_an_entry_that_was_taken_out_breaks_the_chain(changing: Changing) -> None:
    entries = changing.entries()
    del entries[2]
    check = ChainCheck()
    assert next(reason for reason in map(check.find_break, entries) if reason) == (
        "Entry 3 is missing: 4 follows."
    )


@every(
    "statement",
    [
        "UPDATE audit_log SET action = 'nothing'",
        "UPDATE audit_log SET address = '192.0.2.1'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
    ],
)
def test_the_database_refuses_to_change_the_log(api: ContractApi, statement: str) -> None:
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"):
        api.sql(statement)


def test_an_erased_account_loses_its_addresses_and_keeps_its_chain(api: ContractApi) -> None:
    caller = api.caller()
    caller.create()
    account_id = caller.customer.account_id
    api.transact(lambda c: cleaning.erase_account(c, account_id))
    entries = api.transact(lambda c: audit.list_entries(c, account_id))
    assert {each.address for each in entries} == {None}
    assert entries[-1].action == "eraseAccount"
    assert any(each.address_sha256 for each in entries)
    check = ChainCheck()
    assert [check.find_break(each) for each in entries] == [None] * len(entries)


def test_entries_that_are_written_at_once_stand_in_one_chain(api: ContractApi) -> None:
    account_id = api.caller().customer.account_id

    async def write() -> None:
        await api.database.write(audit.record, account_id, "invite", detail='ü\n"\\\x7f')

    async def write_many() -> None:
        await asyncio.gather(*(write() for _ in range(40)))

    before = api.transact(lambda c: audit.list_entries(c, account_id))
    api.run(write_many())
    entries = api.transact(lambda c: audit.list_entries(c, account_id))
    check = ChainCheck()
    assert [check.find_break(each) for each in entries] == [None] * (len(before) + 40)


@pytest.fixture
def vas(api: ContractApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """A command on the service's database."""
    monkeypatch.setenv("VAS_DATABASE_URL", api.settings.database_url or "")
    monkeypatch.setenv("VAS_SECRET_KEY", api.settings.secret_key.get_secret_value())
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_an_export_is_verified_by_itself_and_against_the_database(
    api: ContractApi, vas: Callable[..., Any], tmp_path: Path
) -> None:
    caller = api.caller()
    caller.create()
    [(account,)] = api.sql(
        "SELECT name FROM accounts WHERE id = :id", id=caller.customer.account_id
    )
    out = tmp_path / "log.jsonl"
    assert vas("audit", "export", account, "--out", out).exit_code == 0
    caller.create()
    entries = len(out.read_text().splitlines())
    by_itself = vas("audit", "verify", "--file", out, "--json")
    assert json.loads(by_itself.output)["entries"] == entries
    against = vas("audit", "verify", account, "--file", out, "--json")
    assert json.loads(against.output)["entries"] == entries + 1
    out.write_text(out.read_text().replace("createJob", "cancelJob"))
    broken = vas("audit", "verify", "--file", out)
    assert broken.exit_code != 0
    assert "was changed" in str(broken.exception)


def test_commands_of_the_operator_are_recorded(api: ContractApi, vas: Callable[..., Any]) -> None:
    name = f"studio-{uuid.uuid4()}"
    for words in (
        ("accounts", "create", name),
        ("keys", "create", name),
        ("sessions", "create", name),
        ("accounts", "throttle", name),
        ("accounts", "limit", name, "--active-jobs", 3),
        ("accounts", "retain", name, "--result-days", 3),
        ("legal-hold", name),
        ("sessions", "end", name),
    ):
        assert vas(*words).exit_code == 0, words
    listed = json.loads(vas("audit", "list", name, "--json").output)["entries"]
    assert [each["action"] for each in reversed(listed)] == [
        "createAccount", "createKey", "createSignInLink", "restrictAccount", "limitAccount",
        "setRetention", "setLegalHold", "endSessions",
    ]  # fmt: skip
    assert {each["actor"]["kind"] for each in listed} == {"operator"}
    assert shown(api.discover("/pricing"))
