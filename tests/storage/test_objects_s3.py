"""What only the S3 store does: presigned addresses, parts, other writers' claims, failures."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import ValidationError

from serve_app.deployment.doctor import CHECKS, MachineFacts
from serve_app.settings import Settings
from storage.objects import (
    DirectUploadStore,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PartialBusyError,
)
from storage.objects.folder import FolderStore
from storage.objects.node_cache import NodeCache
from storage.objects.s3 import (
    MIB,
    MOST_PARTS,
    Multipart,
    NoSuchUploadError,
    S3Store,
    client_of,
    part_bytes,
)
from tests.places import PROJECT
from tests.storage.s3_server import (
    everything_in,
    fresh_store,
    place_at,
    s3_process,
)
from tests.tables import every

LARGEST_OBJECT_BYTES = 5 * 1024**4


@pytest.fixture
def store(endpoint: str) -> S3Store:
    return fresh_store(endpoint)


def append(store: S3Store, key: str, data: bytes) -> None:
    with store.append_partial(key, store.partial_size_bytes(key)) as stream:
        stream.write(data)


def put(url: str, data: bytes, **headers: str) -> int:
    return httpx.put(url, content=data, headers=headers, trust_env=False).status_code


@pytest.mark.parametrize("content_type", ["application/octet-stream", "video/mp4"])
def test_a_presigned_address_takes_a_plain_put_of_any_type(
    store: S3Store, content_type: str
) -> None:
    url = store.presigned_put_url("jobs/1/a b", expires_seconds=60)
    assert put(url, b"footage", **{"Content-Type": content_type}) == 200
    assert store.read_bytes("jobs/1/a b") == b"footage"


def test_a_presigned_address_signs_the_host_alone_and_expires(store: S3Store) -> None:
    query = parse_qs(urlsplit(store.presigned_put_url("a", expires_seconds=3600)).query)
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert query["X-Amz-Expires"] == ["3600"]
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]


def test_a_presigned_address_names_the_host_that_clients_reach() -> None:
    place = place_at("http://minio.internal:9000", public_endpoint_url="https://media.example.com")
    url = S3Store(place).presigned_put_url("a", expires_seconds=60)
    assert urlsplit(url).netloc == "media.example.com"


def test_an_amazon_bucket_is_addressed_by_its_own_host_name() -> None:
    place = place_at("unused", endpoint_url=None, bucket="footage", region="eu-west-1")
    url = S3Store(place).presigned_put_url("a", expires_seconds=60)
    assert urlsplit(url).netloc == "footage.s3.eu-west-1.amazonaws.com"


def test_a_file_that_arrived_is_copied_out_of_reach_unless_it_was_changed(store: S3Store) -> None:
    assert store.find_direct_upload("in/a") is None
    store.write_bytes("in/a", b"footage")
    found = store.find_direct_upload("in/a")
    assert found is not None
    assert found.size_bytes == 7
    assert store.copy_direct_upload("in/a", found, "source/a")
    assert store.read_bytes("source/a") == b"footage"
    store.write_bytes("in/a", b"another")
    assert not store.copy_direct_upload("in/a", found, "source/a")
    store.delete("in/a")
    assert not store.copy_direct_upload("in/a", found, "source/a")
    assert store.read_bytes("source/a") == b"footage"


def test_the_store_says_that_it_takes_direct_uploads(store: S3Store, tmp_path: Path) -> None:
    assert isinstance(store, DirectUploadStore)
    assert not isinstance(FolderStore(tmp_path), DirectUploadStore)


def test_parts_are_never_too_small_and_reach_the_largest_object() -> None:
    sizes = [part_bytes(number) for number in range(1, MOST_PARTS + 1)]
    assert min(sizes) >= 5 * MIB
    assert max(sizes) <= 5 * 1024**3
    assert sum(sizes) >= LARGEST_OBJECT_BYTES
    assert sizes == sorted(sizes)


def test_a_part_that_overflows_memory_is_bounded_by_its_size(store: S3Store) -> None:
    """What waits to be sent is at most a part, however much is written at once."""
    with store.writer("a") as stream:
        for _ in range(3):
            stream.write(bytes(7 * MIB))
            assert stream.waiting_bytes <= part_bytes(1)  # type: ignore[attr-defined]
    assert store.size_bytes("a") == 21 * MIB


def test_a_writer_that_lost_its_partial_hears_it_and_spoils_nothing(store: S3Store) -> None:
    """A server that hangs holds a block; the client comes back and goes on through another."""
    append(store, "a", b"begin ")
    slow = store.append_partial("a", 6)
    stream = slow.__enter__()
    stream.write(b"lost")
    append(store, "a", b"end")
    with pytest.raises(PartialBusyError):
        slow.__exit__(None, None, None)
    store.finish_partial("a")
    assert store.read_bytes("a") == b"begin end"
    assert everything_in(store) == ["objects/a"]


def test_a_lost_writer_cannot_overwrite_the_parts_of_its_successor(store: S3Store) -> None:
    slow = store.append_partial("a", 0)
    stream = slow.__enter__()
    stream.write(b"1" * (8 * MIB))
    append(store, "a", b"2" * (17 * MIB))
    with pytest.raises(PartialBusyError):
        stream.write(b"1")
    with pytest.raises(PartialBusyError):
        slow.__exit__(None, None, None)
    append(store, "a", b"2" * MIB)
    store.finish_partial("a")
    assert store.read_bytes("a") == b"2" * (18 * MIB)
    assert everything_in(store) == ["objects/a"]


def test_a_block_that_outlives_its_partial_adds_nothing(store: S3Store) -> None:
    append(store, "a", bytes(9 * MIB))
    slow = store.append_partial("a", 9 * MIB)
    slow.__enter__().write(b"x")
    store.discard_partial("a")
    with pytest.raises(PartialBusyError):
        slow.__exit__(None, None, None)
    assert store.partial_size_bytes("a") == 0
    store.delete_prefix("a")
    store.discard_partial("a")
    assert everything_in(store) == []


def test_many_small_blocks_are_put_together(store: S3Store) -> None:
    for number in range(70):
        append(store, "a", b"%03d" % number)
    pieces = [key for key in everything_in(store) if "piece" in key]
    assert len(pieces) <= 2 * 33
    store.finish_partial("a")
    assert store.read_bytes("a") == b"".join(b"%03d" % number for number in range(70))
    assert everything_in(store) == ["objects/a"]


def test_a_finish_whose_answer_was_lost_is_done_again_in_vain(store: S3Store) -> None:
    client, bucket = client_of(store.place), store.place.bucket
    upload = Multipart.begin(client, bucket, "ours/objects/a")
    with tempfile.TemporaryFile() as body:
        etags = {1: upload.put(1, body)}
    upload.complete(etags)
    upload.complete(etags)
    store.write_bytes("a", b"another object")
    # S3 says NoSuchUpload; moto breaks with a 500.
    with pytest.raises((NoSuchUploadError, ObjectStoreUnavailableError)):
        upload.complete(etags)


def test_a_finish_that_was_killed_halfway_is_finished_by_the_next(store: S3Store) -> None:
    append(store, "a", b"x" * (9 * MIB))
    partials = store._partials
    state, etag = partials.find("a") or pytest.fail("no partial")
    upload = partials.upload("a", state) or pytest.fail("no upload")
    partials._finish_parts("a", upload, state, etag)
    assert store.exists("a")
    assert partials.find("a") is not None
    store.finish_partial("a")
    assert store.size_bytes("a") == 9 * MIB
    assert everything_in(store) == ["objects/a"]


def test_a_finish_over_parts_that_are_gone_says_so(store: S3Store) -> None:
    append(store, "a", bytes(9 * MIB))
    upload_id = store._partials.upload_id("a")
    client_of(store.place).abort_multipart_upload(
        Bucket=store.place.bucket, Key="ours/objects/a", UploadId=upload_id
    )
    with pytest.raises(ObjectStoreUnavailableError, match="lost"):
        store.finish_partial("a")
    store.discard_partial("a")
    assert everything_in(store) == []


def test_leftovers_are_old_uploads_that_no_partial_holds(store: S3Store) -> None:
    """Moto says of every upload that it began in 2010; the age is not tested here."""
    append(store, "jobs/growing", bytes(9 * MIB))
    Multipart.begin(client_of(store.place), store.place.bucket, "ours/objects/jobs/killed")
    assert store.remove_leftovers("jobs") == 1
    assert store.remove_leftovers("jobs") == 0
    store.finish_partial("jobs/growing")
    assert everything_in(store) == ["objects/jobs/growing"]


def copy_and_fail(store: S3Store, seen: list[Path]) -> None:
    with store.local_copy("a") as path:
        seen.append(path)
        raise ValueError("inside")


def test_a_local_copy_is_gone_after_its_use_and_after_a_failure(store: S3Store) -> None:
    store.write_bytes("a", b"x" * (17 * MIB))
    seen = []
    with store.local_copy("a") as path:
        seen.append(path)
        assert path.stat().st_size == 17 * MIB
    with pytest.raises(ValueError, match="inside"):
        copy_and_fail(store, seen)
    assert not any(path.exists() for path in seen)


def test_a_copy_ends_when_its_user_is_told_to_stop(store: S3Store) -> None:
    store.write_bytes("a", bytes(40 * MIB))
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        raise InterruptedError("stop")

    with pytest.raises(InterruptedError, match="stop"), store.local_copy("a", check=check):
        pytest.fail("the copy went on")
    assert asked


KILLED_READER = """
import os, pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1]))
with store.local_copy("a") as path:
    print(path, flush=True)
    os._exit(9)
