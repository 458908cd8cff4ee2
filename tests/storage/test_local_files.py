"""Temporary files and folders of processes that were killed go with the next one to come."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.objects.local_files import temporary_file, temporary_folder
from tests.places import PROJECT

USER = """
import sys, time
from storage.objects.local_files import temporary_file, temporary_folder
with temporary_file() as (path, stream), temporary_folder("ingest-") as folder:
    (folder / "segment").write_bytes(bytes(1000))
    print(path, flush=True)
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def started(folder: Path) -> tuple[subprocess.Popen[str], list[Path]]:
    """Another process with a file and a folder in use, and where they are."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(PROJECT)}
    user = subprocess.Popen(
        [sys.executable, "-c", USER], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert user.stdout is not None
    return user, [Path(user.stdout.readline().strip()) for _ in range(2)]


def grow_old(folder: Path) -> None:
    long_ago = time.time() - 3600
    for path in folder.rglob("*"):
        os.utime(path, (long_ago, long_ago))


def use_both() -> None:
    with temporary_file(), temporary_folder("sync-"):
        pass


def test_what_is_in_use_stays_and_what_a_killed_process_left_goes(system_folder: Path) -> None:
    user, places = started(system_folder)
    try:
        grow_old(system_folder)
        use_both()
        assert all(path.exists() for path in places)
    finally:
        user.kill()
        user.communicate()
    use_both()
    assert list(system_folder.iterdir()) == []


def test_what_has_just_been_made_stays_though_it_is_not_locked_yet(system_folder: Path) -> None:
    user, places = started(system_folder)
    user.kill()
    user.communicate()
    use_both()
    assert all(path.exists() for path in places)


def test_a_folder_is_gone_after_its_block_whatever_happened_in_it(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), temporary_folder("raw-", tmp_path / "own") as folder:
        (folder / "decoded.mov").write_bytes(b"x")
        raise RuntimeError
    assert list((tmp_path / "own").iterdir()) == []


def test_nothing_stays_and_nobody_is_disturbed_where_many_come_and_go(system_folder: Path) -> None:
    """Whoever leaves last removes the folder that others are just about to use."""

    def come_and_go(_: int) -> None:
        for _ in range(100):
            use_both()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(8)))
    assert list(system_folder.iterdir()) == []
