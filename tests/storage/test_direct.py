"""The hot paths' connections stay with the statements of their process, and go back to the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from sqlalchemy import text

from storage import database as direct
from storage.database import SESSION_MARK, Database, DirectConnections

SIZE = 2
MARKED = {"options": f"-c {SESSION_MARK}=on"}


@pytest.fixture
async def connections(postgres_url: str) -> AsyncIterator[DirectConnections]:
    opened = DirectConnections(postgres_url, SIZE, MARKED)
    await opened.open()
    yield opened
    await opened.close()


async def backend(connections: DirectConnections, statement: str = "SELECT 1") -> int:
    """The server's process that ran ``statement``."""
    async with connections.connection() as connection:
        await connection.execute(statement)
        return connection.info.backend_pid


async def test_statements_one_after_the_other_share_a_connection(
    connections: DirectConnections,
) -> None:
    assert len({await backend(connections) for _ in range(5)}) == 1


async def test_no_more_connections_than_the_size_for_any_number_of_statements(
    connections: DirectConnections,
) -> None:
    used = await asyncio.gather(*[backend(connections, "SELECT pg_sleep(0.02)") for _ in range(9)])
    assert len(set(used)) == SIZE


async def test_a_lost_connection_fails_one_statement(connections: DirectConnections) -> None:
    lost = await backend(connections)
    with pytest.raises(psycopg.OperationalError):
        await backend(connections, f"SELECT pg_terminate_backend({lost})")
    assert await backend(connections) != lost


async def test_a_refused_statement_costs_no_connection(postgres_url: str) -> None:
    connections = DirectConnections(postgres_url, 1, MARKED)
    await connections.open()
    first = await backend(connections)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await backend(connections, "SELECT 1 / 0")
    assert await backend(connections) == first
    await connections.close()


async def test_a_block_left_in_a_transaction_is_rolled_back(
    connections: DirectConnections,
) -> None:
    await backend(connections, "BEGIN")
    async with connections.connection() as connection:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_who_waits_too_long_for_a_connection_is_told(
    connections: DirectConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_WAIT_SECONDS", 0.1)
    async with connections.connection(), connections.connection():
        with pytest.raises(PoolTimeout):
            await backend(connections)
    await backend(connections)


async def test_a_cancelled_statement_leaves_room_for_others(
    connections: DirectConnections,
) -> None:
    cancelled = [asyncio.create_task(backend(connections, "SELECT pg_sleep(60)")) for _ in range(4)]
    await asyncio.sleep(0.3)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    await asyncio.gather(*[backend(connections) for _ in range(2 * SIZE)])


async def test_who_is_cancelled_while_a_statement_opens_its_connection_keeps_none(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the request of a client that is gone: what it had goes back at once."""
    database, reached = Database(postgres_url, pool_size=1), asyncio.Event()

    async def work() -> int:
        async with database.statement() as connection:
            return int((await connection.execute(text("SELECT 1"))).scalar_one())

    set_autocommit = psycopg.AsyncConnection.set_autocommit

    async def slow_set_autocommit(connection: Any, value: bool) -> None:
        reached.set()
        await asyncio.sleep(0)
        await set_autocommit(connection, value)

    monkeypatch.setattr(psycopg.AsyncConnection, "set_autocommit", slow_set_autocommit)
    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    # Its traceback is kept, as a log keeps it.
    [error] = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError)
    async with asyncio.timeout(60):
        assert await work() == 1
    await database.close()


async def test_connections_that_nothing_uses_go_back_to_the_pool(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = asyncio.Event()

    class WatchedPool(AsyncConnectionPool):
        async def putconn(self, conn: Any) -> None:
            returned.set()
            await super().putconn(conn)

    monkeypatch.setattr(direct, "AsyncConnectionPool", WatchedPool)
    monkeypatch.setattr(direct, "_KEPT_SECONDS", 0.5)
    connections = DirectConnections(postgres_url, SIZE, MARKED)
    await connections.open()
    await backend(connections)
    assert not returned.is_set()
    await asyncio.wait_for(returned.wait(), 60)
    await backend(connections)
    await connections.close()
