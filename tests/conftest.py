"""Fixtures shared by all tests: a real PostgreSQL, real media where they are there."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from storage.database import Database, embedded_postgres, migrate

PROJECT = Path(__file__).resolve().parent.parent
SHARED_MEDIA = PROJECT.parent / "shared" / "media"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the collection of real media skip, with the reason, where it is absent.

    Where files run beside each other, all that start the whole service form one group: two
    services at once would keep each other from being in time.
    """
    for item in items:
        group = "service" if "service" in item.keywords else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    if SHARED_MEDIA.is_dir():
        return
    skip = pytest.mark.skip(reason="the collection of real media is not beside the project")
    for item in items:
        if "shared_media" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose database ``template`` is migrated."""
    with embedded_postgres(tmp_path_factory.mktemp("postgres") / "pg") as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE template_vas")
        migrate(url.replace("/postgres?", "/template_vas?"))
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, migrated database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template_vas')
        yield postgres_url.replace("/postgres?", f"/{name}?")
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool on this test's own database."""
    pool = Database(database_url)
    yield pool
    await pool.close()
