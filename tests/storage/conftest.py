"""A database that the money tests of a module share: what they must not do is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from storage.database import Database
from tests.databases import fresh_database
from tests.storage.money_case import Case, new_case


@pytest.fixture(scope="module")
async def money(postgres_url: str) -> AsyncIterator[Database]:
    """A pool on a database of this module's own."""
    with fresh_database(postgres_url) as url:
        pool = Database(url)
        yield pool
        await pool.close()


@pytest.fixture
async def case(money: Database) -> Case:
    """Two accounts of 100 cents each, 60 of them held by a quoted job."""
    return await new_case(money)
