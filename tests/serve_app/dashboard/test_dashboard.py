"""Sign-in, keys and their rotation, the signing secret; sessions and keys are not each other."""

from __future__ import annotations

from serve_app.api.authentication import LIMITS, Bucket
from storage import keys
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import expect_error


def sign_in(api: RunningApi, customer: Customer) -> dict[str, str]:
    """A session of the account, as the dashboard gets one."""
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    answer = api.client.post("/sessions", json={"token": token})
    assert answer.status_code == 201
    assert answer.json()["data"]["expiresInSeconds"] == 12 * 3600
    return {"Authorization": f"Bearer {answer.json()['data']['session']}"}


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
    api.sql("DELETE FROM rate_limits")


def test_a_sign_in_link_is_short_lived(api: RunningApi, customer: Customer) -> None:
    token = api.transact(lambda c: keys.create_sign_in_link(c, customer.account_id))
    api.sql(
        "UPDATE sign_in_links SET expires_at = now() WHERE account_id = :id",
        id=customer.account_id,
    )
    expect_error(api.client.post("/sessions", json={"token": token}), 401, "UNAUTHORIZED")


def test_a_session_ends(api: RunningApi, customer: Customer) -> None:
    session = sign_in(api, customer)
    assert api.client.get("/keys", headers=session).status_code == 200
    api.sql("UPDATE sessions SET expires_at = now() WHERE account_id = :id", id=customer.account_id)
    expect_error(api.client.get("/keys", headers=session), 401, "UNAUTHORIZED")


def test_a_new_key_lasts_as_long_as_the_old_one_and_one_that_is_over_gives_none(
    api: RunningApi, customer: Customer
) -> None:
    session = sign_in(api, customer)
    api.sql(
        "UPDATE api_keys SET expires_at = now() + interval '1 hour', benefit_id = 'bought'"
        " WHERE account_id = :id",
        id=customer.account_id,
    )
    [old] = api.client.get("/keys", headers=session).json()["data"]
    fresh = api.client.post(f"/keys/{old['id']}/rotate", headers=session).json()["data"]
    assert (fresh["expiresAt"], fresh["benefitId"]) == (old["expiresAt"], "bought")
    api.sql(
        "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE account_id = :id",
        id=customer.account_id,
    )
    answer = api.client.post(f"/keys/{fresh['id']}/rotate", headers=session)
    expect_error(answer, 404, "NOT_FOUND")


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
