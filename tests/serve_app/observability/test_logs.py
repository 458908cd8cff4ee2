"""Log records: one line each, about something, without secrets, whole among many writers."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from ray.serve._private.logging_utils import redirected_print

from serve_app.observability.logs import (
    LOG_NAME,
    SharedFile,
    configure_logging,
    current_context,
    log_context,
    logging_for,
    note,
    without_secrets,
)
from serve_app.settings import Settings
from storage.database import Connection
from tests.serve_app.running_api import SECRET, Customer, RunningApi
from tests.tables import every

KEY = "vas_live_" + "Ab3_-" * 8 + "xyz"
SIGNING_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with logging_for(made := Settings(data_dir=tmp_path, log_dir=tmp_path / "logs"), "tests"):
        yield made


def lines(settings: Settings) -> list[dict[str, Any]]:
    assert settings.log_dir is not None
    return [json.loads(line) for line in (settings.log_dir / LOG_NAME).read_text().splitlines()]


def test_a_record_is_one_json_object_with_what_it_is_about(settings: Settings) -> None:
    with log_context(jobId="j-1", accountId="a-1"):
        logging.getLogger("vas.runner").warning("job %s: lost\nand found", "j-1")
    [line] = lines(settings)
    assert {name: line[name] for name in ("level", "logger", "message", "jobId", "accountId")} == {
        "level": "WARNING",
        "logger": "vas.runner",
        "message": "job j-1: lost\nand found",
        "jobId": "j-1",
        "accountId": "a-1",
    }
    assert line["process"] == "tests"
    assert line["time"].endswith("Z")


def test_an_exception_stands_in_the_same_line_without_the_secret_it_tells(
    settings: Settings,
) -> None:
    try:
        int(f"no such key: {KEY}")
    except ValueError:
        logging.getLogger("vas.http").exception("request failed")
    [line] = lines(settings)
    assert "ValueError: invalid literal" in line["exception"]
    assert "no such key: vas_live_[hidden]" in line["exception"]


def test_a_traceback_is_text_in_a_replica_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve replaces ``print`` there by one that writes its arguments as a tuple."""
    monkeypatch.setattr(builtins, "print", redirected_print)
    try:
        int("none")
    except ValueError:
        logging.getLogger("vas.http").exception("request failed")
    text = lines(settings)[0]["exception"].splitlines()
    assert text[0] == "Traceback (most recent call last):"
    assert text[-1] == "ValueError: invalid literal for int() with base 10: 'none'"


