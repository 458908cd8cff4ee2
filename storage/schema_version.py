"""Which revision of the schema a database has, and which one the code was written for.

Revisions are numbers of four digits: later ones compare greater.
"""

from __future__ import annotations

import functools
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

MIGRATIONS = Path(__file__).parent / "migrations"


@functools.lru_cache(maxsize=1)
def newest_revision() -> str:
    """The revision that ``migrate`` brings a database to."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return str(ScriptDirectory.from_config(config).get_current_head())


async def database_revision(connection: AsyncConnection) -> str | None:
    """The revision of the connected database; None where it was never migrated."""
    known = await connection.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not known.scalar_one():
        return None
    revision: str | None = (
        await connection.execute(text("SELECT version_num FROM alembic_version"))
    ).scalar_one_or_none()
    return revision
