"""Sign-in, keys and their rotation, the signing secret; sessions and keys are not each other."""

from __future__ import annotations

import base64
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from serve_app.api.authentication import LIMITS, Bucket
from storage import keys, ledger
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import expect_error


def sign_in(api: RunningApi, customer: Customer) -> dict[str, str]:
    """A session of the account, as the dashboard gets one."""
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    answer = api.client.post("/sessions", json={"token": token})
    assert answer.status_code == 201
    assert answer.json()["data"]["expiresInSeconds"] == 12 * 3600
    return {"Authorization": f"Bearer {answer.json()['data']['session']}"}


def run_sql(api: RunningApi, statement: str, **parameters: Any) -> None:
    async def run(connection: AsyncConnection) -> None:
        await connection.execute(text(statement), parameters)

    api.transact(run)


def test_a_sign_in_link_works_once(api: RunningApi, customer: Customer) -> None:
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    assert api.client.post("/sessions", json={"token": token}).status_code == 201
    expect_error(api.client.post("/sessions", json={"token": token}), 401, "UNAUTHORIZED")


def test_sign_in_tokens_are_not_guessed_without_limit(api: RunningApi) -> None:
    for _ in range(2 * LIMITS[Bucket.DISCOVERY] + 1):  # the minute may end meanwhile
        answer = api.client.post("/sessions", json={"token": "guessed"})
        if answer.status_code != 401:
            break
    expect_error(answer, 429, "RATE_LIMITED")
    assert int(answer.headers["retry-after"]) > 0
    run_sql(api, "DELETE FROM rate_limits")


def test_a_sign_in_link_is_short_lived(api: RunningApi, customer: Customer) -> None:
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    run_sql(
        api,
        "UPDATE sign_in_links SET expires_at = now() WHERE account_id = :id",
        id=customer.account_id,
    )
    expect_error(api.client.post("/sessions", json={"token": token}), 401, "UNAUTHORIZED")


SESSION_PATHS = [
    ("GET", "/keys"),
    ("GET", "/keys/portal"),
    ("POST", "/keys/6f9619ff-8b86-4d01-b42d-00cf4fc964ff/rotate"),
    ("GET", "/webhooks/secret"),
    ("POST", "/webhooks/secret/rotate"),
]


@pytest.mark.parametrize(("method", "path"), SESSION_PATHS)
def test_an_api_key_opens_no_dashboard_endpoint(
    api: RunningApi, customer: Customer, method: str, path: str
) -> None:
    for headers in (customer.headers, {"Authorization": f"Bearer {customer.key}"}, {}):
        expect_error(api.client.request(method, path, headers=headers), 401, "UNAUTHORIZED")


