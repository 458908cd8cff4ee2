"""Mistakes at the command line: each ends ``vas`` with a sentence on what to do, and status 2."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from serve_app.settings import Settings
from storage.database import embedded_postgres, migrate
from tests.acceptance.chaos.database_server import DatabaseServer
from tests.databases import fresh_database
from tests.serve_app.cli.vas_processes import VasProcesses, vas_processes
from tests.serve_app.dashboard.test_dashboard_pages import plain, signed_in
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.serve_app.test_jobs_api import create, expect_error
from tests.serve_app.uploads.test_uploads import MIB, Sender
from tests.storage.tcp_postgres import tcp_postgres
from tests.tables import every

KEY = f"vas_live_{'k' * 43}"
RUNS = {"DATABASE_URL": "{database}"}
"""What these cases come past needs a database; whose, is no part of the mistake."""
MISTAKES = [
    ("a data folder that is a file", "serve --data {file}", {}, "data folder .* with --data"),
    ("a data folder below a file", "serve --data {file}/a", {}, "data folder .* with --d"),
    ("no service", "keys create a --data {new}", {}, "There is no service data in {new}: .*--data"),
    (
        "a log folder that is a file",
        "serve",
        RUNS | {"LOG_DIR": "{file}"},
        "another with VAS_LOG_DIR",
    ),
    ("a port that is no number", "serve", {"PORT": "abc"}, "VAS_PORT: .* valid integer"),
    ("a port beyond all", "serve --port 70000", {}, "--port.* less than or equal to 65535"),
    (
        "a network that is none",
        "serve",
        {"ALLOWED_NETWORKS": "a,b"},
        r"VAS_ALLOWED_NETWORKS\[0\]: ",
    ),
    ("JSON broken off", "serve", {"RAW_DECODERS": "{{"}, "VAS_RAW_DECODERS: .* valid JSON"),
    ("half a key of S3", "serve", {"S3_ACCESS_KEY_ID": "a"}, "belong together"),
    ("an unknown profile", "serve", {"MODEL_PROFILE": "a"}, "VAS_MODEL_PROFILE: .* 'packaged'"),
    ("a short secret key", "serve", {"SECRET_KEY": "short"}, "VAS_SECRET_KEY: .* 32 random"),
    ("one letter as a key", "serve", {"SECRET_KEY": "a" * 64}, "VAS_SECRET_KEY: .* 32 random"),
    ("no such prices", "serve", RUNS | {"PRICE_FILE": "{new}"}, "{new}"),
    ("no such list", "serve", RUNS | {"BLOCKED_HASHES_FILE": "{new}"}, "VAS_BLOCKED_HASHES_FILE: "),
    ("no such authorities", "serve", RUNS | {"WEBHOOK_CA_FILE": "{new}"}, "VAS_WEBHOOK_CA_FILE: "),
    ("no database URL", "keys create a", {"DATABASE_URL": "a"}, "VAS_DATABASE_URL: .*postgresql:"),
    ("MySQL", "keys create a", {"DATABASE_URL": "mysql://a/b"}, "VAS_DATABASE_URL: .*postgresql:"),
    ("no such server", "keys create a", {"DATABASE_URL": "postgresql://127.0.0.1:1/a"}, "used .*?"),
    ("a port in use", "serve --port {taken}", RUNS, "{taken} .* in use: name another with --port"),
    ("an address of others", "serve --host 192.0.2.1", RUNS, "192.0.2.1 is no choice .* --host"),
    ("a second service", "serve --data {served}", RUNS, "running service, process .* with --data"),
    ("no such account", "keys create nobody", RUNS, "No account.*nobody"),
    ("no such customer", "webhooks secret a", RUNS, "No account .*a"),
    ("no such job", "webhooks replay a", RUNS, "a"),
    ("a folder", "analyze {folder}", {}, "python -m pipelines.backfill {folder}"),
    ("no such file", "analyze {new}", {}, "There is no file {new}"),
    ("a URL of another kind", "analyze ftp://a.example.com/b", {}, "There is no file ftp"),
    ("results into a file", "analyze {file} --out {file}", {}, "no folder: .* with --out"),
    ("a URL without scheme", "analyze {file} --url a.example.com", {}, "--url .* http://"),
    ("a URL without key", "analyze {file} --url http://127.0.0.1:1", {}, "key is needed, --key"),
    ("agents without key", "mcp --url http://127.0.0.1:1", {}, "key is needed, --key"),
    ("an export of nowhere", "export a --format srt --url a --key b", {}, "--url .* http://"),
    ("a malformed key", "analyze {file} --url http://a --key ключ", {}, "--key is malformed"),
    ("no service there", f"analyze {{file}} --url http://127.0.0.1:1 --key {KEY}", {}, "reached"),
    ("another service", f"analyze {{file}} --url {{other}} --key {KEY}", {}, "base URL right?"),
    ("no such picture", "policy hash {new}", {}, "{new}"),
    ("no picture", "policy hash {file}", {}, "{name}"),
    ("no weights folder", "models pull --profile cpu", {}, "VAS_MODELS_DIR"),
    ("no such backfill", "backfill import {new} --account a", {}, "{new}"),
    ("a secret that is none", "webhooks listen --secret whsec_?", {}, "not whsec_ and base64"),
    ("a listener's port", "webhooks listen --port {taken}", {}, "{taken} .* --port"),
    ("a listener's folder", "webhooks listen --data {file}", {}, "certificate .* with --data"),
    ("an unknown command", "serv", {}, "No such command 'serv'"),
    ("an unknown option", "serve --prot 1", {}, "No such option: --prot"),
]


class OtherService(BaseHTTPRequestHandler):
    """Answers everything with a page, as a server does that is none of ours."""

    paths: list[str] = []  # noqa: RUF012  (of the test's one server)

    def do_POST(self) -> None:
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome!</html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[dict[str, str]]:
    """What the mistakes name: files, folders, a port that is taken, other people's servers."""
    folder = tmp_path_factory.mktemp("mistakes")
    file = folder / "notes.mp4"
    file.write_text("no film")
    served = folder / "served"
    served.mkdir()
    own = psutil.Process()
    record = {"run_dir": str(folder / "run"), "service": [own.pid, own.create_time()]}
    (served / "run.json").write_text(json.dumps(record))
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        ThreadingHTTPServer(("127.0.0.1", 0), OtherService) as other,
        fresh_database(postgres_url) as database,
    ):
        threading.Thread(target=other.serve_forever, args=(0.05,), daemon=True).start()
        yield {
            "folder": str(folder),
            "file": str(file),
            "name": file.name,
            "new": str(folder / "new"),
            "served": str(served),
            "taken": str(taken.getsockname()[1]),
            "other": f"http://127.0.0.1:{other.server_address[1]}",
            "database": database,
        }
        other.shutdown()


