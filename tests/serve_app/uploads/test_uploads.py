"""The plain PUT, and PUT and tus side by side: all of the file or nothing, queued once."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from serve_app.api import downloads
from serve_app.settings import Settings
from tests.serve_app.raw_http import Answer, parse
from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, expect_error, put, state_of
from tests.serve_app.uploads.uploading import TUS, files_of, object_of, offset_of, patch

MIB = 1024 * 1024


class Sender:
    """A request whose body is sent piece by piece, at the test's own pace."""

    def __init__(
        self, url: str, length: int | None, *, method: str = "PUT", **headers: str
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=120)
        lines = [f"{method} {parts.path}?{parts.query} HTTP/1.1", "Host: x"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines.append(
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        )
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode())

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def answer(self) -> Answer:
        """What has come back once the headers are there."""
        received = b""
        while b"\r\n\r\n" not in received:
            piece = self.connection.recv(65536)
            if not piece:
                break
            received += piece
        return parse(received)

    def close(self) -> None:
        self.connection.close()


def patching(url: str, offset: int, length: int | None, **headers: str) -> Sender:
    return Sender(
        url,
        length,
        method="PATCH",
        Tus_Resumable="1.0.0",
        Content_Type="application/offset+octet-stream",
        Upload_Offset=str(offset),
        **headers,
    )


def eventually(condition: Callable[[], Any], what: str) -> Any:
    for _ in range(1200):
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(what)


def test_a_file_of_another_size_than_promised_is_refused_before_it_is_read(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=1000)
    with contextlib.closing(Sender(job["uploadUrl"], 999)) as sender:
        answer = sender.answer()
    assert answer.status == 400
    error = expect_error(put(job["uploadUrl"], b"x" * 999), 400, "INVALID_REQUEST", "fileSizeBytes")
    assert "999" in error["error"]
    assert "1000" in error["error"]
    assert files_of(api, job) == []
    assert put(job["uploadUrl"], b"x" * 1000).status_code == 200
    assert state_of(api, customer, job["jobId"]) == "queued"


@pytest.mark.parametrize("size", [999, 1001])
def test_the_promised_size_holds_for_a_body_in_chunks_too(
    api: RunningApi, customer: Customer, size: int
) -> None:
    job = create(api, customer, fileSizeBytes=1000)
    answer = put(job["uploadUrl"], iter([b"x" * size]))  # type: ignore[arg-type]
    expect_error(answer, 400, "INVALID_REQUEST", "fileSizeBytes")
    assert files_of(api, job) == []
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"


def test_an_empty_file_is_refused_at_once(api: RunningApi, customer: Customer) -> None:
    body = {"fileName": "a.mp4", "fileSizeBytes": 0}
    job = create(api, customer)
    for answer in (
        api.client.post("/jobs", json=body, headers=customer.headers),
        put(job["uploadUrl"], b""),
        put(job["uploadUrl"], iter([b""])),  # type: ignore[arg-type]
        patch(job["resumableUploadUrl"], 0, b"", Upload_Length="0"),
    ):
        expect_error(answer, 400, "INVALID_REQUEST", "fileSizeBytes")
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
    assert files_of(api, job) == []


@pytest.mark.parametrize("part", ["bytes 0-4/10", "bytes 5-9/10", "bytes */10", "bytes 0-4/*"])
def test_a_part_of_a_file_does_not_pass_for_the_file(
    api: RunningApi, customer: Customer, part: str
) -> None:
    job = create(api, customer)
    answer = httpx.put(
        job["uploadUrl"], content=b"x" * 5, headers={"Content-Range": part}, trust_env=False
    )
    expect_error(answer, 400, "INVALID_REQUEST")
    assert files_of(api, job) == []
    assert state_of(api, customer, job["jobId"]) == "awaiting_upload"
    whole = {"Content-Range": "bytes 0-4/5"}
    answer = httpx.put(job["uploadUrl"], content=b"x" * 5, headers=whole, trust_env=False)
    assert answer.status_code == 200
    assert state_of(api, customer, job["jobId"]) == "queued"


@pytest.mark.parametrize("expect", [True, False], ids=["asks first", "does not ask"])
def test_a_client_that_asks_first_hears_of_a_refusal_before_it_sends(
    api: RunningApi, customer: Customer, expect: bool
) -> None:
    job = create(api, customer)
    asked = {"Expect": "100-continue"} if expect else {}
    too_large = api.settings.standard_max_bytes + 1
    with contextlib.closing(Sender(job["uploadUrl"], too_large, **asked)) as sender:
        answer = sender.answer()
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    if expect:
        with contextlib.closing(Sender(job["uploadUrl"], 3, **asked)) as sender:
            assert sender.answer().status == 100
            sender.send(b"abc")
            assert sender.answer().status == 200
        assert api.context.objects.read_bytes(object_of(api, job)) == b"abc"


