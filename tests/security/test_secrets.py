"""Secrets under test: the API is driven with all kinds of them, and everything it writes is read.

``tests/serve_app/test_secrets_in_logs.py`` looks at single requests; here every secret that an
account has goes through requests that succeed, fail and break, with every logger at its most
talkative.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app
from serve_app.observability.logs import LOG_NAME, logging_for, without_secrets
from serve_app.settings import Settings
from storage import keys
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import RunnerSide
from tests.serve_app.raw_http import exchange
from tests.serve_app.running_api import SECRET
from tests.serve_app.uploads.uploading import TUS
from tests.tables import every

SOURCE_SIGNATURE = "5d41402abc4b2a76b9719d911017c592aa"
SOURCE = (
    "https://bucket.s3.example.com/film.mp4?X-Amz-Credential=AKIASOURCEKEY0000%2F20260101"
    f"&X-Amz-Signature={SOURCE_SIGNATURE}&X-Amz-Security-Token=source-session-token"
)
DOWNLOAD_TOKEN = "ya29.a0-download-token-of-the-customer"
CALLBACK_TOKEN = "T0000/B0000/callback-token-in-a-path"
PASSWORD = "hunter2-in-the-address"


class Everything(logging.Handler):
    """Every record of every logger, as text: message, arguments and traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(name)s %(message)s").format(record))


@dataclass(slots=True)
class Written:
    """What the service wrote meanwhile: its own log, and what any library logged."""

    folder: Path
    libraries: Everything = field(default_factory=Everything)
    answers: list[httpx.Response] = field(default_factory=list)

    def own_log(self) -> str:
        path = self.folder / LOG_NAME
        return path.read_text() if path.exists() else ""

    def bodies(self) -> str:
        return "\n".join(answer.text for answer in self.answers)


@contextmanager
def listening(settings: Settings, folder: Path) -> Iterator[Written]:
    """Log as talkatively as can be for the block."""
    written = Written(folder)
    root = logging.getLogger()
    level, told = root.level, settings.model_copy(update={"log_dir": folder, "log_level": "DEBUG"})
    root.addHandler(written.libraries)
    root.setLevel(logging.DEBUG)
    try:
        with logging_for(told, "api"):
            yield written
    finally:
        root.removeHandler(written.libraries)
        root.setLevel(level)


@dataclass(frozen=True, slots=True)
class Secrets:
    """All secrets of an account, by what they are."""

    caller: Caller
    session: str
    sign_in: str
    signing_secret: str
    spare_key: str
    operator_link: str
    operator_session: str
    upload: dict[str, Any]

    @property
    def by_kind(self) -> dict[str, str]:
        return {
            "API key": self.caller.customer.key,
            "spare key": self.spare_key,
            "operator's link": self.operator_link,
            "operator's session": self.operator_session,
            "session": self.session,
            "sign-in token": self.sign_in,
            "signing secret": self.signing_secret.removeprefix("whsec_"),
            "upload signature": _signature(self.upload["uploadUrl"]),
            "tus signature": _signature(self.upload["resumableUploadUrl"]),
            "source signature": SOURCE_SIGNATURE,
            "source token": "source-session-token",
            "source key": "AKIASOURCEKEY0000",
            "download token": DOWNLOAD_TOKEN,
            "callback token": CALLBACK_TOKEN,
            "password in an address": PASSWORD,
            "service secret": SECRET,
        }


def _signature(url: str) -> str:
    return url.rsplit("signature=", 1)[1]


@pytest.fixture
def secrets(api: ContractApi) -> Secrets:
    caller = api.caller()
    account = caller.customer.account_id
    session = caller.sign_in()["Authorization"].removeprefix("Bearer ")
    headers = {"Authorization": f"Bearer {session}"}
    return Secrets(
        caller,
        session,
        api.transact(lambda c: keys.create_sign_in_link(c, account)),
        shown(api.client.get("/webhooks/secret", headers=headers))["secret"],
        api.transact(lambda c: keys.create_key(c, account)).secret,
        api.transact(keys.create_operator_link),
        api.operator_session(),
        caller.create(),
    )