@pytest.fixture(scope="module")
def vas() -> Iterator[VasProcesses]:
    with vas_processes() as started:
        yield started


@every(
    ("command", "settings", "sentence"),
    [pytest.param(*case, id=name) for name, *case in MISTAKES],
)
def test_a_mistake_is_a_sentence_on_what_to_do(
    command: str,
    settings: dict[str, str],
    sentence: str,
    places: dict[str, str],
    vas: VasProcesses,
    tmp_path: Path,
) -> None:
    arguments = [each.format(**places) for each in command.split()]
    given = {name: value.format(**places) for name, value in settings.items()}
    ended = vas.run(arguments, tmp_path, given)
    said = ended.stderr.strip()
    assert "Traceback" not in said
    assert (ended.returncode, ended.stdout.count("Error")) == (2, 0), said
    pattern = re.sub(r"\{(\w+)\}", lambda name: re.escape(places[name[1]]), sentence)
    assert re.search(pattern, said), said
    if not said.startswith("Usage: "):
        assert len(said.splitlines()) == 1


def test_a_base_url_without_its_path_is_completed(
    places: dict[str, str], vas: VasProcesses, tmp_path: Path
) -> None:
    for url in (places["other"], f"{places['other']}/", f"{places['other']}/v1/api/"):
        OtherService.paths.clear()
        vas.run(["analyze", places["file"], "--url", url, "--key", KEY], tmp_path, {})
        assert OtherService.paths == ["/v1/api/jobs"]


