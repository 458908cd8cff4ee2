"""Databases of the tests, on one real server a process of the run."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from storage.database import embedded_postgres, migrate
from tests.places import MEMORY

_TEMPLATE = "template_vas"
_UNSAFE_AND_FAST = ("fsync", "synchronous_commit", "full_page_writes")
"""What only a power cut would miss: no data of the tests outlive their server's folder."""
_ROOM_BYTES = 2 << 30
"""For the servers of a run, which take some hundred megabytes together."""


@contextmanager
def place_of_server() -> Iterator[Path]:
    """A folder in memory where there is room, else a temporary one.

    A database is three hundred files: on a disk, making and removing them takes the processor ten
    times as long, and waits for the disk besides.
    """
    run = Path(tempfile.gettempdir())
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > _ROOM_BYTES
    place = MEMORY if has_room else run
    folder = place / f"vas-{run.name}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def server_with_template(folder: Path) -> Iterator[str]:
    """A PostgreSQL server that has a migrated database to copy; yields its URL."""
    with embedded_postgres(folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in _UNSAFE_AND_FAST:
                connection.execute(f"ALTER SYSTEM SET {setting} = off")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(f"CREATE DATABASE {_TEMPLATE}")
        migrate(_at(url, _TEMPLATE))
        yield url


@contextmanager
def fresh_database(server_url: str, *, migrated: bool = True) -> Iterator[str]:
    """A database of the block's own, an empty one where it is not ``migrated``; yields its URL."""
    name = f"test_{uuid.uuid4().hex}"
    # As files: a copy through the log fills the server's buffers, which removing it has to search.
    template = f" TEMPLATE {_TEMPLATE} STRATEGY file_copy" if migrated else ""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"{template}')
    try:
        yield _at(server_url, name)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _at(server_url: str, name: str) -> str:
    return server_url.replace("/postgres?", f"/{name}?")
