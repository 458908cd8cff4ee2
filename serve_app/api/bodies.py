"""Strict JSON bodies: bounded, UTF-8, no duplicate keys, nothing that a database cannot keep."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import Request

from serve_app.errors import ApiError, ErrorCode, invalid

MAX_DEPTH = 32
"""Nesting beyond any real request; keeps validation and storage cheap."""


async def read_json_object(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """The request's body as a JSON object; raises ApiError INVALID_REQUEST otherwise."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise invalid("The Content-Type must be application/json.")
    raw = await read_bounded(request, max_bytes)
    return parse_json_object(raw)


async def read_bounded(request: Request, max_bytes: int) -> bytes:
    """The request's body as it came; raises ApiError INVALID_REQUEST beyond ``max_bytes``."""
    too_large = invalid(f"The body must not be larger than {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > max_bytes:
            raise too_large
    return bytes(received)


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parse strictly; raises ApiError INVALID_REQUEST."""
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant
        )
        _check(value, "", MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        # ValueError: not UTF-8, not JSON, or a number of more digits than Python reads.
        raise invalid("The body is not valid JSON in UTF-8.") from error
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise invalid("The body names a field twice.")
    return result


def _no_constant(name: str) -> None:
    raise invalid(f"The body holds {name}, which is not JSON.")


def _check(value: Any, path: str, depth: int) -> None:
    """Refuse what PostgreSQL cannot store: NUL, lone surrogates, infinity; and absurd nesting."""
    if depth == 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The body is nested too deeply.")
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise invalid("Numbers must not be larger than a double can be.", path or None)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, path)
            _check(item, f"{path}.{key}" if path else key, depth - 1)


def _check_text(value: str, path: str) -> None:
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise invalid("Text must not hold NUL or unpaired surrogates.", path or None)


class JsonRequest(Request):
    """A request whose body is parsed already."""

    def __init__(self, request: Request, value: dict[str, Any]) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Not empty: FastAPI goes on with ``json``."""
        return b"{}"

    async def json(self) -> dict[str, Any]:
        """The object."""
        return self._value


async def with_json_object(request: Request) -> JsonRequest:
    """``request`` with its body read as strictly as this module does."""
    settings = request.app.state.context.settings
    return JsonRequest(request, await read_json_object(request, max_bytes=settings.max_body_bytes))
