"""Whether the service lives and is ready: for load balancers and the operator, outside the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from serve_app.api.envelope import Context
from serve_app.context import AppContext
from serve_app.crypto import DecryptionError
from storage.database import NoSessionError, database_revision, newest_revision
from storage.webhooks import find_any_encrypted_secret

router = APIRouter(include_in_schema=False)

_ALIVE = b'{"status":"alive"}'
_OK = b'{"status":"ok"}'


@router.get("/health/live")
async def live() -> Response:
    """200 as soon as the API answers; touches nothing else."""
    return Response(_OK, media_type="application/json")


@router.get("/health")
async def health(context: Context) -> Response:
    """200 as soon as the API answers and reaches its database."""
    await _database(context)
    return Response(_OK, media_type="application/json")


@router.get("/healthz")
async def healthz() -> Response:
    """200 as long as this process answers; touches nothing else."""
    return Response(_ALIVE, media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 where everything is there that requests need, else 503 and what is missing."""
    probe: ReadinessProbe = request.app.state.readiness
    found = await probe.examine()
    return JSONResponse(
        found.document(),
        status_code=200 if found.ready else 503,
        headers={"Cache-Control": "no-store"} | ({} if found.ready else {"Retry-After": "2"}),
    )


log = logging.getLogger("vas.readiness")

CHECK_SECONDS = 5.0
"""A part that takes longer to answer is missing."""

REMEMBERED_SECONDS = 1.0
"""The database and the store are examined at most once in so long, however many requests come."""

Check = Callable[[AppContext], Coroutine[Any, Any, None]]


class NotReadyError(Exception):
    """A part is missing; the message may be read by strangers: no addresses, no names."""


async def _database(context: AppContext) -> None:
    async with context.database.statement() as connection:
        await connection.exec_driver_sql("SELECT 1")


async def _migrations(context: AppContext) -> None:
    """A newer schema is fine: the next version migrates first, and only ever adds to it."""
    found = await context.database.read(database_revision)
    expected = newest_revision()
    if found is None or found < expected:
        raise NotReadyError(f"the schema is at {found}, the code needs {expected}")


async def _object_store(context: AppContext) -> None:
    await asyncio.to_thread(context.objects.require_usable)


async def _secret(context: AppContext) -> None:
    encrypted = await context.database.read(find_any_encrypted_secret)
    if encrypted is None:
        return
    try:
        context.encrypter.decrypt(encrypted)
    except DecryptionError:
        raise NotReadyError("VAS_SECRET_KEY is not the key of this database") from None


CHECKS: Mapping[str, Check] = {
    "database": _database,
    "migrations": _migrations,
    "objectStore": _object_store,
    "secret": _secret,
}


@dataclass(frozen=True, slots=True)
class Readiness:
    """What was found: a sentence for each part that is missing, nothing for the others."""

    missing: Mapping[str, str]

    @property
    def ready(self) -> bool:
        return not self.missing

    def document(self) -> dict[str, object]:
        """As ``/readyz`` shows it."""
        checks = {name: self.missing.get(name, "ok") for name in CHECKS}
        status = "ready" if self.ready else "not ready"
        return {"status": status, "missing": sorted(self.missing), "checks": checks}


@dataclass(slots=True)
class ReadinessProbe:
    """Examines a context for all requests; one examination at a time, and none twice a second."""

    context: AppContext
    checks: Mapping[str, Check] = field(default_factory=lambda: CHECKS)
    clock: Callable[[], float] = time.monotonic
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _under_way: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _found: Readiness | None = None
    _found_at: float = 0.0

    async def examine(self) -> Readiness:
        """Return the last finding if it is fresh, else a new one."""
        async with self._turn:
            if self._found is None or self.clock() - self._found_at >= REMEMBERED_SECONDS:
                findings = await asyncio.gather(*(self._finding(name) for name in self.checks))
                missing = {
                    name: found for name, found in zip(self.checks, findings, strict=True) if found
                }
                if missing:
                    log.warning("not ready: %s", missing)
                self._found = Readiness(missing)
                self._found_at = self.clock()
            return self._found

    async def _finding(self, name: str) -> str | None:
        """Return what is wrong with a part, in words for strangers; what exactly goes to the
        log."""
        # A check that hangs is waited for again, not started again: they must not pile up.
        if name not in self._under_way:
            self._under_way[name] = asyncio.create_task(self.checks[name](self.context))
        done, _ = await asyncio.wait({self._under_way[name]}, timeout=CHECK_SECONDS)
        if not done:
            return f"does not answer within {CHECK_SECONDS:g} s"
        error = self._under_way.pop(name).exception()
        if error is None:
            return None
        origin = getattr(error, "orig", error)
        if isinstance(origin, NotReadyError | NoSessionError):
            return str(origin)
        log.warning("readiness: %s: %s: %s", name, type(error).__name__, error)
        return "cannot be reached"
