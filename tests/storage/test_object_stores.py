"""What every object store does alike: one suite over the folder and over S3."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.objects import (
    InvalidKeyError,
    ObjectNotFoundError,
    ObjectStore,
    PartialBusyError,
    PartialOffsetError,
)
from storage.objects.folder import FolderStore
from storage.objects.node_cache import NodeCache
from storage.objects.s3 import S3Store
from tests.places import PROJECT
from tests.storage.s3_server import everything_in, fresh_store, s3_process
from tests.tables import every

SEQUENCES = int(os.environ.get("VAS_STORE_SEQUENCES", "10"))
MIB = 1024**2
SMALL_PART = 1000
"""Part size of the stores that random sequences are tried on; their server allows it."""

# Around S3's least part (5 MiB) and around the size of our first parts (8 MiB).
SIZES = {
    "nothing": 0,
    "one byte": 1,
    "one below 5 MiB": 5 * MIB - 1,
    "5 MiB": 5 * MIB,
    "one below a part": 8 * MIB - 1,
    "a part": 8 * MIB,
    "one over a part": 8 * MIB + 1,
    "two parts": 16 * MIB,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A store, and a look behind it."""

    store: ObjectStore
    leftovers: Callable[[], list[str]]
    """What lies there beside the objects."""


def in_folder(root: Path) -> Case:
    store = FolderStore(root)

    def leftovers() -> list[str]:
        files = [path for path in root.rglob("*") if path.is_file()]
        return [path.name for path in files if path.name.startswith(".")]

    return Case(store, leftovers)


def in_bucket(store: S3Store) -> Case:
    def leftovers() -> list[str]:
        found = everything_in(store)
        return [key for key in found if not key.startswith("objects/") or "unfinished" in key]

    return Case(store, leftovers)


@pytest.fixture(params=["folder", "s3", "s3 with a cache"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "folder":
        return in_folder(tmp_path / "store")
    store = fresh_store(request.getfixturevalue("endpoint"))
    cache = NodeCache(16 * MIB, tmp_path) if "cache" in request.param else None
    return in_bucket(replace(store, cache=cache))


@pytest.fixture
def store(case: Case) -> ObjectStore:
    return case.store


def content(size_bytes: int) -> bytes:
    """So many bytes, no two stretches of which are alike."""
    return hashlib.shake_128(str(size_bytes).encode()).digest(size_bytes)


def digest(store: ObjectStore, key: str) -> str:
    with store.local_copy(key) as path, path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def append(store: ObjectStore, key: str, data: bytes) -> None:
    with store.append_partial(key, store.partial_size_bytes(key)) as stream:
        stream.write(data)


def break_off(store: ObjectStore, key: str, data: bytes) -> None:
    """A block that ends with an exception."""
    with store.append_partial(key, store.partial_size_bytes(key)) as stream:
        stream.write(data)
        raise ConnectionResetError


def write_and_fail(store: ObjectStore, key: str, data: bytes, error: type[BaseException]) -> None:
    with store.writer(key) as stream:
        stream.write(data)
        raise error


def test_what_is_written_can_be_read_back(case: Case) -> None:
    store = case.store
    store.write_bytes("jobs/1/a.bin", b"content")

    assert store.exists("jobs/1/a.bin")
    assert store.read_bytes("jobs/1/a.bin") == b"content"
    assert store.read_range("jobs/1/a.bin", 3, 2) == b"te"
    assert store.read_range("jobs/1/a.bin", 5, 9) == b"nt"
    assert store.size_bytes("jobs/1/a.bin") == 7
    with store.local_copy("jobs/1/a.bin") as path:
        assert path.read_bytes() == b"content"
    with store.ranged_copy("jobs/1/a.bin") as copy:
        assert copy.size_bytes == copy.path.stat().st_size == 7
        if copy.fetch is not None:
            assert copy.path.read_bytes() == bytes(7)
            copy.fetch(3, 7)
        assert copy.path.read_bytes()[3:] == b"tent"
    store.write_bytes("jobs/1/a.bin", b"new")
    assert store.read_bytes("jobs/1/a.bin") == b"new"
    assert case.leftovers() == []


@every("size_bytes", SIZES.values(), ids=SIZES.keys())
def test_an_object_of_any_size_arrives_whole(case: Case, size_bytes: int) -> None:
    data, store = content(size_bytes), case.store
    with store.writer("written") as stream:
        for start in range(0, size_bytes, 3 * MIB):
            stream.write(data[start : start + 3 * MIB])
    append(store, "grown", data)
    store.finish_partial("grown")

    for key in ("written", "grown"):
        assert store.size_bytes(key) == size_bytes
        assert digest(store, key) == hashlib.sha256(data).hexdigest()
    assert case.leftovers() == []


def test_an_object_is_not_there_until_its_writer_is_done(store: ObjectStore) -> None:
    with store.writer("jobs/1/a") as stream:
        stream.write(content(9 * MIB))
        assert not store.exists("jobs/1/a")
        assert list(store.list_keys("jobs")) == []
    assert store.size_bytes("jobs/1/a") == 9 * MIB


@every("size_bytes", [4, 9 * MIB], ids=["small", "in parts"])
@every("error", [ValueError, KeyboardInterrupt])
def test_a_failure_inside_a_writer_leaves_what_was_there(
    case: Case, error: type[BaseException], size_bytes: int
) -> None:
    case.store.write_bytes("jobs/1/a", b"first")
    with pytest.raises(error):
        write_and_fail(case.store, "jobs/1/a", content(size_bytes), error)
    assert case.store.read_bytes("jobs/1/a") == b"first"
    assert case.leftovers() == []


def test_two_writers_of_one_key_do_not_disturb_each_other(case: Case) -> None:
    with case.store.writer("a") as first, case.store.writer("a") as second:
        first.write(b"one")
        second.write(b"two")
    assert case.store.read_bytes("a") == b"one"
    assert case.leftovers() == []


def test_of_those_who_create_an_object_at_once_one_does(store: ObjectStore) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: store.create("some/key", b"%d" % n), range(4)))
    assert sorted(made) == [False, False, False, True]
    assert store.read_bytes("some/key") == b"%d" % made.index(True)
    assert [*store.list_keys("some")] == [*store.list_keys("")] == ["some/key"]


