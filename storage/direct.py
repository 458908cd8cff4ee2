"""Connections of the driver for the hot paths: one statement each, thousands a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from psycopg import AsyncConnection, OperationalError
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, scalar_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from pydantic_core import from_json

Row = dict[str, Any]
DirectConnection = AsyncConnection[Row]

_WAIT_SECONDS = 10
_RECONNECT_SECONDS = 2.0
"""How long a lost connection is retried in the background; after that the next query does."""

SESSION_MARK = "vas.session"
"""A setting of every connection. A pooler drops it, or refuses it, with all other ``options``."""

_KEPT_SECONDS = 30.0
"""How long a connection is out of the pool, whose own limits of age and idleness rule it again
then."""


class NoSessionError(OperationalError):
    """A pooler in front of the server hands statements of one connection to any of the server's."""

    def __init__(self) -> None:
        super().__init__(
            "PostgreSQL is reached through a pooler that does not pass sessions on, as PgBouncer: "
            "VAS_DATABASE_URL has to name the server itself."
        )


class DirectConnections:
    """A pool whose connections stay with this process's statements while these come.

    Taking a connection from psycopg's pool and handing it back is a third of a small statement's
    processor time, and waiting in its queue as much again. So it opens, replaces and ends them, and
    between statements they lie here: every one goes back once in :data:`_KEPT_SECONDS`, and at once
    where its statement failed.
    """

    def __init__(self, url: str, size: int, options: Mapping[str, object]) -> None:
        self._pool: AsyncConnectionPool[DirectConnection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=size,
            timeout=_WAIT_SECONDS,
            reconnect_timeout=_RECONNECT_SECONDS,
            open=False,
            configure=_prepare,
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 2, **options},
        )
        self._turns = asyncio.Semaphore(size)
        self._kept: list[DirectConnection] = []
        self._return: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to connect. Does not wait for the server."""
        await self._pool.open()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[DirectConnection]:
        """A connection to itself. Raises psycopg_pool.PoolTimeout where none is free in time."""
        await self._turn()
        try:
            connection = self._kept.pop() if self._kept else await self._pool.getconn()
            sound = False
            try:
                yield connection
                sound = connection.pgconn.transaction_status == TransactionStatus.IDLE
            finally:
                if sound and not self._pool.closed:
                    self._keep(connection)
                else:
                    await self._pool.putconn(connection)
        finally:
            self._turns.release()

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            message = f"no connection was free for {_WAIT_SECONDS} s"
            raise PoolTimeout(message) from None

    def _keep(self, connection: DirectConnection) -> None:
        self._kept.append(connection)
        if self._return is None:
            loop = asyncio.get_running_loop()
            self._return = loop.call_later(_KEPT_SECONDS, self._begin_return)

    def _begin_return(self) -> None:
        self._return = None
        self._returning = asyncio.get_running_loop().create_task(self._return_kept())

    async def _return_kept(self) -> None:
        kept, self._kept = self._kept, []
        for connection in kept:
            await self._pool.putconn(connection)

    async def close(self) -> None:
        """End all connections; those in use end with their statements."""
        if self._return is not None:
            self._return.cancel()
        if self._returning is not None:
            await self._returning
        await self._return_kept()
        await self._pool.close()


async def require_session(connection: AsyncConnection[Any]) -> None:
    """Raise NoSessionError, and close the connection, where its settings did not reach the server.

    Behind PgBouncer in transaction mode prepared statements, LISTEN and locks of sessions are those
    of another connection: statements fail, or another one runs in their place.
    """
    async with connection.transaction(), connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute("SELECT current_setting(%s, true)", [SESSION_MARK])
        found = await cursor.fetchone()
    if found is None:
        await connection.close()
        raise NoSessionError


async def _prepare(connection: DirectConnection) -> None:
    await require_session(connection)
    set_json_loads(from_json, connection)
