"""What the reaper removes once its time is over, and what it keeps."""

from __future__ import annotations

import uuid

from storage import keys
from tests.serve_app.beside_jobs import behind
from tests.serve_app.beside_jobs import sweep as sweep_all
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_idempotency import create as create_with_key
from tests.serve_app.test_jobs_api import create, put, state_of


def sweep(api: RunningApi) -> None:
    behind(api, sweep_all)


def rows(api: RunningApi, table: str) -> int:
    [(count,)] = api.sql(f"SELECT count(*) FROM {table}")  # noqa: S608
    return int(count)


def test_media_of_a_job_that_ended_go_after_a_while_and_its_stills_stay(
    api: RunningApi, customer: Customer
) -> None:
    job_id = create(api, customer, processingMode="vision")["jobId"]
    store = api.context.objects
    store.write_bytes(f"jobs/{job_id}/source/media", b"footage")
    store.write_bytes(f"jobs/{job_id}/work/still.jpg", b"still")
    api.sql(
        "INSERT INTO scene_lists VALUES (:id, :scenes, 1)",
        id=uuid.UUID(job_id),
        scenes=f'[{{"index": 0, "thumbnail_key": "jobs/{job_id}/work/still.jpg"}}]',
    )
    api.sql(
        "UPDATE stages SET status = 'completed' WHERE job_id = :id AND stage = 'vision'",
        id=uuid.UUID(job_id),
    )
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    sweep(api)
    assert store.exists(f"jobs/{job_id}/source/media"), "running tasks may still read it"
    api.sql(
        "UPDATE jobs SET completed_at = now() - interval '31 seconds' WHERE id = :id",
        id=uuid.UUID(job_id),
    )
    sweep(api)
    assert list(store.list_keys(f"jobs/{job_id}")) == [f"jobs/{job_id}/work/still.jpg"]


def test_an_upload_that_never_came_expires_the_job_and_frees_its_credits(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    api.sql(
        "UPDATE jobs SET upload_expires_at = now() WHERE id = :id",
        id=uuid.UUID(job["jobId"]),
    )
    sweep(api)
    assert state_of(api, customer, job["jobId"]) == "expired"
    quota = api.client.get("/quota", headers=customer.headers).json()["data"]["api"]
    assert quota["heldCents"] == 0
    assert put(job["uploadUrl"], b"too late").status_code == 409


def test_rows_whose_time_is_over_are_forgotten(api: RunningApi, customer: Customer) -> None:
    create_with_key(api, customer, "old")
    create_with_key(api, customer, "new")
    api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    api.sql(
        "UPDATE idempotency_records SET created_at = now() - interval '25 hours' WHERE key = 'old'",
    )
    api.sql("UPDATE sign_in_links SET expires_at = now() - interval '1 second'")
    api.sql("UPDATE rate_limits SET minute = minute - 20")
    sweep(api)
    assert rows(api, "idempotency_records") == 1
    assert rows(api, "sign_in_links") == 0
    assert rows(api, "rate_limits") == 0
