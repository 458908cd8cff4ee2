"""Comments on places in a job's media, who edits it, and links for readers without an account."""

from __future__ import annotations

import time
import uuid

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from storage import comments, keys
from tests.serve_app.published_jobs import complete, created, track
from tests.serve_app.running_api import Customer, RunningApi
from tests.tables import every


@pytest.fixture
def owner(api: RunningApi) -> tuple[Customer, str]:
    customer = api.customer()
    job_id = created(api, customer)
    complete(api, job_id, [track(0)], [])
    return customer, job_id


def test_a_comment_is_written_resolved_and_deleted(
    api: RunningApi, owner: tuple[Customer, str]
) -> None:
    customer, job_id = owner
    path, headers = f"/jobs/{job_id}/comments", customer.headers
    for place, words in ((8.5, "Second."), (1.25, "First.")):
        body = {"time": place, "text": words}
        assert api.client.post(path, json=body, headers=headers).status_code == 201
    first, second = api.client.get(path, headers=headers).json()["data"]
    assert [first["text"], first["time"], second["time"]] == ["First.", 1.25, 8.5]
    assert (first["author"], first["resolvedAt"]) == (None, None)
    own = f"{path}/{first['id']}"
    resolved = api.client.patch(own, json={"resolved": True}, headers=headers).json()["data"]
    assert resolved["resolvedAt"]
    opened = api.client.patch(own, json={"resolved": False}, headers=headers).json()["data"]
    assert opened["resolvedAt"] is None
    assert api.client.delete(own, headers=headers).json()["data"] == opened
    assert api.client.delete(own, headers=headers).status_code == 404
    assert api.client.get(path, headers=headers).json()["data"] == [second]


@every(
    ("body", "param"),
    [
        ({"time": -1.0, "text": "x"}, "time"),
        ({"time": 1.0, "text": ""}, "text"),
        ({"time": 1.0, "text": "x" * 2001}, "text"),
        ({"text": "x"}, "time"),
    ],
)
def test_bad_comments_are_named(
    api: RunningApi, owner: tuple[Customer, str], body: object, param: str
) -> None:
    customer, job_id = owner
    answer = api.client.post(f"/jobs/{job_id}/comments", json=body, headers=customer.headers)
    assert (answer.status_code, answer.json()["param"]) == (400, param)


def test_a_job_has_so_many_comments(
    api: RunningApi, owner: tuple[Customer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "MOST_COMMENTS", 2)
    customer, job_id = owner
    path, body = f"/jobs/{job_id}/comments", {"time": 1.0, "text": "x"}
    statuses = [
        api.client.post(path, json=body, headers=customer.headers).status_code for _ in range(3)
    ]
    assert statuses == [201, 201, 400]


def test_a_shared_link_shows_the_job_until_it_is_erased(
    api: RunningApi, owner: tuple[Customer, str]
) -> None:
    customer, job_id = owner
    path, headers = f"/jobs/{job_id}/share", customer.headers
    link = api.client.post(path, json={"days": 1}, headers=headers).json()["data"]
    shown = api.client.get(link["url"])
    assert shown.status_code == 200
    assert "morning." in shown.text
    assert "A woman speaks to the camera" in shown.text
    assert "csrf" not in shown.text
    altered = link["url"].replace("expires=", "expires=1")
    assert api.client.get(altered).status_code == 404
    signed = api.context.signer.sign_path(
        "share", f"/dashboard/shared/{job_id}", expires_at=int(time.time()) - 1
    )
    assert "expired" in api.client.get(f"{api.root}{signed}").text
    of_job = {"id": uuid.UUID(job_id)}
    pending = text("UPDATE jobs SET redact_after = now() WHERE id = :id")
    api.transact(lambda connection: connection.execute(pending, of_job))
    assert api.client.get(link["url"]).status_code == 404
    done = text("UPDATE jobs SET redact_after = NULL WHERE id = :id")
    api.transact(lambda connection: connection.execute(done, of_job))
    api.client.post(
        f"/jobs/{job_id}/comments", json={"time": 0.0, "text": "Gone?"}, headers=headers
    )
    assert api.client.post(f"/jobs/{job_id}/erase", headers=headers).is_success
    assert api.client.get(link["url"]).status_code == 404
    assert api.client.get(f"/jobs/{job_id}/comments", headers=headers).json()["data"] == []
    assert api.client.post(path, json={"days": 1}, headers=headers).status_code == 400
    late = api.client.post(
        f"/jobs/{job_id}/comments", json={"time": 0.0, "text": "Late."}, headers=headers
    )
    assert late.status_code == 400


def test_jobs_of_others_have_none_of_it(api: RunningApi, owner: tuple[Customer, str]) -> None:
    job_id, headers = owner[1], api.customer().headers
    body = {"time": 1.0, "text": "x"}
    own = api.client.post(f"/jobs/{job_id}/comments", json=body, headers=owner[0].headers)
    comment = f"/jobs/{job_id}/comments/{own.json()['data']['id']}"
    answers = [
        api.client.post(f"/jobs/{job_id}/comments", json=body, headers=headers),
        api.client.post(f"/jobs/{job_id}/share", json={}, headers=headers),
        api.client.patch(comment, json={"resolved": True}, headers=headers),
        api.client.delete(comment, headers=headers),
    ]
    assert [each.status_code for each in answers] == [404] * 4


def test_who_edits_sees_who_else_does(api: RunningApi, owner: tuple[Customer, str]) -> None:
    """Another session of the account, until it has not been heard of for some time."""
    customer, job_id = owner
    other = created(api, customer)

    async def editing(connection: AsyncConnection) -> list[list[str]]:
        sessions = [
            await keys.start_session(connection, customer.account_id, None) for _ in range(2)
        ]
        asked = [(0, job_id), (1, job_id), (0, job_id), (1, other), (0, job_id)]
        found = [
            await comments.note_editing(connection, sessions[who], uuid.UUID(job))
            for who, job in asked
        ]
        await comments.note_editing(connection, sessions[1], uuid.UUID(job_id))
        await connection.execute(text("UPDATE sessions SET editing_until = now()"))
        return [*found, await comments.note_editing(connection, sessions[0], uuid.UUID(job_id))]

    others = ["somebody else"]
    assert api.transact(editing) == [[], others, others, [], [], []]