def test_a_small_refused_body_leaves_the_connection_usable(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, fileSizeBytes=5)
    with httpx.Client(trust_env=False) as client:
        refused = client.put(job["uploadUrl"], content=b"four")
        assert refused.status_code == 400
        assert "connection" not in refused.headers
        assert client.put(job["uploadUrl"], content=b"fives").status_code == 200


def test_more_than_fits_on_the_disk_is_refused_before_it_is_read(
    api_settings: Settings, customer: Customer
) -> None:
    vast = api_settings.model_copy(update={"standard_max_bytes": 2**60})
    with RunningApi(vast) as api:
        for url_name, start in (("uploadUrl", Sender), ("resumableUploadUrl", None)):
            url = create(api, customer)[url_name]
            sender = patching(url, 0, 2**59) if start is None else start(url, 2**59)
            with contextlib.closing(sender):
                answer = sender.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "30"


def test_beyond_the_cap_uploads_are_told_to_come_back_whichever_way_they_come(
    api: RunningApi, customer: Customer
) -> None:
    jobs = [create(api, customer) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(Sender(jobs[0]["uploadUrl"], 10)))
        second = stack.enter_context(
            contextlib.closing(patching(jobs[1]["resumableUploadUrl"], 0, 10))
        )
        first.send(b"12345")
        second.send(b"12345")
        eventually(lambda: offset_of(jobs[1]["resumableUploadUrl"]) == 5, "the second is at work")
        for refused in (
            put(jobs[2]["uploadUrl"], b"x"),
            patch(jobs[2]["resumableUploadUrl"], 0, b"x"),
        ):
            expect_error(refused, 503, "SERVICE_UNAVAILABLE")
            assert refused.headers["retry-after"] == "30"
        # These are an account's half of the places.
        other = api.customer()
        assert put(create(api, other)["uploadUrl"], b"another account's").status_code == 200
        first.send(b"67890")
        second.send(b"67890")
        assert first.answer().status == 200
        assert second.answer().status == 204
    assert put(jobs[2]["uploadUrl"], b"x").status_code == 200


