"""The migrations make exactly the schema that the code uses."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import storage.money_tables  # noqa: F401  (its tables belong to the metadata)
from serve_app.deployment.data import marks
from storage.database import MIGRATIONS, driver_url, migrate
from storage.tables import metadata
from tests.databases import fresh_database


def test_migrated_schema_equals_the_tables_of_the_code(database_url: str) -> None:
    engine = sqlalchemy.create_engine(driver_url(database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_processes_that_migrate_an_empty_database_at_once_all_succeed(postgres_url: str) -> None:
    with fresh_database(postgres_url, migrated=False) as url:
        program = f"from storage.database import migrate; migrate({url!r})"
        running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
        assert [process.wait(timeout=170) for process in running] == [0, 0, 0]


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://"])
def test_only_postgresql_is_spoken(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql"):
        driver_url(url)


async def test_a_start_reads_the_marks_of_every_older_schema(postgres_url: str) -> None:
    names = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    with fresh_database(postgres_url, migrated=False) as url:
        assert await marks(url) == (None, None)
        for revision in names:
            await asyncio.to_thread(migrate, url, revision=revision)
            assert await marks(url) == (revision, None)
