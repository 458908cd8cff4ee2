"""The folder store: whole objects or none, and nothing outside its folder."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.objects import InvalidKeyError, ObjectNotFoundError, check_key
from storage.objects.folder import FolderStore
from tests.tables import every

PROJECT = Path(__file__).resolve().parents[2]

BAD_KEYS = {
    "empty": "",
    "absolute": "/etc/passwd",
    "climbs out": "../secret",
    "climbs out in the middle": "jobs/../../secret",
    "a dot": "jobs/./a",
    "two slashes": "jobs//a",
    "ends in a slash": "jobs/",
    "a null byte": "jobs/a\0b",
    "a temporary name": "jobs/.tmp-a",
}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def files_below(store: FolderStore) -> list[str]:
    return sorted(
        path.relative_to(store.root).as_posix() for path in store.root.rglob("*") if path.is_file()
    )


def test_what_is_written_can_be_read_back(store: FolderStore) -> None:
    store.write_bytes("jobs/1/a.bin", b"content")

    assert store.exists("jobs/1/a.bin")
    assert store.read_bytes("jobs/1/a.bin") == b"content"
    assert store.size_bytes("jobs/1/a.bin") == 7
    with store.local_copy("jobs/1/a.bin") as path:
        assert path.read_bytes() == b"content"


def test_writing_again_replaces_the_object(store: FolderStore) -> None:
    store.write_bytes("a", b"a long first version")
    store.write_bytes("a", b"short")

    assert store.read_bytes("a") == b"short"
    assert files_below(store) == ["a"]


def test_an_object_does_not_exist_until_its_writer_is_done(store: FolderStore) -> None:
    with store.writer("jobs/1/a") as stream:
        stream.write(b"half")
        stream.flush()
        assert not store.exists("jobs/1/a")
        assert list(store.list_keys("jobs")) == []
        stream.write(b" and half")

    assert store.read_bytes("jobs/1/a") == b"half and half"


def write_and_fail(store: FolderStore, key: str, error: type[BaseException]) -> None:
    with store.writer(key) as stream:
        stream.write(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_failure_inside_a_writer_leaves_nothing_behind(
    error: type[BaseException], store: FolderStore
) -> None:
    with pytest.raises(error):
        write_and_fail(store, "jobs/1/a", error)

    assert not store.exists("jobs/1/a")
    assert files_below(store) == []


def test_a_failure_inside_a_writer_leaves_the_object_that_was_there(store: FolderStore) -> None:
    store.write_bytes("a", b"first")

    with pytest.raises(RuntimeError):
        write_and_fail(store, "a", RuntimeError)

    assert store.read_bytes("a") == b"first"
    assert files_below(store) == ["a"]


def test_readers_see_one_version_or_the_other_never_a_mixture(store: FolderStore) -> None:
    versions = [bytes([number]) * 100_000 for number in range(4)]
    store.write_bytes("a", versions[0])
    done = threading.Event()

    def write() -> None:
        for _ in range(5):
            for version in versions:
                store.write_bytes("a", version)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(store.read_bytes("a"))
    writer.join()

    assert seen
    assert set(seen) <= set(versions)


def test_two_writers_of_one_key_do_not_disturb_each_other(store: FolderStore) -> None:
    with store.writer("a") as first, store.writer("a") as second:
        first.write(b"one")
        second.write(b"two")

    assert store.read_bytes("a") == b"one"
    assert files_below(store) == ["a"]


@every("key", BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_a_key_that_is_no_plain_relative_path_is_refused_by_every_operation(
    key: str, store: FolderStore
) -> None:
    operations: list[Callable[[], object]] = [
        lambda: check_key(key),
        lambda: store.exists(key),
        lambda: store.size_bytes(key),
        lambda: store.read_bytes(key),
        lambda: store.write_bytes(key, b"x"),
        lambda: store.delete(key),
        lambda: store.delete_prefix(key),
        lambda: list(store.list_keys(key)),
    ]
    for operation in operations:
        with pytest.raises(InvalidKeyError):
            operation()
    assert not store.root.exists() or files_below(store) == []


@pytest.mark.parametrize(
    "key", ["a", "a/b/c.mkv", "..a", "a..", "ünï/日本", "a b", "-x", "...", "~"]
)
def test_unusual_but_plain_keys_are_kept_as_they_are(key: str, store: FolderStore) -> None:
    store.write_bytes(key, b"x")

    assert check_key(key) == key
    assert files_below(store) == [key]


def test_reading_what_is_not_there_names_the_key(store: FolderStore) -> None:
    assert not store.exists("jobs/1/a")
    for operation in (store.size_bytes, store.read_bytes):
        with pytest.raises(ObjectNotFoundError, match="jobs/1/a"):
            operation("jobs/1/a")
    with pytest.raises(ObjectNotFoundError, match="jobs/1/a"), store.local_copy("jobs/1/a"):
        pass


def test_a_folder_is_no_object(store: FolderStore) -> None:
    store.write_bytes("jobs/1/a", b"x")

    assert not store.exists("jobs/1")
    with pytest.raises(ObjectNotFoundError), store.local_copy("jobs/1"):
        pass


def test_keys_are_listed_sorted_below_a_folder_and_not_beside_it(store: FolderStore) -> None:
    for key in ("jobs/1/b", "jobs/1/a", "jobs/1/deep/c", "jobs/10/d", "other"):
        store.write_bytes(key, b"x")

    assert list(store.list_keys("jobs/1")) == ["jobs/1/a", "jobs/1/b", "jobs/1/deep/c"]
    assert list(store.list_keys("nothing")) == []


def test_deleting_removes_one_object_or_all_below_a_folder(store: FolderStore) -> None:
    for key in ("jobs/1/a", "jobs/1/deep/b", "jobs/10/c"):
        store.write_bytes(key, b"x")

    store.delete("jobs/1/a")
    store.delete("jobs/1/a")
    assert store.delete_prefix("jobs/1") == 1
    assert store.delete_prefix("jobs/1") == 0
    assert files_below(store) == ["jobs/10/c"]


def test_a_store_travels_to_other_processes(store: FolderStore) -> None:
    store.write_bytes("a", b"x")

    assert pickle.loads(pickle.dumps(store)).read_bytes("a") == b"x"  # noqa: S301


DYING_WRITER = """
import os, pathlib, sys
from storage.objects.folder import FolderStore
with FolderStore(pathlib.Path(sys.argv[1])).writer("jobs/a") as stream:
    stream.write(b"second")
    stream.flush()
    os._exit(9)
"""


def test_a_writer_that_is_killed_leaves_the_object_as_it_was(store: FolderStore) -> None:
    store.write_bytes("jobs/a", b"first")

    subprocess.run([sys.executable, "-c", DYING_WRITER, store.root], cwd=PROJECT, check=False)

    assert store.read_bytes("jobs/a") == b"first"
    assert list(store.list_keys("jobs")) == ["jobs/a"]
    assert len(files_below(store)) == 2
