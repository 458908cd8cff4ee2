"""Secrets of clients stay out of the service's log, whatever goes wrong."""

from __future__ import annotations

import logging

import pytest

from tests.api.conftest import Customer, RunningApi


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
