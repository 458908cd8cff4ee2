"""Dashboard endpoints: keys and their rotation, the portal link, sessions."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, KeylessRoute, SessionRoute, parse_job_id
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import NO_STORE, public_url, success, timestamp
from serve_app.api.openapi import errors, headers, links
from serve_app.api.schemas import Answer, Count, RequestId, Timestamp, Url, Uuid, doc
from serve_app.errors import ApiError, ErrorCode
from serve_app.keys.portal import PORTAL_LINK_SECONDS, PORTAL_PATH, PORTAL_PURPOSE
from storage import keys, ledger
from storage.keys import KeyRecord
from storage.types import KeyStatus

_PRIVATE = {"headers": headers("Cache-Control")}

router = APIRouter(prefix=API_PREFIX, route_class=SessionRoute, tags=["Dashboard"])
open_router = APIRouter(prefix=API_PREFIX, route_class=KeylessRoute, tags=["Dashboard"])


class Key(TypedDict):
    """An API key; its secret is never listed."""

    id: Annotated[Uuid, doc("The key's id.")]
    displayKey: Annotated[str, doc("Prefix and last four characters.", "vas_live_…q7Zk")]
    status: KeyStatus
    expiresAt: Annotated[Timestamp | None, doc("When it stops working; null for never.", None)]
    benefitId: Annotated[str | None, doc("The purchase that it came with.", None)]
    createdAt: Annotated[Timestamp, doc("When it was made.")]


class KeyList(TypedDict):
    """The account's keys."""

    data: Annotated[list[Key], doc("Newest first.")]
    requestId: RequestId


class RotatedKey(Key):
    """A new key in place of another."""

    key: Annotated[str, doc("The full secret, shown this once.", "vas_live_…")]


class PortalLink(TypedDict):
    """A short-lived link."""

    url: Annotated[Url, doc("The billing page.")]


def _key_object(record: KeyRecord) -> Key:
    return {
        "id": str(record.id),
        "displayKey": keys.display_key(record.last_four),
        "status": record.status,
        "expiresAt": timestamp(record.expires_at),
        "benefitId": record.benefit_id,
        "createdAt": timestamp(record.created_at),
    }


@router.get(
    "/keys",
    operation_id="listKeys",
    summary="List API keys",
    response_model=KeyList,
    response_description="The keys, newest first.",
    responses={200: _PRIVATE | {"links": links({"id": "$response.body#/data/0/id"}, "rotateKey")}},
)
async def list_keys(request: Request, context: Context, account_id: CurrentAccount) -> Response:
    """Never with their secrets."""
    async with context.database.statement() as connection:
        found = await keys.list_keys(connection, account_id)
    return success(request, [_key_object(record) for record in found], headers=NO_STORE)


@router.get(
    "/keys/portal",
    operation_id="getKeysPortal",
    summary="Open the billing page",
    response_model=Answer[PortalLink],
    response_description="The link.",
    responses=errors(ErrorCode.NOT_FOUND) | {200: _PRIVATE},
)
async def get_keys_portal(
    request: Request, context: Context, account_id: CurrentAccount
) -> Response:
    """A short-lived link to keys, receipts and credits. Not found if nothing was ever purchased."""
    async with context.database.statement() as connection:
        if not await ledger.has_purchases(connection, account_id):
            raise ApiError(ErrorCode.NOT_FOUND, "Nothing was purchased for this account yet.")
    path = f"{PORTAL_PATH}/{account_id}"
    expires_at = int(time.time()) + PORTAL_LINK_SECONDS
    url = public_url(request) + context.signer.sign_path(
        PORTAL_PURPOSE, path, expires_at=expires_at
    )
    return success(request, {"url": url}, headers=NO_STORE)


@router.post(
    "/keys/{id}/rotate",
    operation_id="rotateKey",
    summary="Rotate an API key",
    response_model=Answer[RotatedKey],
    response_description="The new key.",
    responses=errors(ErrorCode.NOT_FOUND) | {200: _PRIVATE},
)
async def rotate_key(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    key_id: Annotated[Uuid, Path(alias="id", description="The key's id.")],
) -> Response:
    """The old key stops working; the new secret is shown this once."""
    async with context.database.transaction() as connection:
        issued = await keys.rotate_key(connection, account_id, parse_job_id(key_id))
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
    return success(request, {**_key_object(record), "key": issued.secret}, headers=NO_STORE)


class SignInBody(BaseModel):
    """Body of ``POST /sessions``."""

    model_config = ConfigDict(strict=True, extra="ignore")

    token: Annotated[
        str, Field(min_length=1, max_length=200), doc("Of a sign-in link; works once.", "…")
    ]


class Session(TypedDict):
    """A dashboard session."""

    session: Annotated[str, doc("Its token, for `Authorization: Bearer`.", "vas_sess_…")]
    expiresInSeconds: Annotated[Count, doc("How long it lasts.")]


@open_router.post(
    "/sessions",
    operation_id="createSession",
    summary="Exchange a sign-in token for a session",
    status_code=201,
    response_model=Answer[Session],
    response_description="The session.",
    responses=errors(ErrorCode.INVALID_REQUEST, ErrorCode.UNAUTHORIZED) | {201: _PRIVATE},
)
async def create_session(request: Request, context: Context, body: SignInBody) -> Response:
    """The operator issues sign-in links (`vas sessions create`); no other credential."""
    async with context.database.transaction() as connection:
        session = await keys.exchange_sign_in_link(connection, body.token)
    if session is None:
        raise ApiError(
            ErrorCode.UNAUTHORIZED,
            "The sign-in link is unknown, used or too old.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    data = {"session": session, "expiresInSeconds": int(keys.SESSION_LIFETIME.total_seconds())}
    return success(request, data, status=201, headers=NO_STORE)
