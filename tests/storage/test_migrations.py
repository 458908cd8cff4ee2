"""The migrations make exactly the schema that the code uses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import storage.money_tables  # noqa: F401  (its tables belong to the metadata)
from storage.database import driver_url
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
