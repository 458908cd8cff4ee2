"""tus over connections that break, hang and compete, byte by byte on raw sockets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from serve_app.settings import Settings
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, state_of
from tests.serve_app.uploads.test_uploads import MIB, eventually, patching
from tests.serve_app.uploads.uploading import (
    TUS,
    files_of,
    head,
    object_of,
    offset_of,
    patch,
    upload_of,
)

CONTENT = bytes(range(256)) * 1024 * 8  # 2 MiB


@pytest.fixture(scope="module")
def api_settings(api_settings: Settings) -> Settings:
    """A short lease, so that a silent writer is soon replaced."""
    return api_settings.model_copy(update={"upload_lease_seconds": 6.0})


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> dict[str, Any]:
    return create(api, customer, fileSizeBytes=len(CONTENT))


def test_a_patch_that_breaks_off_keeps_what_arrived(
    api: RunningApi, customer: Customer, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    with contextlib.closing(patching(url, 0, len(CONTENT))) as sender:
        sender.send(CONTENT[:1_500_000])
    offset = eventually(lambda: offset_of(url), "something is kept")
    eventually(lambda: upload_of(api, job).completed_at is None and free(api, job), "it let go")
    offset = offset_of(url)
    # The last buffer on the way may be lost with its connection, no more than that.
    assert 1_500_000 - 256 * 1024 <= offset <= 1_500_000
    assert patch(url, offset, CONTENT[offset:]).status_code == 204
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT
    assert state_of(api, customer, job["jobId"]) == "queued"


def free(api: RunningApi, job: dict[str, Any]) -> bool:
    """Whether nobody holds the right to write."""
    query = "SELECT writer_token IS NULL FROM uploads WHERE job_id = cast(:id AS uuid)"
    [(found,)] = api.sql(query, id=job["jobId"])
    return bool(found)


def test_a_slow_client_s_bytes_count_although_no_piece_is_full(job: dict[str, Any]) -> None:
    url = job["resumableUploadUrl"]
    with contextlib.closing(patching(url, 0, len(CONTENT))) as sender:
        sender.send(CONTENT[:10])
        time.sleep(1.1)
        sender.send(CONTENT[10:20])
        eventually(lambda: offset_of(url) == 20, "20 bytes count while the request goes on")


def test_a_piece_with_a_checksum_counts_whole_or_not_at_all(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    digest = base64.b64encode(hashlib.sha1(CONTENT).digest()).decode()  # noqa: S324
    promise = {"Upload_Checksum": f"sha1 {digest}"}
    with contextlib.closing(patching(url, 0, len(CONTENT), **promise)) as sender:
        sender.send(CONTENT[:-1])
        eventually(lambda: files_of(api, job), "it grows")
        time.sleep(0.2)
        assert offset_of(url) == 0
    eventually(lambda: free(api, job), "it let go")
    assert offset_of(url) == 0
    assert api.context.objects.partial_size_bytes(f"jobs/{job['jobId']}/source/media") == 0
    assert patch(url, 0, CONTENT, **promise).status_code == 204
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


def test_while_one_request_writes_a_second_is_locked_out(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    with contextlib.closing(patching(url, 0, len(CONTENT))) as first:
        first.send(CONTENT[:MIB])
        eventually(lambda: offset_of(url) > 0, "the first writes")
        stop = threading.Event()
        trickle = threading.Thread(target=keep_sending, args=(first, stop))
        trickle.start()
        try:
            for second in (
                patch(url, offset_of(url), b"other"),
                httpx.delete(url, headers=TUS, trust_env=False, timeout=120),
            ):
                assert second.status_code == 423
                assert second.headers["tus-resumable"] == "1.0.0"
            assert head(url).status_code == 200
        finally:
            stop.set()
            trickle.join()
    eventually(lambda: free(api, job), "it let go")
    offset = offset_of(url)
    assert patch(url, offset, CONTENT[offset:]).status_code == 204
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


def keep_sending(sender: Any, stop: threading.Event) -> None:
    sent = MIB
    while not stop.wait(0.3):
        sender.send(CONTENT[sent : sent + 100])
        sent += 100


def test_a_client_that_comes_back_replaces_its_hanging_connection(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    with contextlib.closing(patching(url, 0, len(CONTENT))) as hanging:
        hanging.send(CONTENT[:MIB])
        offset = eventually(lambda: offset_of(url), "it writes")
        ends = time.monotonic() + 60
        while (answer := patch(url, offset, CONTENT[offset:])).status_code == 423:
            assert time.monotonic() < ends
        assert answer.status_code == 204
        assert hanging.answer().status == 409
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


def test_requests_that_race_for_the_same_offset_never_interleave(
    api_settings: Settings, customer: Customer
) -> None:
    """Eight requests at once over two servers, each with bytes of its own."""
    roomy = api_settings.model_copy(update={"upload_concurrency": 16})
    pieces = [bytes([65 + number]) * 300_000 for number in range(8)]
    with (
        RunningApi(roomy) as api,
        RunningApi(roomy) as other,
        ThreadPoolExecutor(8) as threads,
    ):
        job = create(api, customer)
        urls = [job["resumableUploadUrl"]]
        urls.append(urls[0].replace(api.root, other.root))
        barrier = threading.Barrier(8)

        def send(number: int) -> int:
            barrier.wait(120)
            return patch(urls[number % 2], 0, pieces[number]).status_code

        statuses = list(threads.map(send, range(8)))
        assert statuses.count(204) == 1
        assert set(statuses) <= {204, 409, 423}
        stored = offset_of(urls[1])
        assert stored == 300_000
        patch(urls[0], stored, b"", Upload_Length=str(stored))
        assert api.context.objects.read_bytes(object_of(api, job)) == pieces[statuses.index(204)]


def test_a_patch_of_a_job_that_is_cancelled_is_ended(
    api: RunningApi, customer: Customer, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    with contextlib.closing(patching(url, 0, len(CONTENT))) as sender:
        sender.send(CONTENT[:MIB])
        eventually(lambda: offset_of(url), "it writes")
        api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)
        assert sender.answer().status == 409
    assert head(url).status_code == 410


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Type": "text/plain"}, 415),
        ({"Upload_Offset": "7"}, 409),
        ({"Tus_Resumable": "0.1"}, 412),
    ],
    ids=["type", "offset", "version"],
)
def test_a_refused_piece_is_refused_before_it_is_sent(
    job: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    sent = {
        "Tus_Resumable": "1.0.0",
        "Content_Type": "application/offset+octet-stream",
        "Upload_Offset": "0",
        "Expect": "100-continue",
    } | headers
    from tests.serve_app.uploads.test_uploads import Sender

    url = job["resumableUploadUrl"]
    with contextlib.closing(Sender(url, len(CONTENT), method="PATCH", **sent)) as sender:
        answer = sender.answer()
    assert answer.status == status
    assert answer.headers["connection"] == "close"
