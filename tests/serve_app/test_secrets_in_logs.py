"""Secrets of clients stay out of the service's log, whatever goes wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Literal

import httpx
import pytest

from serve_app.observability.logs import LOG_NAME, logging_for
from storage.database import Connection
from tests.serve_app.running_api import SECRET, Customer, RunningApi


def test_keys_tokens_and_signed_addresses_are_never_logged(
    api: RunningApi, customer: Customer, caplog: pytest.LogCaptureFixture
) -> None:
    token = "ya29.a-download-token-of-a-client"
    with caplog.at_level(logging.DEBUG):
        job = api.client.post(
            "/jobs/from-url",
            json={"url": "https://example.com/a.mp4", "downloadToken": token},
            headers=customer.headers,
        ).json()["data"]
        upload = api.client.post(
            "/jobs", json={"fileName": "a.mp4"}, headers=customer.headers
        ).json()["data"]["uploadUrl"]
        api.client.put(upload.replace("expires=", "expires=1"), content=b"x")
        api.client.put(upload, content=b"x")
        api.client.get(f"/jobs/{job['jobId']}", headers=customer.headers)
        api.client.get("/jobs", headers={"X-API-Key": customer.key + "x"})
        api.client.post("/sessions", json={"token": "a-sign-in-token-that-nobody-has"})
    ours = "\n".join(
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("vas", "serve_app", "storage", "pipelines", "sqlalchemy"))
    )
    signature = upload.rsplit("signature=", 1)[1]
    for secret in (customer.key, token, signature, "a-sign-in-token-that-nobody-has"):
        assert secret not in ours


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

    async def stored(connection: object) -> str:
        from sqlalchemy import text

        query = text("SELECT source::text FROM jobs WHERE id = :id")
        row = await connection.execute(query, {"id": job.json()["data"]["jobId"]})  # type: ignore[attr-defined]
        return str(row.scalar_one())

    assert token not in api.transact(stored)