def test_without_its_database_the_api_says_503_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "pg"
    with embedded_postgres(folder) as url:
        migrate(url)
        settings = Settings(data_dir=tmp_path / "data", database_url=url, secret_key=SECRET)
        api = RunningApi(settings)
        api.__enter__()
        customer = api.customer()
        assert api.client.get("/quota", headers=customer.headers).status_code == 200
    try:
        for path in ("/quota", "/jobs"):
            answer = api.client.get(path, headers=customer.headers)
            expect_error(answer, 503, "SERVICE_UNAVAILABLE")
            assert answer.headers["retry-after"] == "30"
        session = {"Cookie": f"vas_session=vas_sess_{43 * 'a'}"}
        page = api.client.get(f"{api.root}/dashboard", headers=session)
        assert (page.status_code, page.headers["retry-after"]) == (503, "30")
        with embedded_postgres(folder):
            for _ in range(3):
                answer = api.client.get("/quota", headers=customer.headers)
            assert answer.status_code == 200
    finally:
        api.__exit__()


DOWN_SECONDS = 3.0
"""Longer than a heartbeat of an upload is trusted."""


@pytest.mark.parametrize(
    "moment", [pytest.param("in the middle", marks=pytest.mark.long), "at the end"]
)
def test_a_put_outlasts_a_database_that_is_away_for_a_moment(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "pg"
    with tcp_postgres(folder) as url:
        migrate(url)
        settings = Settings(data_dir=tmp_path / "data", database_url=url, secret_key=SECRET)
        with RunningApi(settings) as api:
            customer = api.customer()
            job = create(api, customer)
            with contextlib.closing(Sender(job["uploadUrl"], 8 * MIB)) as sender:
                sender.send(b"a" * 3 * MIB)
                time.sleep(0.5)
                server = DatabaseServer(folder, url)
                crash = threading.Thread(target=server.crash, args=(DOWN_SECONDS,))
                crash.start()
                time.sleep(0.5)
                if moment == "at the end":
                    sender.send(b"a" * 5 * MIB)
                else:
                    for _ in range(5):
                        sender.send(b"a" * MIB)
                        time.sleep(0.6)
                assert sender.answer().status == 200
                crash.join()
            # Connections that were idle meanwhile tell only when they are used: 503, once each.
            for _ in range(10):
                answer = api.client.get(f"/jobs/{job['jobId']}", headers=customer.headers)
                if answer.status_code == 200:
                    break
            assert answer.json()["data"]["state"] == "queued"


WARNINGS: list[Mapping[str, object]] = [
    {"code": "TIMELINE_REPAIRED", "message": "The file's clock leaps.", "stage": "ingest"},
    {
        "code": "AUDIO_DAMAGED",
        "message": "3 packets were damaged.",
        "stage": "ingest",
        "trackIndex": 0,
        "startTime": 61.5,
        "endTime": 64.0,
    },
]


def test_warnings_stand_in_the_job_and_on_its_page(api: RunningApi, customer: Customer) -> None:
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], WARNINGS)
    job = api.client.get(f"/jobs/{job_id}", headers=customer.headers).json()["data"]
    assert (job["state"], job["warnings"]) == ("completed", WARNINGS)
    with signed_in(api, customer) as browser:
        page = browser.get(f"/dashboard/jobs/{job_id}")
    assert "The file's clock leaps. TIMELINE_REPAIRED" in plain(page)
    assert "3 packets were damaged. Track 1. 1:01 to 1:04 AUDIO_DAMAGED" in plain(page)
    assert 'href="/docs/errors#warning-AUDIO_DAMAGED"' in page.text
