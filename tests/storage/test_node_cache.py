"""A node's copies of a bucket's objects: fetched once, bounded, complete, of the present object."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from storage.objects.node_cache import NodeCache
from storage.objects.s3 import S3Store, client_of
from tests.places import PROJECT
from tests.storage.s3_server import fresh_store

SIZE = 100_000
"""Of a copy in these tests."""


@pytest.fixture
def store(endpoint: str, tmp_path: Path) -> S3Store:
    return replace(fresh_store(endpoint), cache=NodeCache(10 * SIZE, tmp_path))


@pytest.fixture
def downloads(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of what the bucket sends, as files."""
    sent: list[str] = []
    client = client_of(store.place)
    download = client.download_fileobj

    def counted(**named: Any) -> None:
        sent.append(named["Key"].rpartition("/")[2])
        download(**named)

    monkeypatch.setattr(client, "download_fileobj", counted)
    return sent


def read(store: S3Store, key: str) -> bytes:
    with store.local_copy(key) as path:
        return path.read_bytes()


def filled(byte: int) -> Callable[[BinaryIO], None]:
    def fill(stream: BinaryIO) -> None:
        stream.write(bytes([byte]) * SIZE)

    return fill


def names_in(cache: NodeCache, names: str) -> str:
    """Those of the names that have a copy."""

    def missing(_: BinaryIO) -> None:
        raise KeyError

    def has(name: str) -> bool:
        try:
            with cache.copy(name, missing):
                return True
        except KeyError:
            return False

    return "".join(filter(has, names))


def test_an_object_is_fetched_once_and_one_written_here_never(
    store: S3Store, downloads: list[str]
) -> None:
    replace(store, cache=None).write_bytes("a", b"a" * SIZE)
    store.write_bytes("b", b"b" * SIZE)
    with store.writer("c") as stream:
        stream.write(b"c")
    assert [read(store, key)[:1] for key in "aabbccaa"] == [*map(str.encode, "aabbccaa")]
    assert downloads == ["a"]


def test_an_object_that_was_replaced_or_deleted_elsewhere_is_not_read_from_here(
    store: S3Store, downloads: list[str]
) -> None:
    elsewhere = replace(store, cache=None)
    for content in (b"old" * SIZE, b"new" * SIZE):
        elsewhere.write_bytes("a", content)
        assert read(store, "a") == content
    elsewhere.delete("a")
    with pytest.raises(KeyError):
        read(store, "a")
    assert downloads == ["a", "a"]


def test_the_least_recently_used_go_first_but_none_that_is_in_use(tmp_path: Path) -> None:
    cache = NodeCache(3 * SIZE, tmp_path)
    for age, name in zip((50, 40, 30), "abc", strict=True):
        with cache.copy(name, filled(ord(name))) as path:
            pass
        [made] = [each for each in path.parents[1].iterdir() if each.is_file() and is_new(each)]
        os.utime(made, (time.time() - age,) * 2)
    with cache.copy("a", filled(0)) as in_use:
        for name in "de":
            with cache.copy(name, filled(ord(name))):
                pass
        assert in_use.read_bytes() == b"a" * SIZE
        assert names_in(cache, "abcde") == "ade"
        with cache.copy("f", filled(9)), cache.copy("g", filled(9)), cache.copy("h", filled(9)):
            assert in_use.read_bytes() == b"a" * SIZE


def is_new(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < 20


def test_what_nobody_has_used_for_long_goes_with_the_next(tmp_path: Path) -> None:
    cache = NodeCache(10 * SIZE, tmp_path)
    with cache.copy("a", filled(1)) as path:
        os.utime(path, (time.time() - 7200,) * 2)
    with cache.copy("b", filled(1)):
        pass
    assert names_in(cache, "ab") == "b"


def test_a_copy_that_broke_off_is_never_seen(tmp_path: Path) -> None:
    cache = NodeCache(10 * SIZE, tmp_path)

    def breaks_off(stream: BinaryIO) -> None:
        stream.write(b"half")
        assert names_in(cache, "a") == ""
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), cache.copy("a", breaks_off):
        pass
    assert names_in(cache, "a") == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


USER = """
import random, sys
from pathlib import Path
from storage.objects.node_cache import NodeCache
cache, made = NodeCache(300_000, Path(sys.argv[1])), 0
for _ in range(200):
    number = random.randrange(8)
    def fill(stream):
        global made
        made += 1
        for _ in range(100):
            stream.write(bytes([number]) * 1000)
    with cache.copy(str(number), fill) as path:
        assert path.read_bytes() == bytes([number]) * 100_000, number
print(made)
"""


def test_processes_of_a_node_share_copies_and_never_see_part_of_one(tmp_path: Path) -> None:
    users = [
        subprocess.Popen(
            [sys.executable, "-c", USER, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        for _ in range(2)
    ]
    ended = [user.communicate(timeout=120) for user in users]
    assert [user.returncode for user in users] == [0, 0], ended
    assert sum(int(output) for output, _ in ended) < 400, "none was used again"
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in left) <= 300_000


def test_a_full_disk_keeps_no_copy_and_spoils_no_object(
    store: S3Store, downloads: list[str]
) -> None:
    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

    with store.writer("a") as stream:
        stream.copy = Full()  # type: ignore[attr-defined]
        stream.write(b"a" * SIZE)
    assert read(store, "a") == b"a" * SIZE
    assert downloads == ["a"]