@every(
    ("text", "secret"),
    [
        pytest.param(f"key {KEY} refused", KEY.removeprefix("vas_live_"), id="API key"),
        pytest.param("vas_sess_" + "q" * 43, "q" * 43, id="session"),
        pytest.param(
            f"signed with {SIGNING_SECRET}",
            SIGNING_SECRET.removeprefix("whsec_"),
            id="signing secret",
        ),
        pytest.param("{'Authorization': 'Bearer ya29.abc-def_ghi'}", "ya29", id="bearer token"),
        pytest.param("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNl", id="basic credentials"),
        pytest.param("postgresql://vas:hunter2@db/vas", "hunter2", id="database password"),
        pytest.param("host=db user=vas password=hunter2", "hunter2", id="connection string"),
        pytest.param("password='hunter 2' host=db", "hunter", id="quoted password"),
        pytest.param("https://u:p%40ss@files.example.com/a", "p%40ss", id="address with password"),
        pytest.param("PUT /u/1/media?expires=17&signature=0a1b2c", "0a1b2c", id="upload address"),
        pytest.param(
            "https://b.s3.example/k?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=deadbeef",
            "deadbeef",
            id="presigned address",
        ),
        pytest.param("https://x/?access_token=abc123&a=b", "abc123", id="token in an address"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    shown = without_secrets(text)
    assert secret not in shown
    assert "[hidden]" in shown


@every(
    "text",
    [
        "job 0b0f7c52-2e0e-4e5e-9d4d-3c8f0f1f2a3b: vision completed in 3.1 s",
        "GET /v1/api/jobs?limit=20&cursor=abc 200",
        "the schema is at 0004, the code needs 0005",
        "https://media.example.com:8443/a/b.mp4",
        "ray_vas_jobs vas_jobs_queued",
        "basic rules of bearer bonds",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert without_secrets(text) == text


def test_text_is_a_line_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        logging_for(Settings(data_dir=tmp_path, log_format="text"), "api"),
        log_context(requestId="req_1"),
    ):
        logging.getLogger("vas.http").error("first\nsecond %s", KEY)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("ERROR api vas.http: first\\nsecond vas_live_[hidden] requestId=req_1")


@pytest.mark.parametrize(
    ("level", "logger", "logged"),
    [
        ("INFO", "vas.runner", ["info", "warning"]),
        ("WARNING", "vas.runner", ["warning"]),
        ("DEBUG", "vas.runner", ["debug", "info", "warning"]),
        ("DEBUG", "ray.serve", ["warning"]),
    ],
)
def test_the_level_is_a_setting_and_serve_says_only_what_is_wrong(
    tmp_path: Path, level: Any, logger: str, logged: list[str]
) -> None:
    settings = Settings(data_dir=tmp_path, log_dir=tmp_path, log_level=level)
    before = logging.getLogger(logger).level
    try:
        with logging_for(settings, "tests"):
            for name in ("debug", "info", "warning"):
                getattr(logging.getLogger(logger), name)(name)
    finally:
        logging.getLogger(logger).setLevel(before)
    assert [line["message"] for line in lines(settings)] == logged


def test_ordinary_queueing_of_serve_is_no_warning(settings: Settings) -> None:
    log = logging.getLogger("ray.serve")
    log.warning("Replica at capacity of max_ongoing_requests=2, rejecting request 7.")
    log.warning("Replica 7 died.")
    assert [line["message"] for line in lines(settings)] == ["Replica 7 died."]


def test_configuring_twice_writes_once(settings: Settings) -> None:
    configure_logging(settings, "again")
    logging.getLogger("vas").warning("once")
    assert [(line["message"], line["process"]) for line in lines(settings)] == [("once", "again")]


def test_outside_of_a_request_nothing_can_be_noted() -> None:
    note(jobId="j-1")
    assert current_context() == {}


async def test_each_request_has_its_own_context_and_threads_share_it() -> None:
    async def work(number: int) -> object:
        with log_context(requestId=number):
            note(jobId=-number)
            await asyncio.sleep(0)
            return await asyncio.to_thread(lambda: dict(current_context()))

    found = await asyncio.gather(*(work(number) for number in range(20)))
    assert found == [{"requestId": number, "jobId": -number} for number in range(20)]
    assert current_context() == {}


def _write(path: Path, writer: int, count: int) -> None:
    handler = SharedFile(path, file_bytes=200_000, kept=100)
    for number in range(count):
        record = logging.LogRecord("vas", logging.INFO, "", 0, "x" * 900, (), None)
        record.msg = f"{writer} {number} {'x' * (number * 7 % 900)}"
        handler.emit(record)


def test_many_processes_share_a_file_that_is_turned_over_and_no_line_is_lost_or_torn(
    tmp_path: Path,
) -> None:
    path = tmp_path / LOG_NAME
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write, args=(path, n, 500)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    files = sorted(tmp_path.glob(f"{LOG_NAME}*"))
    found = [line for file in files for line in file.read_text().splitlines()]
    numbers = sorted(tuple(map(int, line.split()[:2])) for line in found)
    assert numbers == [(writer, number) for writer in range(2) for number in range(500)]
    assert len(files) > 2
    # Writers that look at the same moment may each add a line to a file that is just full.
    assert max(file.stat().st_size for file in files) < 200_000 + 2 * 1000


def test_only_so_many_full_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    handler = SharedFile(path, file_bytes=100, kept=2)
    for number in range(10):
        handler.emit(logging.LogRecord("vas", 20, "", 0, f"{number} {'x' * 80}", (), None))
    kept = {file.name: file.read_text()[0] for file in tmp_path.glob(f"{LOG_NAME}*")}
    assert kept == {LOG_NAME: "9", f"{LOG_NAME}.1": "8", f"{LOG_NAME}.2": "7"}


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_the_service_writes_names_the_request_and_the_account_and_no_secret(
    api: RunningApi, tmp_path: Path, log_format: Literal["json", "text"]
) -> None:
    """The object store breaks, so that a request with secrets in it ends in a traceback."""
    settings = api.settings.model_copy(
        update={"log_dir": tmp_path / "logs", "log_format": log_format, "data_dir": tmp_path}
    )
    (tmp_path / "objects").write_text("in the way")
    with logging_for(settings, "api"), RunningApi(settings) as broken:
        customer = broken.customer()
        created = broken.client.post("/jobs", json={"fileName": "a"}, headers=customer.headers)
        upload = created.json()["data"]["uploadUrl"]
        answer = httpx.put(upload, content=b"x", trust_env=False)
    assert answer.status_code == 500
    written = (tmp_path / "logs" / LOG_NAME).read_text()
    assert answer.json()["requestId"] in written
    assert "Traceback" in written
    for secret in (customer.key, upload.rsplit("signature=", 1)[1], SECRET):
        assert secret not in written


def test_a_failure_is_a_line_with_the_ids_of_request_account_and_job(
    api: RunningApi, customer: Customer, tmp_path: Path
) -> None:
    created = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
    job_id = created.json()["data"]["jobId"]

    async def damage(connection: Connection) -> None:
        statement = """
            UPDATE jobs SET batch_id = id, batch_index = 0, ingest_result = '{"clips": [1]}',
                source = source || '{"continuous": true}'
            WHERE id = %(id)s"""
        await connection.exec_driver_sql(statement, {"id": job_id})

    api.transact(damage)
    with logging_for(api.settings.model_copy(update={"log_dir": tmp_path}), "api"):
        answer = api.client.get(f"/jobs/{job_id}", headers=customer.headers)
    assert answer.status_code == 500
    [line] = [json.loads(line) for line in (tmp_path / LOG_NAME).read_text().splitlines()]
    assert line["requestId"] == answer.json()["requestId"]
    assert line["jobId"] == job_id
    assert line["accountId"] == str(customer.account_id)
    assert line["level"] == "ERROR"


def test_a_download_token_is_stored_encrypted(api: RunningApi, customer: Customer) -> None:
    token = "ya29.another-download-token"
    job = api.client.post(
        "/jobs/from-url",
        json={"url": "https://example.com/a.mp4", "downloadToken": token},
        headers=customer.headers,
    )
    assert token not in job.text
    query = "SELECT source::text FROM jobs WHERE id = :id"
    [(stored,)] = api.sql(query, id=job.json()["data"]["jobId"])
    assert token not in stored
