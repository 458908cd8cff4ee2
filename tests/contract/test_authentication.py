"""Who may call: keys, sessions, nobody in particular."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from storage import keys
from tests.contract.calling import (
    RATE_HEADERS,
    Caller,
    ContractApi,
    refusal,
    shown,
)
from tests.contract.runner_side import TWO_TRACKS, RunnerSide
from tests.contract.spec_rows import covers, row_cells, rows_of
from tests.serve_app.running_api import within_a_minute
from tests.tables import every


def operations_with(auth: str) -> list[str]:
    """Names of the operations that the endpoints table opens to ``auth``."""
    names = rows_of("endpoints")
    return [name for name in names if row_cells(f"endpoints/{name}")[2] == auth]


KEYED, OPEN, SIGNED_IN = map(operations_with, ("key", "none", "session"))


def knock(api: ContractApi, operation: str, headers: dict[str, str]) -> Any:
    """A request to an endpoint that gets no further than the door, or to a missing item."""
    method, path, *_ = row_cells(f"endpoints/{operation}")
    named = {"jobId": uuid.uuid4(), "trackIndex": 0, "id": uuid.uuid4()}
    return api.client.request(method, path.format(**named), headers=headers)


@covers("auth-kinds/api-key")
@every("operation", KEYED)
def test_a_key_opens_in_either_header(caller: Caller, operation: str) -> None:
    key = caller.customer.key
    assert key.startswith("vas_live_")
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
        assert knock(caller.api, operation, headers).status_code not in {401, 403}
    for headers in ({}, {"Authorization": key}, {"Authorization": f"Basic {key}"}):
        refusal(knock(caller.api, operation, headers), 401, "UNAUTHORIZED")


@covers("auth-kinds/none")
@every("operation", OPEN)
def test_discovery_needs_no_credential_and_is_counted_by_address(
    api: ContractApi, operation: str
) -> None:
    path = row_cells(f"endpoints/{operation}")[1]
    for visitor in (1, 2):
        address = f"198.51.{visitor}.{OPEN.index(operation)}"
        answer = api.discover(path, address)
        assert answer.status_code in {200, 400}
        assert answer.headers["x-ratelimit-remaining"] == "119"


@covers("auth-kinds/session")
@every("operation", SIGNED_IN)
def test_only_a_session_opens_the_dashboard(caller: Caller, operation: str) -> None:
    session = caller.sign_in()
    assert knock(caller.api, operation, session).status_code in {200, 404}
    key = caller.customer.key
    for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}, {}):
        refusal(knock(caller.api, operation, headers), 401, "UNAUTHORIZED")


@covers("auth-rules/1", "error-codes/UNAUTHORIZED")
def test_what_is_no_live_key_is_unauthorized(caller: Caller) -> None:
    api, account = caller.api, caller.customer.account_id
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = api.transact(lambda c: keys.create_key(c, account, expires_at=past))
    revoked = api.transact(lambda c: keys.create_key(c, account))
    rotated = api.transact(lambda c: keys.create_key(c, account))
    for issued in (revoked, rotated):
        assert api.client.get("/quota", headers={"X-API-Key": issued.secret}).status_code == 200
    api.transact(lambda c: keys.revoke_key(c, revoked.id))
    api.client.post(f"/keys/{rotated.id}/rotate", headers=caller.sign_in())
    unknown = "vas_live_" + "x" * 43
    for text in (expired.secret, revoked.secret, rotated.secret, unknown, "vas_live_", "key", ""):
        answer = api.client.get("/quota", headers={"X-API-Key": text})
        refusal(answer, 401, "UNAUTHORIZED")
        assert not any(name in answer.headers for name in RATE_HEADERS)
    refusal(api.client.get("/quota"), 401, "UNAUTHORIZED")
    assert caller.get("/quota").status_code == 200


OF_A_JOB = [
    ("GET", "/jobs/{job}"),
    ("POST", "/jobs/{job}/cancel"),
    ("DELETE", "/jobs/{job}"),
    ("GET", "/jobs/{job}/transcript"),
    ("GET", "/jobs/{job}/scenes"),
    ("GET", "/jobs/{job}/audioTracks"),
    ("GET", "/jobs/{job}/audioTracks/1"),
]


@pytest.fixture(scope="module")
def foreign_job(api: ContractApi, runner: RunnerSide) -> str:
    return runner.complete(api.caller(), TWO_TRACKS)


@covers("auth-rules/2", "error-codes/NOT_FOUND")
@every(("method", "path"), OF_A_JOB)
def test_foreign_jobs_look_like_missing_ones(
    caller: Caller, foreign_job: str, method: str, path: str
) -> None:
    bodies = []
    for job in (foreign_job, str(uuid.uuid4()), "no-uuid"):
        body = refusal(caller.ask(method, path.format(job=job)), 404, "NOT_FOUND")
        bodies.append({**body, "requestId": ""})
    assert bodies[0] == bodies[1] == bodies[2]


@covers("auth-rules/2")
def test_foreign_keys_and_missing_tracks_are_not_found(caller: Caller, runner: RunnerSide) -> None:
    stranger = caller.api.caller()
    [foreign] = shown(caller.api.client.get("/keys", headers=stranger.sign_in()))
    session = caller.sign_in()
    for key_id in (foreign["id"], str(uuid.uuid4()), "no-uuid"):
        answer = caller.api.client.post(f"/keys/{key_id}/rotate", headers=session)
        refusal(answer, 404, "NOT_FOUND")
    assert stranger.get("/quota").status_code == 200
    own = runner.complete(caller, TWO_TRACKS)
    refusal(caller.get(f"/jobs/{own}/audioTracks/2"), 404, "NOT_FOUND")


@covers("auth-rules/3")
def test_all_keys_of_an_account_share_its_buckets(api: ContractApi) -> None:
    def remaining() -> list[str]:
        caller = api.caller()
        second = api.transact(lambda c: keys.create_key(c, caller.customer.account_id))
        return [
            api.client.get("/quota", headers={"X-API-Key": key}).headers["x-ratelimit-remaining"]
            for key in (caller.customer.key, second.secret, caller.customer.key)
        ]

    assert within_a_minute(remaining) == ["599", "598", "597"]
    stranger = api.caller().get("/quota")
    assert stranger.headers["x-ratelimit-remaining"] == "599"


@covers("auth-rules/5", "error-codes/ACCOUNT_SUSPENDED")
def test_a_suspended_account_is_refused(caller: Caller) -> None:
    session = caller.sign_in()
    account = caller.customer.account_id
    caller.api.transact(lambda c: keys.set_restrictions(c, account, suspended=True))
    for answer in (
        caller.get("/quota"),
        caller.get("/jobs"),
        caller.post("/jobs", {"fileName": "a.mp4"}),
        caller.api.client.get("/keys", headers=session),
    ):
        refusal(answer, 403, "ACCOUNT_SUSPENDED")
    caller.api.transact(lambda c: keys.set_restrictions(c, account, suspended=False))
    assert caller.get("/quota").status_code == 200


@covers("auth-rules/6")
def test_the_signing_secret_is_apart_from_the_keys(caller: Caller) -> None:
    api, session = caller.api, caller.sign_in()
    secret = shown(api.client.get("/webhooks/secret", headers=session))["secret"]
    for headers in ({"X-API-Key": secret}, {"Authorization": f"Bearer {secret}"}):
        refusal(api.client.get("/quota", headers=headers), 401, "UNAUTHORIZED")
    api.client.post("/webhooks/secret/rotate", headers=session)
    assert caller.get("/quota").status_code == 200
    after_rotation = shown(api.client.get("/webhooks/secret", headers=session))
    [key] = shown(api.client.get("/keys", headers=session))
    api.client.post(f"/keys/{key['id']}/rotate", headers=session)
    assert shown(api.client.get("/webhooks/secret", headers=session)) == after_rotation


@covers("auth-rules/7")
def test_a_session_comes_from_a_sign_in_link_and_works_as_a_bearer_token(caller: Caller) -> None:
    session = caller.sign_in()["Authorization"].removeprefix("Bearer ")
    assert session.startswith("vas_sess_")
    client = caller.api.client
    assert client.get("/keys", headers={"Authorization": f"Bearer {session}"}).status_code == 200
    for headers in ({"X-API-Key": session}, {"Authorization": f"Bearer {session}x"}):
        refusal(client.get("/keys", headers=headers), 401, "UNAUTHORIZED")