@every("key", ["", "/a", "../a", "a/../../b", "a//b", "a/", "a/./b", "a\0b"])
def test_a_key_that_is_no_plain_relative_path_is_refused(store: ObjectStore, key: str) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.exists(key),
        lambda: store.read_bytes(key),
        lambda: store.write_bytes(key, b"x"),
        lambda: store.delete(key),
        lambda: store.delete_prefix(key),
        lambda: list(store.list_keys(key or "/")),
        lambda: store.partial_size_bytes(key),
        lambda: append(store, key, b"x"),
        lambda: store.finish_partial(key),
        lambda: store.discard_partial(key),
    ]
    for operation in operations:
        with pytest.raises(InvalidKeyError):
            operation()


@every("key", ["a", "..a", "ünï/日本", "a b+c%20?#&", "-x", "...", "~", "a/state"])
def test_unusual_but_plain_keys_are_kept_as_they_are(store: ObjectStore, key: str) -> None:
    store.write_bytes(f"top/{key}", b"x")
    append(store, f"top/{key}-grown", b"y")

    assert list(store.list_keys("top")) == [f"top/{key}"]
    assert list(store.list_partials("top")) == [f"top/{key}-grown"]
    assert store.read_bytes(f"top/{key}") == b"x"
    store.delete_prefix("top")


def test_what_is_not_there_is_named(store: ObjectStore) -> None:
    assert not store.exists("jobs/1/a")
    for operation in (store.size_bytes, store.read_bytes, store.finish_partial):
        with pytest.raises(ObjectNotFoundError, match="jobs/1/a"):
            operation("jobs/1/a")
    with pytest.raises(ObjectNotFoundError, match="jobs/1/a"), store.local_copy("jobs/1/a"):
        pass
    with pytest.raises(ObjectNotFoundError):
        store.truncate_partial("jobs/1/a", 0)
    store.delete("jobs/1/a")
    store.discard_partial("jobs/1/a")


def test_keys_are_listed_below_a_folder_and_not_beside_it(store: ObjectStore) -> None:
    for key in ("jobs/1/b", "jobs/1/a", "jobs/1/deep/c", "jobs/10/d", "other"):
        store.write_bytes(key, b"x")
    append(store, "jobs/1/growing", b"x")

    assert list(store.list_keys("jobs/1")) == ["jobs/1/a", "jobs/1/b", "jobs/1/deep/c"]
    assert list(store.list_partials("jobs")) == ["jobs/1/growing"]
    assert list(store.list_keys("nothing")) == list(store.list_partials("nothing")) == []


