"""The HTTP API on a real socket over a real PostgreSQL; no Ray, no runner."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx
import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.provider import LocalModels
from models.tasks import RECOGNIZE_ENTITIES
from serve_app.app import build_api
from serve_app.context import AppContext, PictureEncoder, TextEncoder, build_context
from serve_app.observability.metrics import NULL_METRICS, Metrics
from serve_app.settings import Settings
from storage import keys, ledger
from storage.database import Database

Result = TypeVar("Result")
SECRET = "a secret for tests, long enough for the signer"


@dataclass(frozen=True, slots=True)
class Customer:
    """An account with a key."""

    account_id: uuid.UUID
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key}


class RunningApi:
    """The API served by uvicorn in a thread, and the means to look behind it."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics = NULL_METRICS,
        encoder: TextEncoder | None = None,
        pictures: PictureEncoder | None = None,
    ) -> None:
        self.settings = settings
        self.context: AppContext = build_context(
            settings, metrics, encoder, pictures, lambda: LocalModels().get(RECOGNIZE_ENTITIES)
        )
        self.app = build_api(self.context)
        # Idle connections are kept as long as Ray Serve keeps them: uvicorn's own five seconds are
        # also those of httpx, so that a request could meet the closing of its connection.
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=0,
            log_level="warning",
            lifespan="on",
            timeout_keep_alive=90,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.database = Database(settings.database_url or "", pool_size=3)
        """A way to its database that costs little to use often, on a loop of the tests' own."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop_thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.root = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=f"{self.root}/v1/api", trust_env=False, timeout=120)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(120)
        self.run(self.database.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(120)
        self._loop.close()

    def customer(self, credits_cents: int = 1000) -> Customer:
        """A new account with credits and a key."""

        async def create(connection: AsyncConnection) -> Customer:
            account = await keys.create_account(connection, uuid.uuid4().hex)
            if credits_cents:
                await ledger.grant(connection, account.id, credits_cents, "test")
            issued = await keys.create_key(connection, account.id)
            return Customer(account.id, issued.secret)

        return self.transact(create)

    def transact(self, work: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run ``work(connection)`` in a transaction of its own, whatever loop the test is on."""
        return self.run(self.database.write(work))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something asynchronous, on a loop of the tests' own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def sql(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement, in a transaction of its own."""

        async def run(connection: AsyncConnection) -> list[tuple[Any, ...]]:
            result = await connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.transact(run)


def transact(url: str, work: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
    """Run ``work(connection)`` in one transaction at ``url``, from a thread with its own loop."""

    async def run() -> Result:
        database = Database(url, pool_size=2)
        try:
            return await database.write(work)
        finally:
            await database.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


def within_a_minute(action: Callable[[], Result]) -> Result:
    """What ``action`` returns where it takes place within one minute of the clock, by which rates
    are counted; it is repeated until it does, so it must count on an account of its own."""
    for _ in range(5):
        minute = int(time.time()) // 60
        result = action()
        if int(time.time()) // 60 == minute:
            return result
    raise AssertionError("five times the minute ended meanwhile")
