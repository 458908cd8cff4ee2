"""The API under Schemathesis: every operation alone, and sequences along the links."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from serve_app.settings import Settings
from tests.contract.document_cases import (
    OPERATIONS,
    SCENARIOS,
    SCHEMA,
    Visitors,
    run_sequences,
    try_operation,
)
from tests.databases import fresh_database
from tests.serve_app.running_api import SECRET, RunningApi
from tests.tables import every


@pytest.fixture(scope="module")
def running_api(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningApi]:
    with fresh_database(postgres_url) as url:
        configured = Settings(
            data_dir=Path(tmp_path_factory.mktemp("data")),
            database_url=url,
            secret_key=SECRET,
            max_active_jobs=100_000,
            allowed_networks=(ip_network("127.0.0.0/8"),),
        )
        with RunningApi(configured) as running:
            yield running


@pytest.fixture(scope="module")
def visitors(running_api: RunningApi) -> Visitors:
    return Visitors(running_api)


@every("operation_id", OPERATIONS)
def test_operation(operation_id: str, visitors: Visitors) -> None:
    try_operation(SCHEMA, operation_id, visitors)


def test_sequences_along_the_links(visitors: Visitors) -> None:
    run_sequences(visitors, SCENARIOS)


def test_what_is_freed_stays_freed(visitors: Visitors, running_api: RunningApi) -> None:
    """What Schemathesis looks for behind DELETE is here behind rotations and cancellations."""
    client = running_api.client
    visitor = visitors.new()
    session = visitor.headers_for("listKeys")
    key_headers = visitor.headers_for("createJob")
    job = client.post("/jobs", json={"fileName": "a.mp4"}, headers=key_headers).json()["data"]
    assert client.delete(f"/jobs/{job['jobId']}", headers=key_headers).status_code == 200
    assert client.delete(f"/jobs/{job['jobId']}", headers=key_headers).status_code == 409
    assert client.put(job["uploadUrl"], content=b"x").status_code == 409
    key_id = client.get("/keys", headers=session).json()["data"][-1]["id"]
    assert client.post(f"/keys/{key_id}/rotate", headers=session).status_code == 200
    assert client.post(f"/keys/{key_id}/rotate", headers=session).status_code == 404
    assert client.get("/jobs", headers=key_headers).status_code == 401
