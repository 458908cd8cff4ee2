"""Alembic's entry point: makes or migrates the schema of a given URL under an advisory lock.

A new database gets the schema of ``storage/tables.py`` and ``storage/functions.sql`` at once, an
older one the tables that it lacks. Migrations are for the rest: what changes in tables that version
0.3.0 or a later one has made.
A service may be at work on the database. So all of the service's tables are taken before any of
them is changed, each being waited for but shortly: everybody else who needs it would wait behind
the migration, or, holding one that the migration needs, without end. A database that a newer version
has migrated already is left as it is, for it has all that this version needs.
"""

from __future__ import annotations

from collections.abc import Collection

from alembic import context
from sqlalchemy import Connection, create_engine, inspect, pool, text

from storage.database import LOCK_SECONDS, MIGRATION_LOCK, schema_functions
from storage.tables import metadata


def run() -> None:
    url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        context.configure(connection=connection, target_metadata=metadata)
        found, head = (
            context.get_context().get_current_revision() or "",
            context.get_head_revision(),
        )
        there = metadata.tables.keys() & {*inspect(connection).get_table_names()}
        if found < str(head) or (found == head and there != metadata.tables.keys()):
            _take(connection, there)
            with context.begin_transaction():
                metadata.create_all(connection)
                if found:
                    context.run_migrations()
                connection.execute(text(schema_functions()))
                context.get_context().stamp(context.script, "head")
    engine.dispose()


def _take(connection: Connection, tables: Collection[str]) -> None:
    """Lock them; raises OperationalError, LockNotAvailable, after LOCK_SECONDS."""
    connection.execute(text(f"SET LOCAL lock_timeout = {round(LOCK_SECONDS * 1000)}"))
    if tables:
        connection.execute(text(f"LOCK TABLE {', '.join(sorted(tables))}"))


run()
