"""The tus project's own Python client against a real socket: send, break off, go on."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError, TusUploadFailed
from tusclient.uploader.uploader import Uploader

from tests.serve_app.running_api import Customer, RunningApi
from tests.serve_app.test_jobs_api import create, state_of
from tests.serve_app.uploads.uploading import files_of, object_of, offset_of

CONTENT = bytes(range(256)) * 1024 * 12  # 3 MiB


def uploader(url: str, content: bytes = CONTENT, **options: Any) -> Uploader:
    options.setdefault("chunk_size", 500_000)
    return Uploader(file_stream=io.BytesIO(content), url=url, **options)


@pytest.fixture
def job(api: RunningApi, customer: Customer) -> dict[str, Any]:
    return create(api, customer, fileSizeBytes=len(CONTENT))


@pytest.mark.parametrize("checksums", [False, True], ids=["without checksums", "with checksums"])
@pytest.mark.parametrize("chunk_size", [500_000, 2**40], ids=["in pieces", "at once"])
def test_it_uploads_a_file(
    api: RunningApi, customer: Customer, job: dict[str, Any], chunk_size: int, checksums: bool
) -> None:
    client = uploader(job["resumableUploadUrl"], chunk_size=chunk_size, upload_checksum=checksums)
    client.upload()
    assert client.offset == len(CONTENT)
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT
    assert state_of(api, customer, job["jobId"]) == "queued"


def test_a_new_client_goes_on_where_the_first_one_stopped(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    uploader(url).upload(stop_at=1_200_000)
    again = uploader(url)
    assert again.offset == 1_200_000
    again.upload()
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


class BreakingStream(io.BytesIO):
    """A file that cannot be read any further, as a disk that fails or a program that ends."""

    def __init__(self, content: bytes, breaks_at: int) -> None:
        super().__init__(content)
        self.breaks_at = breaks_at

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= self.breaks_at:
            raise InterruptedError("the client ended here")
        return super().read(size)


def test_a_client_that_dies_between_pieces_is_followed_by_one_that_goes_on(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    stream = BreakingStream(CONTENT, 1_000_000)
    with pytest.raises(InterruptedError):
        Uploader(file_stream=stream, url=url, chunk_size=500_000).upload()
    assert offset_of(url) == 1_000_000
    uploader(url).upload()
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


def test_it_goes_on_after_the_server_was_restarted_under_it(
    api: RunningApi, customer: Customer
) -> None:
    """The second server knows of the first only what lies in the database and on the disk."""
    with RunningApi(api.settings) as first:
        job = create(first, customer, fileSizeBytes=len(CONTENT))
        url = job["resumableUploadUrl"]
        uploader(url).upload(stop_at=700_000)
    with pytest.raises(TusCommunicationError):
        uploader(url)
    with RunningApi(api.settings) as second:
        moved = uploader(url.replace(first.root, second.root))
        assert moved.offset == 700_000
        moved.upload()
        assert second.context.objects.read_bytes(object_of(second, job)) == CONTENT


def test_it_retries_past_a_second_client_that_holds_the_upload(
    api: RunningApi, job: dict[str, Any]
) -> None:
    url = job["resumableUploadUrl"]
    clients = [uploader(url, retries=8, retry_delay=1, chunk_size=200_000) for _ in range(2)]
    failures: list[BaseException] = []

    def run(client: Uploader) -> None:
        try:
            client.upload()
        except TusUploadFailed as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failures) <= 1
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT


def test_it_hears_of_a_piece_that_was_changed_on_the_way(
    api: RunningApi, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = job["resumableUploadUrl"]
    client = uploader(url, upload_checksum=True)
    import hashlib

    monkeypatch.setattr(
        client,
        "_BaseUploader__checksum_algorithm",
        lambda _: hashlib.sha1(b"other"),  # noqa: S324
    )
    with pytest.raises(TusUploadFailed) as caught:
        client.upload()
    assert caught.value.status_code == 460
    assert offset_of(url) == 0


def test_it_hears_that_an_upload_cannot_be_longer_than_promised(
    api: RunningApi, job: dict[str, Any]
) -> None:
    with pytest.raises(TusUploadFailed) as caught:
        uploader(job["resumableUploadUrl"], CONTENT + b"x", chunk_size=2**40).upload()
    assert caught.value.status_code == 413
    assert files_of(api, job) == []


def test_a_stored_address_is_all_that_a_client_needs(
    api: RunningApi, job: dict[str, Any], tmp_path: Path
) -> None:
    """As an application does that remembers the address from ``createJob`` in a file."""
    footage = tmp_path / "a.mp4"
    footage.write_bytes(CONTENT)
    client = TusClient("http://127.0.0.1:9/never-used")
    client.uploader(str(footage), url=job["resumableUploadUrl"], chunk_size=10**6).upload()
    assert api.context.objects.read_bytes(object_of(api, job)) == CONTENT
