"""What all creations share: idempotency, callbacks, media URLs, counting."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from storage.access import IdempotencyKey, try_lock_key
from storage.database import Connection
from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.spec_rows import covers
from tests.tables import every

URL = "https://media.example.com/clip.mp4"
CREATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "createJob": ("/jobs", {"fileName": "clip.mp4"}),
    "createJobFromUrl": ("/jobs/from-url", {"url": URL}),
    "createBatch": ("/jobs/batch", {"mode": "independent", "clips": [{"sourceUrl": URL}]}),
}
each_creation = pytest.mark.parametrize(
    ("operation", "path", "body"),
    [(name, *creation) for name, creation in CREATIONS.items()],
    ids=list(CREATIONS),
)


@covers("creation-rules/1", "error-codes/IDEMPOTENCY_BODY_MISMATCH")
@each_creation
def test_the_key_may_stand_in_header_or_body_but_not_differ(
    caller: Caller, operation: str, path: str, body: dict[str, Any]
) -> None:
    in_body = caller.post(path, body | {"idempotencyKey": "k"})
    in_header = caller.post(path, body, idempotency_key="k")
    in_both = caller.post(path, body | {"idempotencyKey": "k"}, idempotency_key="k")
    assert in_body.content == in_header.content == in_both.content
    differing = caller.post(path, body | {"idempotencyKey": "k"}, idempotency_key="other")
    refusal(differing, 422, "IDEMPOTENCY_BODY_MISMATCH")


UNKNOWN: dict[str, tuple[dict[str, Any], list[tuple[str, str | None]]]] = {
    "misspelt": ({"procesingMode": "vision"}, [("procesingMode", "processingMode")]),
    "nothing alike": ({"zzz": 1}, [("zzz", None)]),
    "known": ({"processingMode": "vision", "metadata": {"procesingMode": 1}}, []),
    "what cannot be shown": ({"a\t\n\u202eb": 1}, [("a???b", None)]),
    "long": ({"q" * 5000: 1}, [("q" * 100, None)]),
    "many": ({f"x{n:02}": 1 for n in range(50)}, [(f"x{n:02}", None) for n in range(20)]),
}


@each_creation
@pytest.mark.parametrize("given", UNKNOWN)
def test_a_field_that_there_is_none_of_is_a_warning(
    caller: Caller, operation: str, path: str, body: dict[str, Any], given: str
) -> None:
    """It costs money to find that out from results."""
    fields, expected = UNKNOWN[given]
    sent = json.dumps({**body, **fields})
    headers = {"Content-Type": "application/json"}
    made = shown(caller.ask("POST", path, content=sent, headers=headers))
    [job] = made["jobs"] if operation == "createBatch" else [made]
    assert job["warnings"] == [warning(*each) for each in expected]
    assert shown(caller.get(f"/jobs/{job['jobId']}"))["warnings"] == job["warnings"]


def warning(param: str, meant: str | None) -> dict[str, str]:
    message = f"There is no field {param}: it was ignored."
    message += "" if meant is None else f" Is {meant} meant?"
    return {"code": "UNKNOWN_FIELD", "message": message, "param": param}


def test_an_unknown_field_of_a_part_is_named_by_its_place(caller: Caller) -> None:
    track = {"fileName": "boom.wav", "syncmode": "timecode"}
    made = caller.create(audioTracks=[{"fileName": "a.wav"}, track])
    assert made["warnings"] == [warning("audioTracks[1].syncmode", "audioTracks[1].syncMode")]
    clips = [{"sourceUrl": URL, "filename": "a.mp4"}, {"sourceUrl": URL}]
    named = warning("clips[0].filename", "clips[0].fileName")
    for mode, expected in (("independent", [[named], []]), ("continuous", [[named]])):
        answer = caller.post("/jobs/batch", {"mode": mode, "clips": clips})
        assert [job["warnings"] for job in shown(answer)["jobs"]] == expected


@covers("creation-rules/2", "error-codes/IDEMPOTENCY_IN_PROGRESS", "limits/idempotency-key-memory")
@each_creation
def test_a_key_is_remembered_for_24_hours_and_taken_while_in_progress(
    caller: Caller, operation: str, path: str, body: dict[str, Any]
) -> None:
    first = caller.post(path, body, idempotency_key="k")
    assert first.status_code == 201
    replay = caller.post(path, body, idempotency_key="k")
    assert (replay.status_code, replay.content) == (201, first.content)
    other_body = body | {"metadata": {"n": 1}}
    differing = caller.post(path, other_body, idempotency_key="k")
    refusal(differing, 422, "IDEMPOTENCY_BODY_MISMATCH")
    age(caller, "23 hours 59 minutes")
    assert caller.post(path, body, idempotency_key="k").content == first.content
    age(caller, "24 hours 1 second")
    assert caller.post(path, other_body, idempotency_key="k").content != first.content
    in_progress = while_in_progress(caller, operation, path, body)
    refusal(in_progress, 409, "IDEMPOTENCY_IN_PROGRESS", retry_after="2")


def age(caller: Caller, how_much: str) -> None:
    caller.api.sql(
        "UPDATE idempotency_records SET created_at = now() - CAST(:age AS interval)"
        " WHERE account_id = :id",
        age=how_much,
        id=caller.customer.account_id,
    )


def while_in_progress(caller: Caller, operation: str, path: str, body: dict[str, Any]) -> Any:
    """The answer to a repeat while the first request still runs."""

    async def work(connection: Connection) -> Any:
        assert await try_lock_key(
            connection, IdempotencyKey(caller.customer.account_id, operation, "busy")
        )
        return await asyncio.to_thread(caller.post, path, body, idempotency_key="busy")

    answer = caller.api.transact(work)
    assert caller.post(path, body, idempotency_key="busy").status_code == 201
    return answer


BAD_CALLBACKS = [
    "http://customer.example.com/hook",
    "customer.example.com/hook",
    "ftp://customer.example.com/hook",
    "https://10.0.0.1/hook",
    "https://192.168.1.1/hook",
    "https://169.254.169.254/hook",
    "https://[fd00::1]/hook",
    "https://user:password@customer.example.com/hook",
    "https:///hook",
]
OWN_MACHINE = ["https://127.0.0.1/hook", "https://localhost/hook", "https://db.internal/hook"]


@covers("creation-rules/3", "error-codes/INVALID_CALLBACK_URL", "delivery/6")
@each_creation
def test_a_callback_must_be_a_public_https_url(
    caller: Caller, strict_api: ContractApi, operation: str, path: str, body: dict[str, Any]
) -> None:
    strict = Caller(strict_api, caller.customer)
    for url in (*BAD_CALLBACKS, *OWN_MACHINE):
        answer = strict.post(path, body | {"callbackUrl": url})
        refusal(answer, 400, "INVALID_CALLBACK_URL", param="callbackUrl")
    assert strict.get("/jobs").json()["data"] == []
    good = body | {"callbackUrl": "https://customer.example.com/hook"}
    assert strict.post(path, good).status_code == 201


@covers("error-codes/INVALID_CALLBACK_URL", "webhook-test-body/url", "delivery/6")
def test_the_test_endpoint_calls_only_public_https_on_port_443(
    caller: Caller, strict_api: ContractApi
) -> None:
    for start in range(0, len(BAD_CALLBACKS + OWN_MACHINE), 4):  # five a minute an account
        strict = Caller(strict_api, caller.api.customer())
        for url in (BAD_CALLBACKS + OWN_MACHINE)[start : start + 4]:
            answer = strict.post("/webhooks/test", {"url": url})
            refusal(answer, 400, "INVALID_CALLBACK_URL", param="url")
    strict = Caller(strict_api, caller.customer)
    other_port = strict.post("/webhooks/test", {"url": "https://customer.example.com:8443/"})
    refusal(other_port, 400, "INVALID_CALLBACK_URL", param="url")
    for body in ({}, {"url": 5}):
        refusal(strict.post("/webhooks/test", body), 400, "INVALID_REQUEST", param="url")


NOT_ABSOLUTE = ["clip.mp4", "//media.example.com/a.mp4", "ftp://media.example.com/a.mp4", "http://"]
NOT_ALLOWED = {
    "private": "http://10.0.0.1/a.mp4",
    "loopback": "http://127.0.0.1/a.mp4",
    "loopback by name": "http://localhost/a.mp4",
    "link-local": "http://[fe80::1]/a.mp4",
    "metadata": "http://169.254.169.254/latest/meta-data",
    "internal name": "https://files.corp/a.mp4",
    "bare name": "https://fileserver/a.mp4",
    "IPv4 in disguise": "http://0x7f.1/a.mp4",
}


def media_bodies(url: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Param to path and body, for every field that names media."""
    return {
        "url": ("/jobs/from-url", {"url": url}),
        "audioUrl": ("/jobs/from-url", {"url": URL, "audioUrl": url}),
        "audioTracks[1].url": (
            "/jobs/from-url",
            {"url": URL, "audioTracks": [{"url": URL}, {"url": url}]},
        ),
        "clips[1].sourceUrl": (
            "/jobs/batch",
            {"mode": "continuous", "clips": [{"sourceUrl": URL}, {"sourceUrl": url}]},
        ),
    }


