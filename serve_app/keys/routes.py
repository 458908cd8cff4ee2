"""Dashboard endpoints: keys and their rotation, the portal link, sessions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from serve_app.api.authentication import SessionRoute, account_of, parse_job_id
from serve_app.api.bodies import parse_body, read_json_object
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import NO_STORE, public_url, success, timestamp
from serve_app.errors import ApiError, ErrorCode
from serve_app.keys.portal import PORTAL_LINK_SECONDS, PORTAL_PATH, PORTAL_PURPOSE
from storage import keys, ledger
from storage.keys import KeyRecord
from storage.types import KeyStatus

router = APIRouter(prefix=API_PREFIX, route_class=SessionRoute)
open_router = APIRouter(prefix=API_PREFIX)


def _key_object(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": str(record.id),
        "displayKey": keys.display_key(record.last_four),
        "status": str(record.status),
        "expiresAt": timestamp(record.expires_at),
        "benefitId": record.benefit_id,
        "createdAt": timestamp(record.created_at),
    }


@router.get("/keys", operation_id="listKeys")
async def list_keys(request: Request) -> Response:
    """The account's keys, newest first; never a full secret."""
    async with context_of(request).database.statement() as connection:
        found = await keys.list_keys(connection, account_of(request))
    return success(request, [_key_object(record) for record in found], headers=NO_STORE)


@router.get("/keys/portal", operation_id="getKeysPortal")
async def get_keys_portal(request: Request) -> Response:
    """A short-lived link to the billing page; NOT_FOUND if nothing was ever purchased."""
    context = context_of(request)
    account_id = account_of(request)
    async with context.database.statement() as connection:
        if not await ledger.has_purchases(connection, account_id):
            raise ApiError(ErrorCode.NOT_FOUND, "Nothing was purchased for this account yet.")
    path = f"{PORTAL_PATH}/{account_id}"
    expires_at = int(time.time()) + PORTAL_LINK_SECONDS
    url = public_url(request) + context.signer.sign_path(
        PORTAL_PURPOSE, path, expires_at=expires_at
    )
    return success(request, {"url": url}, headers=NO_STORE)


@router.post("/keys/{id}/rotate", operation_id="rotateKey")
async def rotate_key(request: Request, id: str) -> Response:  # noqa: A002
    """A new key in place of an active one; its secret is shown this once."""
    async with context_of(request).database.transaction() as connection:
        issued = await keys.rotate_key(connection, account_of(request), parse_job_id(id))
    if issued is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such active key.")
    record = KeyRecord(
        id=issued.id,
        last_four=issued.secret[-4:],
        status=KeyStatus.ACTIVE,
        expires_at=issued.expires_at,
        benefit_id=issued.benefit_id,
        created_at=issued.created_at,
    )
    return success(request, _key_object(record) | {"key": issued.secret}, headers=NO_STORE)


class SignInBody(BaseModel):
    """Body of the dashboard's sign-in."""

    model_config = ConfigDict(strict=True, extra="ignore")

    token: str = Field(min_length=1, max_length=200)


@open_router.post("/sessions", include_in_schema=False)
async def create_session(request: Request) -> Response:
    """Exchange a one-time sign-in token for a session (the dashboard calls this)."""
    context = context_of(request)
    raw = await read_json_object(request, max_bytes=context.settings.max_body_bytes)
    body = parse_body(SignInBody, raw)
    async with context.database.transaction() as connection:
        session = await keys.exchange_sign_in_link(connection, body.token)
    if session is None:
        raise ApiError(ErrorCode.UNAUTHORIZED, "The sign-in link is unknown, used or too old.")
    data = {
        "session": session,
        "expiresInSeconds": int(keys.SESSION_LIFETIME.total_seconds()),
    }
    return success(request, data, status=201, headers=NO_STORE)