"""


def test_a_killed_readers_copy_is_removed_by_the_next_one(store: S3Store) -> None:
    store.write_bytes("a", b"x")
    command = [sys.executable, "-c", KILLED_READER, pickle.dumps(store).hex()]
    done = subprocess.run(
        command, cwd=PROJECT, check=False, timeout=60, capture_output=True, text=True
    )
    left = Path(done.stdout.strip())
    assert left.exists()
    an_hour_ago = datetime.now(UTC).timestamp() - 3600
    os.utime(left, (an_hour_ago, an_hour_ago))
    with store.local_copy("a") as path:
        assert path.read_bytes() == b"x"
    assert not left.exists()


def test_lists_and_deletions_go_on_past_a_page() -> None:
    with s3_process(MOTO_S3_DEFAULT_MAX_KEYS="10") as endpoint:
        store = fresh_store(endpoint)
        keys = [f"jobs/{number:02}" for number in range(25)]
        for key in keys:
            store.write_bytes(key, b"")
        assert list(store.list_keys("jobs")) == keys
        assert store.delete_keys(f"none/{number}" for number in range(2001)) == 2001
        assert store.delete_prefix("jobs") == 25
        assert everything_in(store) == []


Use = Callable[[S3Store], object]
USES: dict[str, Use] = {
    "read": lambda store: store.read_bytes("a"),
    "exists": lambda store: store.exists("a"),
    "write": lambda store: store.write_bytes("a", b"x"),
    "list": lambda store: list(store.list_keys("a")),
    "delete": lambda store: store.delete_prefix("a"),
    "append": lambda store: append(store, "a", b"x"),
}


@every("use", USES.values(), ids=USES.keys())
def test_a_bucket_that_is_not_there_is_a_store_that_is_unavailable(endpoint: str, use: Use) -> None:
    store = S3Store(place_at(endpoint))
    if use is USES["exists"]:  # S3 answers a HEAD without a body: no key and no bucket look alike
        assert not store.exists("a")
        return
    with pytest.raises(ObjectStoreUnavailableError, match="NoSuchBucket"):
        use(store)


def test_an_address_where_nobody_listens_is_a_store_that_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        store = S3Store(place_at(f"http://127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(ObjectStoreUnavailableError) as caught:
            store.exists("a")
    assert "test-secret" not in str(caught.value)
    revived = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(revived) == str(caught.value)


def test_an_object_that_vanishes_is_not_found(store: S3Store) -> None:
    with pytest.raises(ObjectNotFoundError, match="a"):
        store.read_bytes("a")


def test_a_store_shows_its_secret_to_nobody(store: S3Store) -> None:
    assert "test-secret" not in repr(store)


def test_threads_share_the_process_client(store: S3Store) -> None:
    store.write_bytes("a", b"x")
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(store.read_bytes("a"))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [b"x"] * 4


def test_settings_name_the_store() -> None:
    settings = Settings(
        s3_bucket="footage",
        s3_prefix="/video/prod/",
        s3_endpoint_url="http://minio:9000",
        s3_access_key_id="id",
        s3_secret_access_key="secret",
    )
    store = settings.object_store
    assert isinstance(store, S3Store)
    assert store.place.prefix == "video/prod/"
    assert store.place.secret_access_key == "secret"
    assert isinstance(Settings().object_store, FolderStore)


def test_tasks_of_a_node_keep_what_they_read_of_a_bucket_but_not_of_a_folder() -> None:
    settings = Settings(s3_bucket="footage", node_cache_bytes=5)
    cached = settings.with_node_cache(settings.object_store)
    assert cached == replace(settings.object_store, cache=NodeCache(5))  # type: ignore[type-var]
    off = settings.model_copy(update={"node_cache_bytes": 0})
    assert off.with_node_cache(settings.object_store) == settings.object_store
    folder = Settings().object_store
    assert settings.with_node_cache(folder) is folder


def test_the_doctor_tries_the_bucket(store: S3Store) -> None:
    place = store.place
    settings = Settings(
        s3_bucket=place.bucket,
        s3_endpoint_url=place.endpoint_url,
        s3_access_key_id=place.access_key_id,
        s3_secret_access_key=place.secret_access_key,
    )
    assert place.bucket in CHECKS["objects"](MachineFacts(settings))
    assert everything_in(store) == []
    missing = settings.model_copy(update={"s3_bucket": "no-such-bucket"})
    with pytest.raises(ObjectStoreUnavailableError, match="NoSuchBucket"):
        CHECKS["objects"](MachineFacts(missing))


@every(
    "half", [{"s3_access_key_id": "id"}, {"s3_secret_access_key": "secret"}], ids=["id", "secret"]
)
def test_half_a_key_is_refused(half: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="belong together"):
        Settings(s3_bucket="footage", **half)  # type: ignore[arg-type]
