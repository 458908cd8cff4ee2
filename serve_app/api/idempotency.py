"""Creations that may be repeated: the same key gives the same answer, and one job.

The remembered answer, the job and its hold are written in one transaction.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from serve_app.api.authentication import account_of
from serve_app.api.envelope import failure
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from storage.access import IdempotencyKey, StoredAnswer, find_answer, store_answer, try_lock_key
from storage.database import Connection

BODY_FIELD = "idempotencyKey"
_KEY_FORM = re.compile(r"[\x20-\x7e]{1,255}")
_REPLAYED_HEADERS = ("content-type", "location", "x-request-id")

Creation = Callable[[Connection], Awaitable[Response]]


def idempotency_key(header: str | None, body: dict[str, Any]) -> str | None:
    """Return the key of a creation, from header or body; raises where they differ or are
    malformed."""
    in_body = body.get(BODY_FIELD)
    if in_body is not None and not (isinstance(in_body, str) and _KEY_FORM.fullmatch(in_body)):
        raise invalid("idempotencyKey must be 1 to 255 printable ASCII characters.", BODY_FIELD)
    if header is not None and not _KEY_FORM.fullmatch(header):
        raise invalid("The Idempotency-Key header must be 1 to 255 printable ASCII characters.")
    if header is not None and in_body is not None and header != in_body:
        raise ApiError(
            ErrorCode.IDEMPOTENCY_BODY_MISMATCH,
            "The Idempotency-Key header and the body's idempotencyKey differ.",
        )
    return header if header is not None else in_body


async def create_once(
    request: Request, operation: str, header: str | None, create: Creation
) -> Response:
    """Run ``create`` in a transaction, or give its earlier answer again.

    ``header`` is the ``Idempotency-Key`` header; the body may hold the key too.

    Refusals that a later try may not meet (429) are not remembered; a refusal
    for lack of credits is, together with the fact that nothing was made.
    """
    context: AppContext = request.app.state.context
    body = await request.json()
    key = idempotency_key(header, body)
    async with context.database.transaction() as connection:
        if key is None:
            return await create(connection)
        slot = IdempotencyKey(account_of(request), operation, key)
        # Of the body as parsed, so that white space and the order of fields do not matter.
        relevant = {name: value for name, value in body.items() if name != BODY_FIELD}
        canonical = json.dumps(relevant, sort_keys=True, ensure_ascii=False)
        return await _once(
            request, connection, slot, hashlib.sha256(canonical.encode()).digest(), create
        )


async def _once(
    request: Request,
    connection: Connection,
    slot: IdempotencyKey,
    body_sha256: bytes,
    create: Creation,
) -> Response:
    if not await try_lock_key(connection, slot):
        raise ApiError(ErrorCode.IDEMPOTENCY_IN_PROGRESS)
    earlier = await find_answer(connection, slot)
    if earlier is not None:
        if earlier.body_sha256 != body_sha256:
            raise ApiError(ErrorCode.IDEMPOTENCY_BODY_MISMATCH)
        headers = earlier.headers | {"Idempotent-Replayed": "true"}
        return Response(earlier.body, status_code=earlier.status, headers=headers)
    try:
        async with connection.begin_nested():
            response = await create(connection)
    except ApiError as error:
        if error.status == 429 or error.status >= 500:
            raise
        response = failure(request, error)
    headers = {
        name: response.headers[name] for name in _REPLAYED_HEADERS if name in response.headers
    }
    headers["x-request-id"] = request.scope["vas_request_id"]
    answer = StoredAnswer(body_sha256, response.status_code, headers, bytes(response.body))
    await store_answer(connection, slot, answer)
    return response
