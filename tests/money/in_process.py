"""The whole service in this process, without a socket: for tests that take thousands of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
from sqlalchemy import text

from serve_app.app import build_api
from serve_app.context import build_context
from serve_app.settings import Settings
from serve_app.work.reaper import Reaper
from storage.database import Connection

Result = TypeVar("Result")


class InProcessService:
    """The service in this process, on an event loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._runner = asyncio.Runner()
        self.context = build_context(settings)
        transport = httpx.ASGITransport(build_api(self.context))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._reaper = Reaper(self.context)
        self.steps = 0

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self.context.database.close())
        self._runner.close()

    def transact(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            return await self.context.database.write(work)

        return self._runner.run(run())

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def sweep(self) -> None:
        self._reaper._expire_at = 0.0  # else uploads expire but once in twenty seconds
        self._runner.run(self._reaper.sweep())

    def sql(self, statement: str, **given: Any) -> list[dict[str, Any]]:
        async def run(connection: Connection) -> list[dict[str, Any]]:
            result = await connection.execute(text(statement), given)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

        return self.transact(run)