def test_a_put_of_a_job_that_is_cancelled_is_ended_and_leaves_nothing(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    with contextlib.closing(Sender(job["uploadUrl"], 10 * MIB // 4)) as sender:
        sender.send(b"x" * MIB)
        eventually(lambda: files_of(api, job), "the file grows")
        api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)
        assert sender.answer().status == 409
    assert files_of(api, job) == []


def test_an_upload_that_stands_still_is_broken_off(
    api_settings: Settings, customer: Customer
) -> None:
    impatient = api_settings.model_copy(update={"upload_idle_seconds": 3.0})
    with RunningApi(impatient) as api:
        job, other = create(api, customer), create(api, customer)
        with (
            contextlib.closing(Sender(job["uploadUrl"], 10)) as plain,
            contextlib.closing(patching(other["resumableUploadUrl"], 0, 10)) as resumable,
        ):
            plain.send(b"12345")
            resumable.send(b"12345")
            assert plain.answer().status == 408
            assert resumable.answer().status == 408
        assert files_of(api, job) == []
        assert offset_of(other["resumableUploadUrl"]) == 5


def test_a_slow_upload_is_not_broken_off_as_long_as_bytes_arrive(
    api_settings: Settings, customer: Customer
) -> None:
    impatient = api_settings.model_copy(update={"upload_idle_seconds": 4.0})
    with RunningApi(impatient) as api:
        job = create(api, customer)
        with contextlib.closing(Sender(job["uploadUrl"], 8)) as sender:
            for _ in range(8):
                sender.send(b"x")
                time.sleep(0.6)
            assert sender.answer().status == 200
        assert api.context.objects.read_bytes(object_of(api, job)) == b"x" * 8


@pytest.mark.parametrize("kind", ["plain", "resumable"])
def test_an_upload_that_drips_is_ended(
    api_settings: Settings, customer: Customer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 KiB a second; it may fall behind for two seconds here."""
    monkeypatch.setattr(downloads, "PATIENCE_SECONDS", 2.0)
    impatient = api_settings.model_copy(update={"upload_idle_seconds": 2.0})
    with RunningApi(impatient) as api:
        job = create(api, customer)
        if kind == "plain":
            sender = Sender(job["uploadUrl"], 1000)
        else:
            sender = patching(job["resumableUploadUrl"], 0, 1000)
        with contextlib.closing(sender):
            for _ in range(200):
                sender.send(b"x")
                if select.select([sender.connection], [], [], 0.3)[0]:
                    break
            else:
                raise AssertionError("it still takes what drips")
            assert sender.answer().status == 408
        if kind == "resumable":  # what arrived is kept, for a client that comes back
            assert 0 < offset_of(job["resumableUploadUrl"]) < 100
        api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)


def test_the_second_file_counts_until_the_job_is_queued_and_the_first_is_removed(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer, audioFileName="boom.wav")
    put(job["uploadUrl"], b"first")
    put(job["uploadUrl"], b"second")
    assert patch(job["resumableUploadUrl"], 0, b"third", Upload_Length="5").status_code == 409
    assert len(files_of(api, job)) == 1
    put(job["audioUploadUrl"], b"sound")
    assert state_of(api, customer, job["jobId"]) == "queued"
    assert api.context.objects.read_bytes(object_of(api, job)) == b"second"
    assert len(files_of(api, job)) == 2


def test_a_put_that_loses_the_race_does_not_touch_the_queued_jobs_file(
    api: RunningApi, customer: Customer
) -> None:
    job = create(api, customer)
    with contextlib.closing(Sender(job["uploadUrl"], 10)) as slow:
        slow.send(b"12345")
        time.sleep(0.1)
        assert put(job["uploadUrl"], b"quick").status_code == 200
        with contextlib.suppress(OSError):
            slow.send(b"67890")
        assert slow.answer().status == 409
    assert api.context.objects.read_bytes(object_of(api, job)) == b"quick"
    assert len(files_of(api, job)) == 1


def put_it(url: str, resumable: str, content: bytes) -> int:
    return put(url, content).status_code


def patch_it(url: str, resumable: str, content: bytes) -> int:
    return patch(resumable, 0, content, Upload_Length=str(len(content))).status_code


@contextlib.contextmanager
def counted_queueings(api: RunningApi) -> Iterator[Callable[[str], int]]:
    """How often each job became queued, counted in the database itself."""
    api.sql("CREATE TABLE queueings (job_id uuid)")
    api.sql(
        """CREATE FUNCTION count_queueing() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN INSERT INTO queueings VALUES (NEW.id); RETURN NEW; END $$"""
    )
    api.sql(
        """CREATE TRIGGER count_queueing AFTER UPDATE ON jobs FOR EACH ROW
           WHEN (NEW.state = 'queued' AND OLD.state IS DISTINCT FROM NEW.state)
           EXECUTE FUNCTION count_queueing()"""
    )

    def count(job_id: str) -> int:
        query = "SELECT count(*) FROM queueings WHERE job_id = :id"
        [(found,)] = api.sql(query, id=uuid.UUID(job_id))
        return int(found)

    yield count
    for what in ("TRIGGER count_queueing ON jobs", "FUNCTION count_queueing", "TABLE queueings"):
        api.sql(f"DROP {what}")


def test_the_job_is_queued_once_however_its_last_files_race(
    api_settings: Settings, customer: Customer
) -> None:
    """Four files at once over two servers, PUT and tus mixed, some of them sent twice."""
    roomy = api_settings.model_copy(update={"upload_concurrency": 16})
    tracks = [{"fileName": f"{number}.wav"} for number in range(3)]
    with (
        RunningApi(roomy) as api,
        RunningApi(roomy) as other,
        counted_queueings(api) as queueings,
        ThreadPoolExecutor(8) as threads,
    ):
        for round_number in range(6):
            job = create(api, customer, audioTracks=tracks)
            addresses = [(job["uploadUrl"], job["resumableUploadUrl"])] + [
                (track["url"], track["resumableUrl"]) for track in job["audioTrackUploadUrls"]
            ]
            barrier = threading.Barrier(8)

            def send(
                number: int,
                addresses: list[tuple[str, str]] = addresses,
                barrier: threading.Barrier = barrier,
                turn: int = round_number,
            ) -> int:
                way = (put_it, patch_it)[(number + turn) % 2]
                urls = addresses[number % 4]
                root = api.root if number < 4 else other.root
                plain, resumable = (url.replace(api.root, root) for url in urls)
                barrier.wait(120)
                return way(plain, resumable, f"file {number % 4}".encode())

            statuses = list(threads.map(send, range(8)))
            assert set(statuses) <= {200, 204, 409, 423}, statuses
            assert queueings(job["jobId"]) == 1
            for number, slot in enumerate(["media", "track-0", "track-1", "track-2"]):
                found = api.context.objects.read_bytes(object_of(api, job, slot))
                assert found == f"file {number}".encode()
            api.client.post(f"/jobs/{job['jobId']}/cancel", headers=customer.headers)


def test_two_puts_of_the_last_file_at_once_give_one_whole_file(
    api_settings: Settings, customer: Customer
) -> None:
    roomy = api_settings.model_copy(update={"upload_concurrency": 16})
    with RunningApi(roomy) as api, ThreadPoolExecutor(6) as threads:
        job = create(api, customer)
        contents = [bytes([number]) * MIB for number in range(6)]
        statuses = list(threads.map(lambda c: put(job["uploadUrl"], c).status_code, contents))
        assert sorted(statuses) == [200, 409, 409, 409, 409, 409]
        key = object_of(api, job)
        assert api.context.objects.read_bytes(key) == contents[statuses.index(200)]
        assert files_of(api, job) == [key.rsplit("/", 1)[1]]


def test_the_tus_headers_are_on_refusals_too(api: RunningApi, customer: Customer) -> None:
    job = create(api, customer)
    answer = httpx.patch(job["resumableUploadUrl"], headers=TUS, content=b"x", trust_env=False)
    assert answer.status_code == 415
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert answer.headers["x-request-id"] == answer.json()["requestId"]