def test_deleting_a_folder_takes_partials_and_leftovers_along(case: Case) -> None:
    store = case.store
    for key in ("jobs/1/a", "jobs/1/deep/b", "jobs/10/c"):
        store.write_bytes(key, b"x")
    append(store, "jobs/1/small", b"x")
    append(store, "jobs/1/deep/large", content(9 * MIB))

    assert store.delete_keys(["jobs/1/a", "jobs/1/a-not-there"]) == 2
    assert store.delete_prefix("jobs/1") == 1
    assert store.delete_prefix("jobs/1") == 0
    assert list(store.list_keys("jobs")) == ["jobs/10/c"]
    assert case.leftovers() == []


def test_a_partial_grows_block_by_block_and_becomes_the_object(case: Case) -> None:
    store, data = case.store, content(20 * MIB)
    cuts = [0, 0, 100, 5 * MIB, 13 * MIB, 13 * MIB + 1, 20 * MIB]
    for start, end in pairwise(cuts):
        append(store, "jobs/1/a", data[start:end])
        assert store.partial_size_bytes("jobs/1/a") == end
    assert not store.exists("jobs/1/a")
    assert list(store.list_keys("jobs")) == []

    store.finish_partial("jobs/1/a")
    store.finish_partial("jobs/1/a")
    assert digest(store, "jobs/1/a") == hashlib.sha256(data).hexdigest()
    assert store.partial_size_bytes("jobs/1/a") == 0
    assert list(store.list_partials("jobs")) == case.leftovers() == []


@pytest.mark.parametrize("size_bytes", [10, 9 * MIB], ids=["small", "in parts"])
def test_what_arrived_before_a_break_counts(store: ObjectStore, size_bytes: int) -> None:
    data = content(size_bytes)
    with pytest.raises(ConnectionResetError):
        break_off(store, "a", data)
    assert store.partial_size_bytes("a") == size_bytes
    append(store, "a", b" and more")
    store.finish_partial("a")
    assert store.read_bytes("a") == data + b" and more"


@every("offset_bytes", [0, 2, 4])
def test_a_block_begins_where_the_last_one_ended_or_not_at_all(
    store: ObjectStore, offset_bytes: int
) -> None:
    append(store, "a", b"123")
    with (
        pytest.raises(PartialOffsetError) as caught,
        store.append_partial("a", offset_bytes) as stream,
    ):
        stream.write(b"x")
    assert caught.value.actual_bytes == store.partial_size_bytes("a") == 3
    store.discard_partial("a")


@pytest.mark.parametrize("size_bytes", [10, 9 * MIB], ids=["small", "in parts"])
def test_the_last_block_can_be_dropped_again(store: ObjectStore, size_bytes: int) -> None:
    append(store, "a", b"good ")
    append(store, "a", content(size_bytes))
    store.truncate_partial("a", 5)
    store.truncate_partial("a", 5)
    assert store.partial_size_bytes("a") == 5
    append(store, "a", b"end")
    store.finish_partial("a")
    assert store.read_bytes("a") == b"good end"


def test_what_was_dropped_altogether_leaves_an_empty_object(case: Case) -> None:
    append(case.store, "a", content(9 * MIB))
    case.store.truncate_partial("a", 0)
    case.store.finish_partial("a")
    assert case.store.read_bytes("a") == b""
    assert case.leftovers() == []


def test_a_finished_partial_replaces_an_older_object(store: ObjectStore) -> None:
    store.write_bytes("a", b"older")
    append(store, "a", content(9 * MIB))
    assert store.read_bytes("a") == b"older"
    store.finish_partial("a")
    assert store.size_bytes("a") == 9 * MIB


def test_a_discarded_partial_leaves_nothing(case: Case) -> None:
    append(case.store, "a", content(9 * MIB))
    case.store.discard_partial("a")
    assert case.store.partial_size_bytes("a") == 0
    assert case.leftovers() == []
    append(case.store, "a", b"again")
    case.store.finish_partial("a")
    assert case.store.read_bytes("a") == b"again"