def from_url(secrets: Secrets, **more: Any) -> httpx.Response:
    callback = f"https://hooks.example.com/{CALLBACK_TOKEN}"
    body = {"url": SOURCE, "downloadToken": DOWNLOAD_TOKEN, "callbackUrl": callback}
    return secrets.caller.post("/jobs/from-url", body | more)


def use_all(api: ContractApi, secrets: Secrets, runner: RunnerSide) -> list[httpx.Response]:
    """Requests that succeed and fail, every secret in its place and in wrong ones."""
    client, caller = api.client, secrets.caller
    key, session = caller.customer.key, secrets.session
    bearer = {"Authorization": f"Bearer {session}"}
    upload, resumable = secrets.upload["uploadUrl"], secrets.upload["resumableUploadUrl"]
    wrong_places = [
        client.get(f"/jobs/{key}", headers={"X-API-Key": key}),
        client.get("/jobs", params={"cursor": key}, headers={"X-API-Key": key}),
        client.get("/jobs", headers={"X-API-Key": session}),
        client.get("/jobs", headers={"Authorization": f"Basic {key}"}),
        client.post(f"/keys/{quote(session)}/rotate", headers=bearer),
        client.get("/pricing/estimate", params={"durationSeconds": key}),
        caller.post("/jobs", {"fileName": "a.mp4", "idempotencyKey": key, "fileSizeBytes": key}),
        caller.post("/jobs/from-url", {"url": f"https://u:{PASSWORD}@x.example.com/a"}),
        caller.post("/webhooks/test", {"url": f"https://u:{PASSWORD}@x.example.com/a"}),
        client.post("/sessions", json={"token": secrets.spare_key}),
        client.post("/sessions", content=secrets.sign_in.encode()),
    ]
    right_places = [
        from_url(secrets), from_url(secrets, fileName=""), from_url(secrets, provider="dropbox"),
        from_url(secrets, downloadTokn=DOWNLOAD_TOKEN),
        client.get("/keys", headers=bearer), client.get("/quota", headers={"X-API-Key": key}),
        client.post("/sessions", json={"token": secrets.sign_in}),
        httpx.put(upload.replace("expires=", "expires=1"), content=b"x", trust_env=False),
        httpx.patch(resumable, headers=TUS, content=b"x", trust_env=False),
        httpx.head(resumable + "0", headers=TUS, trust_env=False),
        httpx.put(upload, content=b"x", trust_env=False),
        httpx.put(upload, content=b"y", trust_env=False),
    ]  # fmt: skip
    return [*wrong_places, *right_places, *use_all_of_the_operator(api, secrets)]


def use_all_of_the_operator(api: ContractApi, secrets: Secrets) -> list[httpx.Response]:
    session, account = secrets.operator_session, secrets.caller.customer.account_id
    cookies = {"Cookie": f"vas_operator={session}"}
    suspend = f"/dashboard/operator/accounts/{account}/suspend"
    forms = [
        httpx.post(api.root + path, headers=cookies, data=form, trust_env=False)
        for path, form in (
            (suspend, {"csrf": session}), (f"/dashboard/operator/accounts/{session}/resume", {}),
            ("/dashboard/sign-in", {"token": secrets.operator_link}),
            ("/dashboard/sign-in", {"token": secrets.operator_link}),
        )
    ]  # fmt: skip
    pages = [
        httpx.get(f"{api.root}/dashboard/operator{path}", headers=cookies, trust_env=False)
        for path in ("", "/accounts", "/system", f"/{session}")
    ]
    bearer = {"Authorization": f"Bearer {session}"}
    return [*forms, *pages, api.client.get("/keys", headers=bearer)]


ANSWERED_TO_THEIR_OWNER = {"session", "source signature", "source token", "source key",
                           "callback token"}  # fmt: skip
"""A new session, and what the Job object shows of what the customer itself sent."""


