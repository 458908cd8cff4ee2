"""``GET /jobs``: pages, filters, cursors."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.settings import Settings
from storage import history, jobs
from storage.job_records import LEGACY_FILTERS, JobSource, NewJob
from storage.types import JobState, ProcessingMode, StageName, StageStatus
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every


@pytest.fixture(scope="module")
def api(api_settings: Settings) -> Iterator[RunningApi]:
    """With room for many unfinished jobs."""
    with RunningApi(api_settings.model_copy(update={"max_active_jobs": 1000})) as running:
        yield running


def listed(api: RunningApi, customer: Customer, **query: Any) -> dict[str, Any]:
    answer = api.client.get("/jobs", params=query, headers=customer.headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def insert_jobs(api: RunningApi, customer: Customer, *states: JobState) -> list[str]:
    """Jobs in given states, a transaction each, so that their times differ."""
    ids = []
    for state in states:
        job = NewJob(
            customer.account_id,
            JobState.QUEUED,
            ProcessingMode.ALL,
            "a.mp4",
            JobSource(kind="upload", base_url="http://x"),
        )

        async def insert(
            connection: AsyncConnection, job: NewJob = job, state: JobState = state
        ) -> None:
            await jobs.insert_job(connection, job)
            if state in {JobState.CANCELLED}:
                await jobs.set_state(
                    connection, job.id, expected=JobState.QUEUED, state=JobState.CANCELLED
                )

        api.transact(insert)
        ids.append(str(job.id))
    return ids


def walk(api: RunningApi, customer: Customer, limit: int, **query: Any) -> list[str]:
    """Every job id, page by page, as a client reads them."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = listed(api, customer, limit=limit, **query, **({"cursor": cursor} if cursor else {}))
        found += [job["jobId"] for job in page["data"]]
        if not page["hasMore"]:
            assert page["nextCursor"] is None
            return found
        cursor = page["nextCursor"]


def test_jobs_made_while_a_client_pages_neither_repeat_nor_hide_any(
    api: RunningApi, customer: Customer
) -> None:
    ids = insert_jobs(api, customer, *[JobState.QUEUED] * 6)
    first = listed(api, customer, limit=2)
    insert_jobs(api, customer, JobState.QUEUED, JobState.QUEUED)
    second = listed(api, customer, limit=100, cursor=first["nextCursor"])
    seen = [job["jobId"] for job in first["data"] + second["data"]]
    assert seen == ids[::-1]


COMPLETED_WORDS = {"COMPLETED", "INGEST_COMPLETED", "VIDEO_COMPLETED"}
ENDINGS: list[tuple[str, Any]] = [
    ("VISION_COMPLETED", {"scenes": 2}),
    ("VIDEO_COMPLETED_NO_SCENES", {"scenes": 0}),
    ("FAILED_FETCH", {"failed": StageName.INGEST, "code": "FETCH_FAILED"}),
    ("INGEST_FAILED", {"failed": StageName.INGEST, "code": "VALIDATION_FAILED"}),
    ("INGEST_FAILED", {"failed": None, "code": "PROCESSING_FAILED"}),
    ("VISION_FAILED", {"failed": StageName.VISION, "code": "VISION_FAILED"}),
    ("TRANSCRIPT_FAILED", {"failed": StageName.TRANSCRIPT, "code": "TRANSCRIPT_FAILED"}),
]


@every(("status", "ending"), ENDINGS, ids=str)
def test_the_legacy_filter_finds_what_shows_that_status_and_nothing_else(
    api: RunningApi, status: str, ending: dict[str, Any]
) -> None:
    customer = api.customer()
    [job_id] = insert_jobs(api, customer, JobState.QUEUED)

    async def end(connection: AsyncConnection) -> None:
        identifier = uuid.UUID(job_id)
        if "scenes" in ending:
            await history.store_scenes(
                connection, identifier, [{"index": n} for n in range(ending["scenes"])]
            )
        elif ending["failed"] is not None:
            await jobs.set_stage(
                connection,
                identifier,
                ending["failed"],
                StageStatus.FAILED,
                error_code=ending["code"],
            )
        await connection.execute(
            text(
                "UPDATE jobs SET state = :state, error_code = :code, completed_at = now()"
                " WHERE id = :id"
            ),
            {
                "state": "completed" if "scenes" in ending else "failed",
                "code": ending.get("code"),
                "id": identifier,
            },
        )

    api.transact(end)
    [shown] = listed(api, customer)["data"]
    assert shown["status"] == status
    names = {status, *(COMPLETED_WORDS if "scenes" in ending else {"FAILED"})}
    names |= {"COMPLETED_NO_SCENES"} if ending.get("scenes") == 0 else set()
    for name in LEGACY_FILTERS:
        expected = [job_id] if name in names else []
        assert walk(api, customer, 10, status=name) == expected, name


def test_list_items_are_reduced_jobs(api: RunningApi, customer: Customer) -> None:
    insert_jobs(api, customer, JobState.CANCELLED)
    [item] = listed(api, customer)["data"]
    assert not {"links", "warnings", "processedData"} & set(item)
    assert {"jobId", "state", "processingMode", "stages", "metadata", "createdAt"} <= set(item)
    assert all("error" not in stage for stage in item["stages"].values())


def test_unknown_query_parameters_are_ignored(api: RunningApi, customer: Customer) -> None:
    assert listed(api, customer, colour="blue")["data"] == []
