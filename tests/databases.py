"""Databases of the tests, on one real server a process of the run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from storage.database import embedded_postgres, migrate

_TEMPLATE = "template_vas"
_UNSAFE_AND_FAST = ("fsync", "synchronous_commit", "full_page_writes")
"""What only a power cut would miss: no data of the tests outlive their server's folder."""


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