def test_no_secret_stands_in_a_log_or_in_an_answer(
    api: ContractApi, secrets: Secrets, runner: RunnerSide, tmp_path: Path
) -> None:
    with listening(api.settings, tmp_path) as written:
        written.answers += use_all(api, secrets, runner)
    statuses = {answer.status_code for answer in written.answers}
    assert {200, 201, 400, 401, 404, 409} <= statuses
    own = written.own_log()
    libraries = "\n".join(
        # Both are the tests' own: the client that sends the secrets, and the loop that it waits on.
        line for line in written.libraries.lines if not line.startswith(("httpx", "httpcore"))
    )  # fmt: skip
    for kind, secret in secrets.by_kind.items():
        assert secret not in own, kind
        assert secret not in libraries, kind
        if kind not in ANSWERED_TO_THEIR_OWNER:
            assert secret not in written.bodies(), kind


@every("words", [("keys", "list"), ("sessions", "list"), ("sessions", "end")], ids=" ".join)
@every("as_json", [True, False], ids=["JSON", "a table"])
def test_what_an_operator_lists_and_takes_back_shows_no_secret(
    api: ContractApi, secrets: Secrets, words: tuple[str, ...], as_json: bool
) -> None:
    account = str(secrets.caller.customer.account_id)
    environment = {
        "VAS_DATABASE_URL": api.settings.database_url or "",
        "VAS_DATA_DIR": str(api.settings.data_dir),
        "VAS_SECRET_KEY": SECRET,
    }
    command = [*words, account, *(["--json"] if as_json else [])]
    done = CliRunner().invoke(app, command, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output.strip()
    for kind, secret in secrets.by_kind.items():
        assert secret not in done.output, kind


def test_pages_and_forms_of_the_dashboard_put_no_secret_into_a_log(
    api: ContractApi, secrets: Secrets, runner: RunnerSide, tmp_path: Path
) -> None:
    """Pages that show a secret to its owner too; refusals show none to anybody."""
    job_id = runner.complete(secrets.caller)
    with (
        listening(api.settings, tmp_path) as written,
        httpx.Client(base_url=api.root, trust_env=False) as browser,
    ):
        signed_in = use_the_dashboard(browser, secrets, job_id)
        written.answers += refused_by_the_dashboard(browser, secrets)
    assert {answer.status_code for answer in written.answers} <= {303, 400, 401, 403, 404}
    log = written.own_log()
    for kind, secret in {**secrets.by_kind, **signed_in}.items():
        assert secret not in log, kind
        assert secret not in written.bodies(), kind


def use_the_dashboard(browser: httpx.Client, secrets: Secrets, job_id: str) -> dict[str, str]:
    """Every page and form of an account; the secrets that came up on the way."""
    link = {"token": secrets.sign_in}
    assert browser.get("/dashboard/sign-in", params=link).status_code == 200
    assert browser.post("/dashboard/sign-in", data=link).status_code == 303
    job_page = browser.get(f"/dashboard/jobs/{job_id}").text
    [media] = re.findall(r'src="(/v1/api/jobs/[^"]+/media[^"]+)"', job_page)
    assert browser.get(unescape(media)).status_code == 200
    for path in ("", "/account", "/search?q=person"):
        assert browser.get(f"/dashboard{path}").status_code == 200
    page = browser.get("/dashboard/keys").text
    [token] = re.findall(r'<meta name="csrf" content="([^"]+)">', page)
    form = {"csrf": token, "urls": SOURCE}
    assert browser.post("/dashboard/jobs", data=form).status_code == 303
    rotate = re.findall(r'action="(/dashboard/keys/[^"]+/rotate)"', page)[0]
    issued = browser.post(rotate, data=form).text
    assert browser.post("/dashboard/webhook-secret/rotate", data=form).status_code == 303
    shown = browser.get("/dashboard/keys").text
    return {
        "session of the cookie": browser.cookies["vas_session"],
        "CSRF token": token,
        "media signature": unescape(media).partition("signature=")[2],
        "new key": re.findall(r"vas_live_[\w-]{43}", issued)[0],
        "new signing secret": re.findall(r"whsec_([\w+/=]+)", shown)[0],
    }


def refused_by_the_dashboard(browser: httpx.Client, secrets: Secrets) -> list[httpx.Response]:
    """Secrets in wrong places, before and after the session's end."""
    key, session = secrets.caller.customer.key, browser.cookies["vas_session"]
    answers = []
    for _ in range(2):
        answers += [
            browser.post("/dashboard/sign-in", data={"token": secrets.sign_in}),
            browser.post("/dashboard/sign-in", data={"token": key}),
            browser.post("/dashboard/sign-out", data={"csrf": session}),
            browser.post(f"/dashboard/jobs/{key}/cancel", data={"csrf": session}),
            browser.post(f"/dashboard/keys/{session}/rotate", data={"csrf": key}),
            browser.post("/dashboard/jobs", data={"csrf": key, "urls": f"https://u:{PASSWORD}@x"}),
            browser.get(f"/dashboard/jobs/{key}"), browser.get(f"/dashboard/{session}"),
            browser.get("/dashboard", params={"cursor": key}),
            browser.get("/dashboard/account", params={"hours": session}),
            browser.get(f"/v1/api/jobs/{key}/media", params={"signature": key, "expires": key}),
        ]  # fmt: skip
        browser.cookies.set("vas_session", session[:-1] + "-", path="/dashboard")
    return answers


def test_refusals_do_not_repeat_what_was_sent(api: ContractApi, secrets: Secrets) -> None:
    key = secrets.caller.customer.key
    requests: list[tuple[str, dict[str, str]]] = [
        (f"/v1/api/jobs/{key}", {}), (f"/v1/api/{key}", {}), (f"/{key}?token={key}", {}),
        (f"/v1/api/jobs/x/thumbnails/{key}.jpg", {}), (f"/portal/{key}", {}),
        (f"/v1/api/uploads/{key}/{key}?expires={key}&signature={key}", {}),
        (f"/docs/assets/{key}", {}), ("/v1/api/jobs", {"X-API-Key": key + "x"}),
        ("/v1/api/keys", {"Authorization": f"Bearer {key}"}),
        ("/v1/api/jobs", {"Idempotency-Key": key, "X-Request-Id": key}),
    ]  # fmt: skip
    for path, headers in requests:
        for method in ("GET", "PUT", "POST"):
            answer = httpx.request(method, api.root + path, headers=headers, trust_env=False)
            assert answer.status_code >= 400
            assert key not in answer.text
            assert key not in repr(answer.headers)


BREAKINGS: dict[str, str] = {
    "a check": "ALTER TABLE jobs ADD CONSTRAINT broken CHECK (file_name <> 'broken.mp4') NOT VALID",
    "a unique index": "CREATE UNIQUE INDEX broken ON jobs (file_name, callback_url)"
    " WHERE file_name = 'broken.mp4'",
    "a trigger that repeats the row": """
        CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.file_name = 'broken.mp4' THEN
        RAISE EXCEPTION 'no' USING DETAIL = NEW.source::text || NEW.callback_url; END IF;
        RETURN NEW; END $$;
        CREATE TRIGGER broken BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION broken()""",
}
MENDINGS = {
    "a check": "ALTER TABLE jobs DROP CONSTRAINT broken",
    "a unique index": "DROP INDEX broken",
    "a trigger that repeats the row": "DROP FUNCTION broken CASCADE",
}


@pytest.mark.parametrize("kind", BREAKINGS)
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_failing_statement_tells_neither_client_nor_log_what_the_row_held(
    api: ContractApi, secrets: Secrets, tmp_path: Path, kind: str,
    log_format: Literal["json", "text"],
) -> None:  # fmt: skip
    """PostgreSQL repeats the row in its message's DETAIL; the path of a callback is a secret."""
    settings = api.settings.model_copy(update={"log_format": log_format})
    run_script(api, BREAKINGS[kind])
    try:
        with listening(settings, tmp_path) as written:
            answers = [from_url(secrets, fileName="broken.mp4") for _ in range(2)]
    finally:
        run_script(api, MENDINGS[kind])
    broken = answers[-1]
    assert broken.status_code == 500
    assert set(broken.json()) == {"error", "code", "docUrl", "requestId"}
    log = written.own_log()
    assert broken.json()["requestId"] in log
    assert "Traceback" in log
    for name, secret in secrets.by_kind.items():
        assert secret not in broken.text, name
        assert secret not in log, name


def run_script(api: ContractApi, script: str) -> None:
    async def work(connection: Any) -> None:
        raw = await connection.get_raw_connection()
        await raw.driver_connection.execute(script)

    api.transact(work)


def test_requests_that_are_no_http_are_not_repeated(api: ContractApi, secrets: Secrets) -> None:
    key = secrets.caller.customer.key
    for request in (f"GET /{key} HTTP/9.9\r\n\r\n", f"{key} / HTTP/1.1\r\nHost: x\r\n\r\n",
                    f"GET / HTTP/1.1\r\nHost: x\r\n{key}\r\n\r\n"):  # fmt: skip
        assert key.encode() not in exchange(api, request.encode()).body


def test_text_from_outside_writes_no_line_of_its_own_and_commands_no_terminal(
    api: ContractApi, tmp_path: Path
) -> None:
    settings = api.settings.model_copy(update={"log_format": "text"})
    forged = "a\n2026-01-01T00:00:00Z ERROR api vas: forged\r\x1b[2J\x1b]0;x\x07\u2028\x85b"
    with listening(settings, tmp_path) as written:
        logging.getLogger("vas.tests").warning("job %s", forged)
    [line] = written.own_log().split("\n")[:-1]
    assert line.isprintable()
    assert line.endswith(r"forged\r\x1b[2J\x1b]0;x\x07\u2028\x85b")


SHAPES: list[tuple[str, Callable[[str], str]]] = [
    ("detail of a failing row", lambda s: f"new row\nDETAIL:  Failing row contains (7, {s}, x).\n"),
    (
        "detail of a doubled key",
        lambda s: f"no\nDETAIL:  Key (url)=({s}) exists.\n[SQL: x]",
    ),
    ("Akamai", lambda s: f"https://x.example/a?hdnts=exp=1~hmac={s}"),
    ("Azure", lambda s: f"https://x.example/a?sv=2024&se=2026&sig={s}&sp=r"),
    ("Google", lambda s: f"https://x.example/a?X-Goog-Credential=a&X-Goog-Signature={s}"),
    ("Amazon, old", lambda s: f"https://x.example/a?AWSAccessKeyId=AKIA&Signature={s}&Expires=1"),
    ("CloudFront", lambda s: f"https://x.example/a?Policy={s}&Key-Pair-Id=K"),
    ("Dropbox", lambda s: f"https://www.dropbox.com/scl/fi/x/a.mp4?rlkey={s}&dl=0"),
    ("Drive", lambda s: f"https://drive.google.com/file/d/x?resourcekey={s}"),
    ("auth", lambda s: f"https://x.example/a?auth={s}&jwt={s}&code={s}&pwd={s}&pass={s}"),
    ("password", lambda s: f"https://x.example/a?password={s}&passwd={s}&passphrase={s}"),
    ("encoded user", lambda s: f"https://user%40x:{s}@x.example/a"),
    ("user alone", lambda s: f"https://{s}@x.example/a"),
    ("cookie", lambda s: f"Cookie: session={s}; a=b"),
    ("X-API-Key", lambda s: f"X-API-Key: {s}"),
    ("header pairs", lambda s: f"[(b'x-api-key', b'{s}'), (b'authorization', b'Token {s}')]"),
    ("JSON", lambda s: json.dumps({"downloadToken": s, "secret": s, "password": s, "apiKey": s})),
    ("repr", lambda s: repr({"downloadToken": s, "client_secret": s})),
]
"""What a secret may stand in, by whoever wrote it into a message."""


@every(("kind", "shape"), SHAPES, ids=[kind for kind, _ in SHAPES])
def test_what_stands_where_secrets_stand_is_hidden(kind: str, shape: Callable[[str], str]) -> None:
    secret = uuid.uuid4().hex
    assert secret not in without_secrets(shape(secret)), kind
