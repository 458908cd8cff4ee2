"""``/healthz`` and ``/readyz``: what they say, to whom, and what they cost."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import pytest

from serve_app.api.health import CHECKS, NotReadyError, ReadinessProbe
from serve_app.context import AppContext, build_context
from serve_app.crypto import Encrypter
from serve_app.observability.metrics import HTTP_REQUESTS, UPLOADS_UNDER_WAY
from serve_app.settings import Settings
from serve_app.uploads.receiving import UploadLimiter
from storage import keys, webhooks
from storage.database import Connection, embedded_postgres, migrate, newest_revision
from tests.serve_app.observability.metrics import RecordedMetrics
from tests.serve_app.running_api import SECRET, RunningApi


def get(api: RunningApi, path: str) -> httpx.Response:
    return api.client.get(api.root + path)


def test_a_live_process_says_so_to_everybody(api: RunningApi) -> None:
    answer = get(api, "/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    assert answer.headers["cache-control"] == "no-store"
    assert "x-ratelimit-limit" not in answer.headers


def test_a_ready_service_names_what_was_examined(api: RunningApi) -> None:
    answer = get(api, "/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "missing": [],
        "checks": {"database": "ok", "migrations": "ok", "objectStore": "ok", "secret": "ok"},
    }


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_operations_pages_take_no_other_method_and_are_not_part_of_the_api(
    api: RunningApi, path: str
) -> None:
    answer = httpx.post(api.root + path, trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert path not in api.client.get("/openapi.json").text
    assert api.client.get(path).status_code == 404


def test_a_load_balancer_may_ask_as_often_as_it_likes(api: RunningApi) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda _: get(api, "/readyz").status_code, range(200))
    assert set(answers) == {200}


async def _seal_with(connection: Connection, secret: str) -> None:
    account = await keys.create_account(connection, "somebody")
    sealed = Encrypter(secret.encode()).encrypt("whsec_x")
    await webhooks.get_or_create_signing_secret(connection, account.id, sealed)


def _replace_folder_by_a_file(settings: Settings) -> None:
    shutil.rmtree(settings.data_dir / "objects", ignore_errors=True)
    (settings.data_dir / "objects").write_text("in the way")


def _at_another_revision(settings: Settings) -> None:
    with psycopg.connect(settings.database_url or "", autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")


def _never_migrated(settings: Settings) -> None:
    with psycopg.connect(settings.database_url or "", autocommit=True) as connection:
        connection.execute("DROP TABLE alembic_version")


def _sealed_by_somebody_else(settings: Settings) -> None:
    async def seal() -> None:
        context = build_context(settings)
        await context.database.write(_seal_with, "another secret, also long enough for the signer")
        await context.database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(seal())).result()


@pytest.mark.parametrize(
    ("breaks", "part", "says"),
    [
        pytest.param(_replace_folder_by_a_file, "objectStore", "cannot be reached", id="objects"),
        pytest.param(
            _at_another_revision,
            "migrations",
            f"the schema is at 0001, the code needs {newest_revision()}",
            id="an older schema",
        ),
        pytest.param(
            _never_migrated,
            "migrations",
            f"the schema is at None, the code needs {newest_revision()}",
            id="no schema",
        ),
        pytest.param(
            _sealed_by_somebody_else,
            "secret",
            "VAS_SECRET_KEY is not the key of this database",
            id="another secret",
        ),
    ],
)
def test_what_is_missing_is_named(
    database_url: str, tmp_path: Path, breaks: Callable[[Settings], None], part: str, says: str
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=database_url, secret_key=SECRET)
    breaks(settings)
    with RunningApi(settings) as api:
        answer = get(api, "/readyz")
        assert get(api, "/healthz").status_code == 200
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    body = answer.json()
    assert (body["status"], body["missing"]) == ("not ready", [part])
    assert body["checks"] == dict.fromkeys(CHECKS, "ok") | {part: says}


def test_without_its_database_the_service_is_alive_and_not_ready_and_says_no_address(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pg"
    with embedded_postgres(folder) as url:
        migrate(url)
        settings = Settings(data_dir=tmp_path / "data", database_url=url, secret_key=SECRET)
    with RunningApi(settings) as api:
        answer = get(api, "/readyz")
        assert get(api, "/healthz").status_code == 200
    assert answer.status_code == 503
    assert answer.json()["missing"] == ["database", "migrations", "secret"]
    assert str(folder) not in answer.text


@dataclass(slots=True)
class Clock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Part:
    """A part of the service that counts how often it is asked."""

    asked: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    fails: Exception | None = None

    async def check(self, _: AppContext) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def context(api: RunningApi) -> AppContext:
    return api.context


async def test_a_crowd_is_told_what_one_examination_found(context: AppContext) -> None:
    part, clock = Part(), Clock()
    part.answers.set()
    probe = ReadinessProbe(context, checks={"part": part.check}, clock=clock)
    found = await asyncio.gather(*(probe.examine() for _ in range(50)))
    assert {each.ready for each in found} == {True}
    assert part.asked == 1
    clock.seconds += 1
    part.fails = NotReadyError("gone")
    assert dict((await probe.examine()).missing) == {"part": "gone"}
    assert part.asked == 2


async def test_a_part_that_hangs_is_missing_and_is_not_asked_again_meanwhile(
    context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.api.health.CHECK_SECONDS", 0.02)
    part, clock = Part(), Clock()
    probe = ReadinessProbe(context, checks={"part": part.check}, clock=clock)
    for _ in range(5):
        assert "does not answer" in (await probe.examine()).missing["part"]
        clock.seconds += 1
    assert part.asked == 1
    part.answers.set()
    assert (await probe.examine()).ready


def test_requests_and_uploads_are_metered(api_settings: Settings) -> None:
    metrics = RecordedMetrics()
    with RunningApi(api_settings, metrics) as api:
        customer = api.customer()
        job = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
        upload = job.json()["data"]["uploadUrl"]
        httpx.put(upload, content=b"x" * 1000, trust_env=False)
        api.client.get("/jobs")
        get(api, "/nowhere/at/all")
    [seconds] = metrics.of(HTTP_REQUESTS, operation="createJob", status="2xx")
    assert 0 < seconds < 120
    assert len(metrics.of(HTTP_REQUESTS, operation="listJobs", status="4xx")) == 1
    assert len(metrics.of(HTTP_REQUESTS, operation="none", status="4xx")) == 1
    assert set(metrics.of(UPLOADS_UNDER_WAY)) == {0}


async def test_uploads_under_way_are_reported_as_they_come_and_go() -> None:
    metrics = RecordedMetrics()
    limiter = UploadLimiter(3, metrics)
    with limiter.enter(uuid.uuid4()), limiter.enter(uuid.uuid4()):
        await limiter.report()
    await limiter.report()
    assert metrics.of(UPLOADS_UNDER_WAY) == [2, 0]
