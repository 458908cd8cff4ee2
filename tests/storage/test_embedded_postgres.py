"""The embedded server ends of itself: whoever uses it has one again soon."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from storage import database
from storage.database import embedded_postgres


def test_a_server_that_ended_is_started_again_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOOK_SECONDS", 0.2)
    folder = tmp_path / "pg"
    with embedded_postgres(folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
        everything = [postmaster, *postmaster.children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, 30)
        assert rows_when_up(url) == [(7,)]
        again = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    # Whoever is to reap it may take a while.
    assert not again.is_running() or again.status() == psutil.STATUS_ZOMBIE


def rows_when_up(url: str) -> list[tuple[int]]:
    for _ in range(1200):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
            return connection.execute("SELECT n FROM kept").fetchall()
        time.sleep(0.1)
    raise AssertionError("no server")
