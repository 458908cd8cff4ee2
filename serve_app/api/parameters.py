"""What a request carries, strictly read: JSON bodies, query parameters, cursors of pages.

Bodies are bounded UTF-8 without duplicate keys, and without characters that a database cannot keep.
A query parameter has one value, and every refusal names it. Cursors are opaque and signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from serve_app.errors import ApiError, ErrorCode, invalid

MAX_DEPTH = 32
"""Nesting beyond any real request; keeps validation and storage cheap."""


async def read_bounded(request: Request, max_bytes: int) -> bytes:
    """Return the request's body as it came; raises ApiError INVALID_REQUEST beyond
    ``max_bytes``."""
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
        """Return the object."""
        return self._value


async def with_json_object(request: Request) -> JsonRequest:
    """``request`` with its body, a JSON object, read as strictly as this module does; raises
    ApiError INVALID_REQUEST otherwise."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise invalid("The Content-Type must be application/json.")
    settings = request.app.state.context.settings
    body = await read_bounded(request, settings.max_body_bytes)
    return JsonRequest(request, parse_json_object(body))


_INTEGER = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
"""Numbers as JSON writes them, of a sensible length."""


def require_plain_query(request: Request, names: Iterable[str]) -> None:
    """Refuses repetition and what no store can keep; other parameters are ignored."""
    for name in names:
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise invalid(f"{name} must be given once.", name)
        if values and any(c < " " or "\ud800" <= c <= "\udfff" for c in values[0]):
            raise invalid(f"{name} must not hold control characters.", name)


def whole_number(text: str) -> int | None:
    """Return the number that the text is in ASCII digits; None for any other text."""
    return int(text) if _INTEGER.fullmatch(text) else None


def matching(form: re.Pattern[str], kind: str) -> BeforeValidator:
    """Return text in a form; refused in words, where ``pattern`` of pydantic shows the expression.

    Last in an annotation.
    """

    def check(value: Any) -> Any:
        if isinstance(value, str) and not form.fullmatch(value):
            raise PydanticCustomError("form", f"must be a {kind}")
        return value

    return BeforeValidator(check)


def shown(form: re.Pattern[str]) -> Any:
    """Return the form of ``matching`` in the interface document."""
    return Field(json_schema_extra={"pattern": f"^{form.pattern}$"})


WHOLE_NUMBER = matching(_INTEGER, "whole number")
NUMBER = matching(_NUMBER, "number")
"""Pydantic also takes ``+5``, `` 5`` and ``1_000``."""


def one_of(allowed: Iterable[str]) -> AfterValidator:
    """Return text that is one of ``allowed``."""
    choices = [str(choice) for choice in allowed]

    def check(value: str) -> str:
        if value not in choices:
            raise PydanticCustomError("choice", f"must be one of {', '.join(choices)}")
        return value

    return AfterValidator(check)


_Moment = Annotated[
    datetime,
    matching(
        re.compile(r"\d{4}-\d\d-\d\d([Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d))?"),
        "date, or a time with its offset (RFC 3339)",
    ),
]
CreatedFrom = Annotated[
    _Moment | None, Query(alias="from", description="Only jobs created then or later.")
]
CreatedTo = Annotated[_Moment | None, Query(alias="to", description="Only jobs created before.")]


def span_of(
    first: datetime | None, last: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """Return when the jobs were created, dates as their midnight in UTC. Raises INVALID_REQUEST."""
    since, until = (
        at.replace(tzinfo=UTC) if at and at.tzinfo is None else at for at in (first, last)
    )
    if since and until and until <= since:
        raise invalid("to must come after from.", "to")
    return since, until


CursorQuery = Annotated[str | None, Query(description="`nextCursor` of the page before.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAC_BYTES = 16
_PURPOSE = b"cursor"


class BadCursorError(Exception):
    """Not a cursor that this service made for this account."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last job of a page: where the next one goes on."""

    created_at: datetime
    job_id: uuid.UUID


def encode_cursor(cursor: Cursor, *, secret: bytes, account_id: uuid.UUID) -> str:
    """43 to 56 URL-safe characters."""
    micros = (cursor.created_at - _EPOCH) // timedelta(microseconds=1)
    payload = micros.to_bytes(8, signed=True) + cursor.job_id.bytes
    return Cursors(secret, account_id, _PURPOSE).write(payload)


def decode_cursor(text: str, *, secret: bytes, account_id: uuid.UUID) -> Cursor:
    """Raises BadCursorError for whatever ``encode_cursor`` did not make for this account."""
    payload = Cursors(secret, account_id, _PURPOSE).payload(text)
    micros = int.from_bytes(payload[:8], signed=True)
    return Cursor(_EPOCH + timedelta(microseconds=micros), uuid.UUID(bytes=payload[8:]))


@dataclass(frozen=True, slots=True)
class Cursors:
    """Cursors of one list of one account: where its next page goes on."""

    secret: bytes
    account_id: uuid.UUID
    purpose: bytes

    def write(self, payload: bytes) -> str:
        """Return the payload as URL-safe text, signed."""
        return _written(payload + self._mac(payload))

    def payload(self, text: str) -> bytes:
        """Return what ``write`` signed. Raises BadCursorError for any other text."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            raw = base64.b64decode(padded, b"-_", validate=True)
        except ValueError as error:
            raise BadCursorError from error
        payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        # Base64 has several spellings of the same bytes; ours has one.
        if _written(raw) != text or not hmac.compare_digest(mac, self._mac(payload)):
            raise BadCursorError
        return payload

    def read(self, text: str | None, *, of: str = "list") -> bytes:
        """As ``payload``, empty for a first page. Raises ApiError naming ``cursor``."""
        try:
            return b"" if text is None else self.payload(text)
        except BadCursorError as error:
            raise invalid(f"The cursor is not one that this {of} gave out.", "cursor") from error

    def _mac(self, payload: bytes) -> bytes:
        message = self.purpose + b"\n" + self.account_id.bytes + payload
        return hmac.new(self.secret, message, hashlib.sha256).digest()[:_MAC_BYTES]


def _written(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
