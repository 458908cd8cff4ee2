"""Uploads that grow in the folder store: what arrived stays, one writer at a time."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage.objects import (
    InvalidKeyError,
    ObjectNotFoundError,
    PartialBusyError,
    PartialOffsetError,
)
from storage.objects.folder import FolderStore
from tests.places import PROJECT
from tests.tables import every

KEY = "jobs/1/source/media"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def files_below(store: FolderStore) -> list[str]:
    return sorted(path.name for path in store.root.rglob("*") if path.is_file())


def append(store: FolderStore, offset: int, content: bytes, key: str = KEY) -> None:
    with store.append_partial(key, offset) as stream:
        stream.write(content)


def test_a_partial_that_is_not_there_has_no_end_but_the_beginning(store: FolderStore) -> None:
    with pytest.raises(PartialOffsetError) as caught:
        append(store, 5, b"x")
    assert caught.value.actual_bytes == 0
    assert not store.root.exists()


def test_a_discarded_partial_is_gone_and_its_object_stays(store: FolderStore) -> None:
    store.write_bytes(KEY, b"whole")
    append(store, 0, b"part")
    store.discard_partial(KEY)
    store.discard_partial(KEY)
    assert list(store.list_partials("jobs")) == []
    assert store.read_bytes(KEY) == b"whole"


def test_a_second_writer_is_refused_while_the_first_is_at_work(store: FolderStore) -> None:
    other = pickle.loads(pickle.dumps(store))  # noqa: S301
    with store.append_partial(KEY, 0) as stream:
        stream.write(b"first")
        for attempt in (
            lambda: append(other, 0, b"second"),
            lambda: append(other, 5, b"second"),
            lambda: other.finish_partial(KEY),
            lambda: other.truncate_partial(KEY, 0),
        ):
            with pytest.raises((PartialBusyError, PartialOffsetError)):
                attempt()
    append(other, 5, b" then second")
    store.finish_partial(KEY)
    assert store.read_bytes(KEY) == b"first then second"


def test_a_writer_whose_partial_was_finished_by_another_writes_nowhere(store: FolderStore) -> None:
    append(store, 0, b"whole")
    store.finish_partial(KEY)
    with pytest.raises(PartialOffsetError):
        append(store, 5, b" and more")
    assert store.read_bytes(KEY) == b"whole"


@every("key", ["jobs/.partial-a", "jobs/.tmp-a", "../a", ""])
def test_a_key_that_is_no_plain_path_is_refused_for_partials_too(
    store: FolderStore, key: str
) -> None:
    for attempt in (
        lambda: store.partial_size_bytes(key),
        lambda: append(store, 0, b"x", key),
        lambda: store.truncate_partial(key, 0),
        lambda: store.finish_partial(key),
        lambda: store.discard_partial(key),
    ):
        with pytest.raises(InvalidKeyError):
            attempt()


WRITERS = """
import pathlib, sys, time
from storage.objects.folder import FolderStore
store = FolderStore(pathlib.Path(sys.argv[1]))
block = store.append_partial("jobs/1/source/media", 0)
with block as partial, store.writer("jobs/1/source/whole") as whole:
    partial.write(b"x" * 100_000)
    partial.flush()
    whole.write(b"y" * 100_000)
    whole.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writing(store: FolderStore) -> subprocess.Popen[str]:
    """Another process, in the middle of writing an object and a partial."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITERS, store.root], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait(120)
    assert process.stdout is not None
    process.stdout.close()


def test_leftovers_of_a_killed_writer_are_removed_and_those_of_a_living_one_are_not(
    store: FolderStore, writing: subprocess.Popen[str]
) -> None:
    store.write_bytes("jobs/1/source/other", b"whole")
    try:
        assert store.remove_leftovers("jobs") == 0
        assert len(files_below(store)) == 3
    finally:
        kill(writing)
    assert store.remove_leftovers("jobs") == 1
    assert files_below(store) == [".partial-media", "other"]


def test_what_a_killed_writer_appended_stays_and_the_next_one_goes_on(
    store: FolderStore, writing: subprocess.Popen[str]
) -> None:
    try:
        with pytest.raises(PartialBusyError):
            append(store, 0, b"x")
    finally:
        kill(writing)
    assert store.partial_size_bytes(KEY) == 100_000
    append(store, 100_000, b"z")
    store.finish_partial(KEY)
    assert store.read_bytes(KEY) == b"x" * 100_000 + b"z"


def test_a_writer_is_never_robbed_by_a_sweeper(store: FolderStore) -> None:
    """The sweeper runs without pause while objects are written."""
    sweeper = subprocess.Popen(
        [sys.executable, "-c", SWEEPER, store.root], cwd=PROJECT, stdin=subprocess.PIPE
    )
    assert sweeper.stdin is not None
    try:
        for number in range(200):
            store.write_bytes(f"jobs/{number}", b"x")
    finally:
        sweeper.stdin.close()
        assert sweeper.wait(120) == 0
    assert len(list(store.list_keys("jobs"))) == 200


SWEEPER = """
import pathlib, select, sys
from storage.objects.folder import FolderStore
store = FolderStore(pathlib.Path(sys.argv[1]))
while not select.select([sys.stdin], [], [], 0)[0]:
    store.remove_leftovers("jobs")
"""


def test_free_room_is_told_before_the_folder_is_there(store: FolderStore) -> None:
    free = store.free_bytes()
    assert free is not None
    assert free > 0


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


def test_a_folder_is_no_object(store: FolderStore) -> None:
    store.write_bytes("jobs/1/a", b"x")

    assert not store.exists("jobs/1")
    with pytest.raises(ObjectNotFoundError), store.local_copy("jobs/1"):
        pass