@covers("creation-rules/4", "error-codes/INVALID_URL")
@every("url", NOT_ABSOLUTE)
def test_media_urls_must_be_absolute_http_or_https(caller: Caller, url: str) -> None:
    for param, (path, body) in media_bodies(url).items():
        refusal(caller.post(path, body), 400, "INVALID_URL", param=param)


@covers("creation-rules/4", "error-codes/URL_NOT_ALLOWED")
@every("kind", list(NOT_ALLOWED))
def test_media_urls_must_not_point_inside(strict_api: ContractApi, kind: str) -> None:
    strict = strict_api.caller()
    for param, (path, body) in media_bodies(NOT_ALLOWED[kind]).items():
        refusal(strict.post(path, body), 400, "URL_NOT_ALLOWED", param=param)


@covers("creation-rules/5")
@each_creation
def test_a_creation_counts_in_its_bucket_and_as_an_active_job(
    caller: Caller, operation: str, path: str, body: dict[str, Any]
) -> None:
    answer = caller.post(path, body)
    assert answer.headers["x-ratelimit-limit"] == "30"
    assert answer.headers["x-ratelimit-remaining"] == "29"
    caller.api.sql(
        "UPDATE accounts SET max_active_jobs = 1 WHERE id = :id", id=caller.customer.account_id
    )
    full = caller.post(path, body)
    refusal(full, 429, "TOO_MANY_ACTIVE_JOBS", retry_after="30", maxActiveJobs=1, activeJobs=1)


