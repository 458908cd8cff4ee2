"""The same key: the same answer. Another body: a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from storage import ledger
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import expect_error

BODY = {"fileName": "a.mp4", "metadata": {"n": 1}}


def create(
    api: RunningApi, customer: Customer, key: str | None, body: Any = None, **more: Any
) -> Any:
    headers = customer.headers | ({} if key is None else {"Idempotency-Key": key})
    return api.client.post("/jobs", json=(BODY if body is None else body) | more, headers=headers)


def count_jobs(api: RunningApi, customer: Customer) -> int:
    async def count(connection: AsyncConnection) -> int:
        query = text("SELECT count(*) FROM jobs WHERE account_id = :id")
        return int((await connection.execute(query, {"id": customer.account_id})).scalar_one())

    return api.transact(count)


def test_a_repeat_gives_the_first_answer_to_the_byte(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k1")
    again = create(api, customer, "k1")
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["x-request-id"] == again.json()["requestId"]
    assert count_jobs(api, customer) == 1


def test_the_order_of_fields_does_not_matter(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k2")
    again = create(api, customer, "k2", {"metadata": {"n": 1}, "fileName": "a.mp4"})
    assert again.content == first.content


def test_the_key_may_stand_in_the_body(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, None, idempotencyKey="k3")
    again = create(api, customer, "k3")
    assert again.content == first.content


def test_another_body_is_refused(api: RunningApi, customer: Customer) -> None:
    create(api, customer, "k4")
    answer = create(api, customer, "k4", {"fileName": "b.mp4"})
    expect_error(answer, 422, "IDEMPOTENCY_BODY_MISMATCH")
    assert count_jobs(api, customer) == 1


def test_differing_header_and_body_keys_are_refused(api: RunningApi, customer: Customer) -> None:
    answer = create(api, customer, "k5", idempotencyKey="other")
    expect_error(answer, 422, "IDEMPOTENCY_BODY_MISMATCH")


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"], ids=["empty", "long", "not ASCII"])
def test_a_malformed_key_is_refused(api: RunningApi, customer: Customer, key: str) -> None:
    answer = create(api, customer, None, idempotencyKey=key)
    expect_error(answer, 400, "INVALID_REQUEST", "idempotencyKey")


def test_keys_belong_to_an_account_and_an_operation(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k6")
    other = create(api, api.customer(), "k6")
    assert first.json()["data"]["jobId"] != other.json()["data"]["jobId"]
    body = {"url": "https://example.com/a.mp4"}
    headers = customer.headers | {"Idempotency-Key": "k6"}
    assert api.client.post("/jobs/from-url", json=body, headers=headers).status_code == 201


def test_a_validation_failure_is_not_remembered(api: RunningApi, customer: Customer) -> None:
    expect_error(create(api, customer, "k7", {}), 400, "INVALID_REQUEST", "fileName")
    assert create(api, customer, "k7").status_code == 201


def test_a_refusal_for_want_of_credits_is_remembered(api: RunningApi) -> None:
    poor = api.customer(credits_cents=0)
    first = create(api, poor, "k8")
    expect_error(first, 402, "INSUFFICIENT_CREDITS")

    async def top_up(connection: AsyncConnection) -> None:
        await ledger.grant(connection, poor.account_id, 100, "test")

    api.transact(top_up)
    again = create(api, poor, "k8")
    assert again.content == first.content
    assert create(api, poor, "k9").status_code == 201


def test_a_429_is_not_remembered(api: RunningApi, customer: Customer) -> None:
    jobs = [create(api, customer, None) for _ in range(api.settings.max_active_jobs)]
    expect_error(create(api, customer, "k10"), 429, "TOO_MANY_ACTIVE_JOBS")
    job_id = jobs[0].json()["data"]["jobId"]
    api.client.post(f"/jobs/{job_id}/cancel", headers=customer.headers)
    assert create(api, customer, "k10").status_code == 201


def test_after_24_hours_the_key_is_new_again(api: RunningApi, customer: Customer) -> None:
    first = create(api, customer, "k11").json()["data"]["jobId"]

    async def age(connection: AsyncConnection) -> None:
        query = "UPDATE idempotency_records SET created_at = now() - interval '24 hours 1 second'"
        await connection.execute(text(query))

    api.transact(age)
    assert create(api, customer, "k11").json()["data"]["jobId"] != first
