"""A database that the money tests of a module share: what they must not do is rolled back."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest

from storage.database import Database
from tests.storage.money_case import Case, new_case


@pytest.fixture(scope="module")
async def money(postgres_url: str) -> AsyncIterator[Database]:
    """A pool on a database of this module's own."""
    name = f"money_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template_vas')
        pool = Database(postgres_url.replace("/postgres?", f"/{name}?"))
        yield pool
        await pool.close()
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def case(money: Database) -> Case:
    """Two accounts of 100 cents each, 60 of them held by a quoted job."""
    return await new_case(money)
