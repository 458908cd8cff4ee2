"""Who calls: API keys in ``Authorization: Bearer`` or ``X-API-Key``."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from serve_app.errors import ApiError, ErrorCode
from storage.keys import KEY_PREFIX, Principal, find_principal

_KEY_FORM = re.compile(re.escape(KEY_PREFIX) + r"[A-Za-z0-9_-]{43}")


def presented_key(request: Request) -> str | None:
    """The key in the request's headers; None if there is none or it has not a key's form.

    Two different keys in the two headers are no valid credential.
    """
    found = set()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.add(token.strip())
    if "x-api-key" in request.headers:
        found.add(request.headers["x-api-key"].strip())
    if len(found) != 1:
        return None
    key = found.pop()
    return key if _KEY_FORM.fullmatch(key) else None


async def authenticate(request: Request) -> Principal:
    """The account behind the request; raises UNAUTHORIZED or ACCOUNT_SUSPENDED."""
    key = presented_key(request)
    principal = None
    if key is not None:
        async with request.app.state.world.database.transaction() as connection:
            principal = await find_principal(connection, key)
    if principal is None:
        raise ApiError(ErrorCode.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})
    if principal.suspended:
        raise ApiError(ErrorCode.ACCOUNT_SUSPENDED)
    return principal


class KeyedRoute(APIRoute):
    """A route that authenticates before anything else of the request is looked at."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def authenticated(request: Request) -> Response:
            request.state.principal = await authenticate(request)
            return await handle(request)

        return authenticated


def principal_of(request: Request) -> Principal:
    """The caller of a KeyedRoute."""
    principal: Principal = request.state.principal
    return principal