def test_of_writers_that_append_at_once_exactly_one_counts_at_a_time(store: ObjectStore) -> None:
    """Each tries to add its own letter until it succeeds; nothing is lost and nothing mixed."""
    append(store, "a", b"-")
    letters = "abcd"

    def add(letter: str) -> None:
        while True:
            try:
                append(store, "a", (letter * 1000).encode())
            except (PartialBusyError, PartialOffsetError):
                continue
            return

    threads = [threading.Thread(target=add, args=(letter,)) for letter in letters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.finish_partial("a")
    text = store.read_bytes("a").decode()
    blocks = [text[start : start + 1000] for start in range(1, len(text), 1000)]
    assert sorted(blocks) == [letter * 1000 for letter in letters]


DYING = """
import os, pickle, sys
store, what, size = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2], int(sys.argv[3])
block = store.writer("jobs/a") if what == "writer" else store.append_partial("jobs/a", 6)
with block as stream:
    stream.write(b"x" * size)
    stream.flush()
    os._exit(9)
"""


def kill_a(what: str, store: ObjectStore, size_bytes: int) -> None:
    """Another process opens a block, writes so much, and is gone without a word."""
    command = [sys.executable, "-c", DYING, pickle.dumps(store).hex(), what, str(size_bytes)]
    assert subprocess.run(command, cwd=PROJECT, check=False, timeout=60).returncode == 9


def test_a_killed_writer_leaves_the_object_as_it_was(case: Case) -> None:
    case.store.write_bytes("jobs/a", b"first")
    kill_a("writer", case.store, 9 * MIB)
    assert case.store.read_bytes("jobs/a") == b"first"
    assert list(case.store.list_keys("jobs")) == ["jobs/a"]
    assert case.store.delete_prefix("jobs") == 1
    assert case.leftovers() == []


def test_after_a_killed_block_another_process_goes_on_from_what_had_been_sent(
    case: Case,
) -> None:
    store = case.store
    append(store, "jobs/a", b"first ")
    kill_a("partial", store, 20 * MIB)
    size = store.partial_size_bytes("jobs/a")
    assert 6 + 16 * MIB - 6 <= size <= 6 + 20 * MIB
    append(store, "jobs/a", b" last")
    store.finish_partial("jobs/a")
    assert store.read_bytes("jobs/a") == b"first " + b"x" * (size - 6) + b" last"
    assert case.leftovers() == []


def test_a_store_travels_to_other_processes(store: ObjectStore) -> None:
    store.write_bytes("a", b"x")
    assert pickle.loads(pickle.dumps(store)).read_bytes("a") == b"x"  # noqa: S301


@pytest.fixture(scope="module")
def small_parts() -> Iterator[str]:
    with s3_process(S3_UPLOAD_PART_MIN_SIZE=str(SMALL_PART)) as address:
        yield address


@pytest.fixture(scope="module", params=["folder", "s3"])
def random_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "folder":
        return in_folder(tmp_path_factory.mktemp("random"))
    address = request.getfixturevalue("small_parts")
    return in_bucket(fresh_store(address, first_part_bytes=SMALL_PART))


blocks = st.integers(0, 3500).map(content)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), blocks),
        st.tuples(st.just("break off"), blocks),
        st.tuples(st.just("drop the last block"), st.just(b"")),
        st.tuples(st.just("travel"), st.just(b"")),
    ),
    max_size=8,
)


@settings(
    max_examples=SEQUENCES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
def test_any_sequence_of_blocks_makes_what_bytes_in_memory_would(
    random_case: Case, steps: list[tuple[str, bytes]]
) -> None:
    store, expected, start = random_case.store, b"", 0
    append(store, "a", b"")
    for step, data in steps:
        if step == "append":
            start = len(expected)
            append(store, "a", data)
            expected += data
        elif step == "break off":
            start = len(expected)
            with pytest.raises(ConnectionResetError):
                break_off(store, "a", data)
            expected += data
        elif step == "drop the last block":
            expected = expected[:start]
            store.truncate_partial("a", start)
        else:
            store = pickle.loads(pickle.dumps(store))  # noqa: S301
        assert store.partial_size_bytes("a") == len(expected)
    store.finish_partial("a")
    assert store.read_bytes("a") == expected
    assert random_case.leftovers() == []
    store.delete("a")
