"""Alembic's entry point: runs the migrations of a given URL under an advisory lock."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool, text

import storage.money_tables  # noqa: F401  (its tables belong to the metadata)
from storage.database import MIGRATION_LOCK
from storage.tables import metadata


def run() -> None:
    url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        context.configure(connection=connection, target_metadata=metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