def test_a_session_opens_no_keyed_endpoint(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    expect_error(api.client.get("/jobs", headers=session), 401, "UNAUTHORIZED")


def test_a_session_ends(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    assert api.client.get("/keys", headers=session).status_code == 200
    run_sql(
        api, "UPDATE sessions SET expires_at = now() WHERE account_id = :id", id=customer.account_id
    )
    expect_error(api.client.get("/keys", headers=session), 401, "UNAUTHORIZED")


def test_keys_are_listed_without_their_secrets(api: RunningApi, customer: Customer) -> None:
    answer = api.client.get("/keys", headers=sign_in(api, customer))
    [key] = answer.json()["data"]
    assert set(key) == {"id", "displayKey", "status", "expiresAt", "benefitId", "createdAt"}
    assert key["displayKey"] == f"vas_live_…{customer.key[-4:]}"
    assert key["status"] == "active"
    assert customer.key not in answer.text


def test_rotation_shows_the_new_key_once_and_ends_the_old_one(
    api: RunningApi, customer: Customer
) -> None:
    session = sign_in(api, customer)
    [old] = api.client.get("/keys", headers=session).json()["data"]
    rotated = api.client.post(f"/keys/{old['id']}/rotate", headers=session).json()["data"]
    assert rotated["status"] == "active"
    assert rotated["displayKey"].endswith(rotated["key"][-4:])
    assert api.client.get("/quota", headers={"X-API-Key": rotated["key"]}).status_code == 200
    expect_error(api.client.get("/quota", headers=customer.headers), 401, "UNAUTHORIZED")
    statuses = [key["status"] for key in api.client.get("/keys", headers=session).json()["data"]]
    assert statuses == ["active", "rotated"]
    again = api.client.post(f"/keys/{old['id']}/rotate", headers=session)
    expect_error(again, 404, "NOT_FOUND")


def test_a_new_key_lasts_as_long_as_the_old_one_and_one_that_is_over_gives_none(
    api: RunningApi, customer: Customer
) -> None:
    session = sign_in(api, customer)
    run_sql(
        api,
        "UPDATE api_keys SET expires_at = now() + interval '1 hour', benefit_id = 'bought'"
        " WHERE account_id = :id",
        id=customer.account_id,
    )
    [old] = api.client.get("/keys", headers=session).json()["data"]
    fresh = api.client.post(f"/keys/{old['id']}/rotate", headers=session).json()["data"]
    assert (fresh["expiresAt"], fresh["benefitId"]) == (old["expiresAt"], "bought")
    run_sql(
        api,
        "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE account_id = :id",
        id=customer.account_id,
    )
    answer = api.client.post(f"/keys/{fresh['id']}/rotate", headers=session)
    expect_error(answer, 404, "NOT_FOUND")


def test_keys_of_other_accounts_cannot_be_rotated(api: RunningApi, customer: Customer) -> None:
    other = api.customer()
    [key] = api.client.get("/keys", headers=sign_in(api, other)).json()["data"]
    answer = api.client.post(f"/keys/{key['id']}/rotate", headers=sign_in(api, customer))
    expect_error(answer, 404, "NOT_FOUND")
    assert api.client.get("/quota", headers=other.headers).status_code == 200


def test_a_revoked_and_an_expired_key_open_nothing(api: RunningApi, customer: Customer) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = api.transact(lambda c: keys.create_key(c, customer.account_id, expires_at=past))
    revoked = api.transact(lambda c: keys.create_key(c, customer.account_id))
    assert api.transact(lambda c: keys.revoke_key(c, revoked.id))
    for issued in (expired, revoked):
        answer = api.client.get("/quota", headers={"X-API-Key": issued.secret})
        expect_error(answer, 401, "UNAUTHORIZED")
    shown = api.client.get("/keys", headers=sign_in(api, customer)).json()["data"]
    assert {key["status"] for key in shown} == {"active", "expired", "revoked"}


def test_the_signing_secret_is_made_once_and_rotated(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    first = api.client.get("/webhooks/secret", headers=session).json()["data"]
    assert first == api.client.get("/webhooks/secret", headers=session).json()["data"]
    assert first["rotatedAt"] is None
    assert len(base64.b64decode(first["secret"].removeprefix("whsec_"))) == 24
    rotated = api.client.post("/webhooks/secret/rotate", headers=session).json()["data"]
    assert rotated["secret"] != first["secret"]
    assert rotated["rotatedAt"] is not None
    assert rotated["createdAt"] == first["createdAt"]


def test_the_signing_secret_is_encrypted_at_rest(api: RunningApi, customer: Customer) -> None:
    secret = api.client.get("/webhooks/secret", headers=sign_in(api, customer)).json()["data"]

    async def stored(connection: AsyncConnection) -> bytes:
        query = text("SELECT current FROM signing_secrets WHERE account_id = :id")
        return bytes((await connection.execute(query, {"id": customer.account_id})).scalar_one())

    sealed = api.transact(stored)
    assert secret["secret"].encode() not in sealed
    assert api.context.encrypter.decrypt(sealed) == secret["secret"]


def test_the_portal_is_there_only_after_a_purchase(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    expect_error(api.client.get("/keys/portal", headers=session), 404, "NOT_FOUND")
    api.transact(
        lambda c: ledger.record_purchase(
            c, customer.account_id, 500, provider=ledger.OPERATOR, reference=uuid.uuid4().hex
        )
    )
    url = api.client.get("/keys/portal", headers=session).json()["data"]["url"]
    assert url.startswith(f"{api.root}/portal/")


def test_a_suspended_account_is_refused_everywhere(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    api.transact(lambda c: keys.set_restrictions(c, customer.account_id, suspended=True))
    answer = api.client.get("/jobs", headers=customer.headers)
    expect_error(answer, 403, "ACCOUNT_SUSPENDED")
    assert answer.headers["x-ratelimit-limit"] == "600"
    expect_error(api.client.get("/keys", headers=session), 403, "ACCOUNT_SUSPENDED")
    api.transact(lambda c: keys.set_restrictions(c, customer.account_id, suspended=False))
    assert api.client.get("/jobs", headers=customer.headers).status_code == 200


def test_a_throttled_account_creates_nothing_but_reads_on(
    api: RunningApi, customer: Customer
) -> None:
    api.transact(lambda c: keys.set_restrictions(c, customer.account_id, throttled=True))
    answer = api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
    expect_error(answer, 429, "THROTTLED")
    assert answer.headers["retry-after"] == "3600"
    assert api.client.get("/jobs", headers=customer.headers).status_code == 200
