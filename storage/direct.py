"""Connections of the driver for the hot paths: one statement each, thousands a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from pydantic_core import from_json

Row = dict[str, Any]
DirectConnection = AsyncConnection[Row]

_WAIT_SECONDS = 10
_RECONNECT_SECONDS = 2.0
"""How long a lost connection is retried in the background; after that the next query does."""

_KEPT_SECONDS = 30.0
"""How long a connection is out of the pool, whose own limits of age and idleness rule it again
then."""


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
            configure=_read_json_fast,
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


async def _read_json_fast(connection: DirectConnection) -> None:
    set_json_loads(from_json, connection)