@covers("notes/batch-counting")
def test_a_batch_counts_once_as_a_request_and_each_clip_as_a_job(caller: Caller) -> None:
    clips = [{"sourceUrl": URL}] * 30
    independent = caller.post("/jobs/batch", {"mode": "independent", "clips": clips})
    assert independent.status_code == 201
    assert independent.headers["x-ratelimit-remaining"] == "29"
    again = caller.post("/jobs/batch", {"mode": "independent", "clips": clips})
    refusal(again, 429, "TOO_MANY_ACTIVE_JOBS", retry_after="30", maxActiveJobs=50, activeJobs=30)
    continuous = shown(caller.post("/jobs/batch", {"mode": "continuous", "clips": clips}))
    assert len(continuous["jobs"]) == 1


def test_the_clips_of_a_timeline_keep_their_clients_metadata(caller: Caller) -> None:
    clips = [{"sourceUrl": URL, "metadata": {"take": 1}}, {"sourceUrl": URL}]
    body = {"mode": "continuous", "clips": clips, "metadata": {"reel": "A"}}
    [job] = shown(caller.post("/jobs/batch", body))["jobs"]
    assert job["metadata"] == {"reel": "A"}
    assert [clip["metadata"] for clip in job["clips"]] == [{"take": 1}, {}]
