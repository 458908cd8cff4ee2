"""The client keeps to the API's rules: what it sends, what it repeats, what it gives up on."""

from __future__ import annotations

import hashlib
import socket
import tracemalloc
from pathlib import Path

import httpx
import pytest

from serve_app.client.api import UPLOAD_CHUNK_BYTES, ApiClient, RequestFailedError, WaitTimeoutError
from tests.serve_app.client.scripted_api import (
    REQUEST_ID,
    Answer,
    ScriptedApi,
    data,
    error,
)
from tests.tables import every

JOB_ID = "7f1d9c1e-52a3-4d52-9a3c-0f6b0d1c2e3f"
JOB = f"/jobs/{JOB_ID}"


def job(state: str) -> Answer:
    return data({"jobId": JOB_ID, "state": state, "progress": 0.5})


def test_a_job_is_created_with_only_the_fields_that_were_given(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("POST", "/jobs", data({"jobId": JOB_ID, "uploadUrl": "u"}, status=201))
    created = client.create_job("a.mp4", 123, "vision", metadata={"take": 7})
    assert created == {"jobId": JOB_ID, "uploadUrl": "u"}
    (request,) = api.seen
    assert request.json == {
        "fileName": "a.mp4",
        "fileSizeBytes": 123,
        "processingMode": "vision",
        "metadata": {"take": 7},
    }
    assert request.headers["authorization"] == "Bearer vas_live_secret"


def test_a_job_from_a_url_is_created_at_its_own_endpoint(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("POST", "/jobs/from-url", data({"jobId": JOB_ID}, status=201))
    client.create_job_from_url("https://example.org/a.mp4")
    assert api.seen[0].json == {"url": "https://example.org/a.mp4", "processingMode": "all"}


def test_a_repeated_creation_carries_the_same_idempotency_key(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("POST", "/jobs", error(500, "INTERNAL_ERROR"), data({"jobId": JOB_ID}, 201))
    client.create_job("a.mp4")
    keys = [request.headers["idempotency-key"] for request in api.seen]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_two_creations_carry_different_idempotency_keys(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("POST", "/jobs", data({"jobId": JOB_ID}, 201))
    client.create_job("a.mp4")
    client.create_job("a.mp4")
    assert api.seen[0].headers["idempotency-key"] != api.seen[1].headers["idempotency-key"]


@pytest.mark.parametrize(
    ("retry_after", "expected_pauses"),
    [
        pytest.param("3600", [], id="an hour is not begun"),
        pytest.param("61", [], id="nor is a second too much"),
        pytest.param("25", [25, 25], id="many short ones end before 60 seconds"),
        pytest.param("60", [60], id="exactly 60 seconds are waited"),
    ],
)
def test_a_client_waits_a_minute_at_most(
    api: ScriptedApi,
    client: ApiClient,
    pauses: list[float],
    retry_after: str,
    expected_pauses: list[float],
) -> None:
    api.script("GET", JOB, error(429, "THROTTLED", retry_after=retry_after))
    with pytest.raises(RequestFailedError, match="THROTTLED"):
        client.get_job(JOB_ID)
    assert pauses == expected_pauses


def test_a_refusal_is_final_and_has_what_the_answer_says(
    api: ScriptedApi, client: ApiClient, pauses: list[float]
) -> None:
    api.script("POST", "/jobs", error(413, "FILE_TOO_LARGE", param="fileName"))
    with pytest.raises(RequestFailedError) as caught:
        client.create_job("a.mp4")
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.param) == (413, "FILE_TOO_LARGE", "fileName")
    assert refusal.request_id == REQUEST_ID
    assert refusal.message == "Refused: FILE_TOO_LARGE."
    assert len(api.seen) == 1
    assert pauses == []


def test_a_failing_server_is_asked_four_times_with_growing_pauses(
    api: ScriptedApi, client: ApiClient, pauses: list[float]
) -> None:
    api.script("GET", JOB, error(500, "INTERNAL_ERROR"))
    with pytest.raises(RequestFailedError, match="INTERNAL_ERROR"):
        client.get_job(JOB_ID)
    assert len(api.seen) == 4
    for pause, nominal in zip(pauses, (0.5, 1.0, 2.0), strict=True):
        assert 0.75 * nominal <= pause <= 1.25 * nominal


def test_a_page_of_a_proxy_is_an_error_with_its_status_as_code(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("GET", JOB, Answer(403, b"<html>no</html>", {"Content-Type": "text/html"}))
    with pytest.raises(RequestFailedError, match="HTTP_403: Forbidden"):
        client.get_job(JOB_ID)


def test_a_service_that_is_not_there_raises_after_four_attempts(pauses: list[float]) -> None:
    with socket.socket() as bound:  # Bound and not listening: connections are refused.
        bound.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1/api"
        with (
            ApiClient(base_url, "key", sleep=pauses.append) as client,
            pytest.raises(httpx.ConnectError),
        ):
            client.get_job(JOB_ID)
    assert len(pauses) == 3


def test_an_upload_arrives_unchanged_with_its_headers_and_without_the_api_key(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 4000 + b"end"
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    api.script("PUT", "/uploads/1", data({}))
    headers = {"Content-Type": "application/octet-stream"}
    client.upload(path, f"{api.base_url}/uploads/1?signature=s", headers)
    (request,) = api.seen
    assert request.sha256 == hashlib.sha256(content).hexdigest()
    assert request.headers["content-length"] == str(len(content))
    assert request.headers["content-type"] == "application/octet-stream"
    assert request.query == {"signature": "s"}
    assert "authorization" not in request.headers
    assert "transfer-encoding" not in request.headers


def test_an_upload_reports_its_progress_to_the_last_byte(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    size_bytes = 2 * UPLOAD_CHUNK_BYTES + 1
    path = tmp_path / "a.mp4"
    path.write_bytes(bytes(size_bytes))
    api.script("PUT", "/uploads/1", data({}))
    reports: list[tuple[int, int]] = []
    url = f"{api.base_url}/uploads/1"
    client.upload(path, url, {}, lambda sent, total: reports.append((sent, total)))
    sent = [UPLOAD_CHUNK_BYTES, 2 * UPLOAD_CHUNK_BYTES, size_bytes]
    assert reports == [(part, size_bytes) for part in sent]


def test_an_empty_file_is_uploaded_as_nothing(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    (tmp_path / "empty.mp4").touch()
    api.script("PUT", "/uploads/1", data({}))
    client.upload(tmp_path / "empty.mp4", f"{api.base_url}/uploads/1", {})
    assert api.seen[0].size_bytes == 0
    assert api.seen[0].headers["content-length"] == "0"


def test_a_repeated_upload_sends_the_whole_file_again(
    api: ScriptedApi, client: ApiClient, pauses: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"x" * 1000)
    busy = error(503, "SERVICE_UNAVAILABLE", retry_after="2")
    api.script("PUT", "/uploads/1", busy, data({}))
    client.upload(path, f"{api.base_url}/uploads/1", {})
    assert [request.size_bytes for request in api.seen] == [1000, 1000]
    assert pauses == [2]


def test_an_upload_needs_little_memory_however_large_the_file(
    api: ScriptedApi, client: ApiClient, tmp_path: Path
) -> None:
    size_bytes = 48 * 1024 * 1024
    path = tmp_path / "large.mp4"
    with path.open("wb") as stream:
        stream.truncate(size_bytes)
    api.script("PUT", "/uploads/1", data({}))
    tracemalloc.start()
    try:
        client.upload(path, f"{api.base_url}/uploads/1", {})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert api.seen[0].size_bytes == size_bytes
    assert peak_bytes < 8 * 1024 * 1024  # client and scripted server together


@every("job_id", ["../keys", "..", "a/b", "x?include=scenes", "x#y", "%2e%2e"])
def test_an_id_is_one_part_of_a_path_whatever_it_consists_of(
    api: ScriptedApi, client: ApiClient, job_id: str
) -> None:
    api.script("GET", f"/jobs/{job_id}", job("completed"))
    client.get_job(job_id)
    assert api.seen[-1].query == {"include": "none"}


def test_polling_asks_for_no_results(api: ScriptedApi, client: ApiClient) -> None:
    api.script("GET", JOB, job("queued"))
    client.get_job(JOB_ID)
    assert api.seen[0].query == {"include": "none"}


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
def test_waiting_ends_in_every_terminal_state(
    api: ScriptedApi, client: ApiClient, state: str
) -> None:
    api.script("GET", JOB, job("queued"), job("processing"), job(state))
    seen_states: list[str] = []
    ended = client.wait(JOB_ID, lambda current: seen_states.append(current["state"]))
    assert ended["state"] == state
    assert seen_states == ["queued", "processing", state]


def test_pauses_between_polls_grow_from_a_third_of_a_second_to_two(
    api: ScriptedApi, client: ApiClient, pauses: list[float]
) -> None:
    api.script("GET", JOB, *[job("processing")] * 12, job("completed"))
    client.wait(JOB_ID)
    assert pauses[0] == pytest.approx(0.3)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 2.0


def test_waiting_survives_a_service_that_restarts(api: ScriptedApi, client: ApiClient) -> None:
    away = error(503, "SERVICE_UNAVAILABLE", retry_after="1")
    api.script("GET", JOB, job("processing"), away, away, job("completed"))
    assert client.wait(JOB_ID)["state"] == "completed"


def test_waiting_gives_up_in_time_and_names_the_state(api: ScriptedApi) -> None:
    api.script("GET", JOB, job("processing"))
    with (
        ApiClient(api.base_url, "key") as client,
        pytest.raises(WaitTimeoutError, match=r"is still processing after 0\.5 seconds"),
    ):
        client.wait(JOB_ID, timeout_seconds=0.5)
    assert 1 <= len(api.seen) <= 2


def test_a_transcript_is_an_object_as_json_and_text_in_the_other_formats(
    api: ScriptedApi, client: ApiClient
) -> None:
    api.script("GET", f"{JOB}/transcript", data({"jobId": JOB_ID, "text": "grüß dich"}))
    captions = Answer(200, "WEBVTT\n\ngrüß dich\n".encode(), {"Content-Type": "text/vtt"})
    api.script("GET", f"{JOB}/transcript?track=1&format=vtt", captions)
    assert client.get_transcript(JOB_ID)["text"] == "grüß dich"
    assert client.get_transcript(JOB_ID, "vtt", 1) == "WEBVTT\n\ngrüß dich\n"


def test_a_cancelled_job_comes_back(api: ScriptedApi, client: ApiClient) -> None:
    api.script("POST", f"{JOB}/cancel", job("cancelled"))
    assert client.cancel(JOB_ID)["state"] == "cancelled"
    assert len(api.requests("POST", f"{JOB}/cancel")) == 1


def test_a_thumbnail_is_fetched_without_the_api_key(api: ScriptedApi, client: ApiClient) -> None:
    api.script("GET", "/thumbnail.jpg", Answer(200, b"\xff\xd8", {"Content-Type": "image/jpeg"}))
    assert client.get_thumbnail(f"{api.base_url}/thumbnail.jpg") == b"\xff\xd8"
    assert "authorization" not in api.seen[0].headers
