"""Alembic's entry point: runs the migrations of a given URL under an advisory lock.

A service may be at work on the database. So a table that is in use is waited for but shortly:
everybody else who wants it would wait behind the migration. A database that a newer version has
migrated already is left as it is, for it has all that this version needs.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool, text

import storage.money_tables  # noqa: F401  (its tables belong to the metadata)
from storage.database import LOCK_SECONDS, MIGRATION_LOCK
from storage.tables import metadata


def run() -> None:
    url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        context.configure(connection=connection, target_metadata=metadata)
        if not _is_newer():
            with context.begin_transaction():
                context.run_migrations()
    engine.dispose()


def _is_newer() -> bool:
    found = context.get_context().get_current_revision()
    return found is not None and found > str(context.get_head_revision())


run()
