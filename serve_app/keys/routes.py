"""Operations of dashboard sessions: keys and their rotation, the billing link, the audit log."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field, TypeAdapter
from pydantic.alias_generators import to_camel
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api import envelope
from serve_app.api.authentication import BEARER, CurrentAccount, KeylessRoute, SessionRoute
from serve_app.api.openapi import answers, headers, links
from serve_app.api.parameters import WHOLE_NUMBER
from serve_app.api.schemas import Answer, Body, Count, Url, Uuid, doc, list_of
from serve_app.api.urls import parse_job_id
from serve_app.errors import ApiError, ErrorCode, existing
from storage import audit, keys, ledger
from storage.records import form_of
from storage.tables import MOMENT, AuditEntry, Key
from storage.types import ActorKind, KeyStatus

PORTAL_PATH = "/portal"
PORTAL_PURPOSE = "portal"
PORTAL_LINK_SECONDS = 900

_PRIVATE: dict[str, Any] = {"headers": headers("Cache-Control")}

router = APIRouter(prefix=envelope.API_PREFIX, route_class=SessionRoute, tags=["Dashboard"])
open_router = APIRouter(prefix=envelope.API_PREFIX, route_class=KeylessRoute, tags=["Dashboard"])

_KEYS = list_of("KeyList", Annotated[list[Key], doc("Newest first.")], "The account's keys.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedKey(Key):
    """A new key in place of another."""

    key: Annotated[str, doc("The full secret, shown this once.", "vas_live_…")]


class PortalLink(TypedDict):
    """A short-lived link."""

    url: Annotated[Url, doc("The billing page.")]


@router.get(
    "/keys",
    **answers(
        _KEYS,
        "The keys, newest first.",
        **_PRIVATE,
        links=links({"id": "$response.body#/data/0/id"}, "rotateKey"),
    ),
)
async def list_keys(context: envelope.Context, account_id: CurrentAccount) -> Response:
    """List API keys.

    Never with their secrets."""
    found = await context.database.read(keys.list_keys, account_id)
    return envelope.success([each.json() for each in found], headers=envelope.NO_STORE)


@router.get(
    "/keys/portal", **answers(Answer[PortalLink], "The link.", ErrorCode.NOT_FOUND, **_PRIVATE)
)
async def get_keys_portal(
    request: Request, context: envelope.Context, account_id: CurrentAccount
) -> Response:
    """Open the billing page.

    A short-lived link to keys, receipts and credits. Not found if nothing was ever purchased."""
    if not await context.database.read(ledger.has_purchases, account_id):
        raise ApiError(ErrorCode.NOT_FOUND, "Nothing was purchased for this account yet.")
    path = f"{PORTAL_PATH}/{account_id}"
    expires_at = int(time.time()) + PORTAL_LINK_SECONDS
    url = envelope.public_url(request) + context.signer.sign_path(
        PORTAL_PURPOSE, path, expires_at=expires_at
    )
    return envelope.success({"url": url}, headers=envelope.NO_STORE)


@router.post("/keys/{id}/rotate", **answers(Answer[RotatedKey], "The new key.", **_PRIVATE))
async def rotate_key(
    context: envelope.Context,
    account_id: CurrentAccount,
    key_id: Annotated[Uuid, Path(alias="id", description="The key's id.")],
) -> Response:
    """Rotate an API key.

    The old key stops working; the new secret is shown this once."""
    issued = await context.database.write(keys.rotate_key, account_id, parse_job_id(key_id))
    issued = existing(issued, "active key")
    rotated = Key(
        id=issued.id,
        last_four=issued.secret[-4:],
        status=KeyStatus.ACTIVE,
        expires_at=issued.expires_at,
        benefit_id=issued.benefit_id,
        created_at=issued.created_at,
    )
    return envelope.success({**rotated.json(), "key": issued.secret}, headers=envelope.NO_STORE)


class SignInBody(Body):
    """Body of ``POST /sessions``."""

    token: Annotated[
        str, Field(min_length=1, max_length=200), doc("Of a sign-in link; works once.", "…")
    ]


class Session(TypedDict):
    """A dashboard session."""

    session: Annotated[str, doc("Its token, for `Authorization: Bearer`.", "vas_sess_…")]
    expiresInSeconds: Annotated[Count, doc("How long it lasts.")]


@open_router.post(
    "/sessions",
    **answers(Answer[Session], "The session.", ErrorCode.UNAUTHORIZED, status=201, **_PRIVATE),
)
async def create_session(context: envelope.Context, body: SignInBody) -> Response:
    """Exchange a sign-in token for a session.

    The operator issues sign-in links (`vas sessions create`); no other credential."""
    session = await context.database.write(keys.exchange_sign_in_link, body.token)
    if session is None:
        message = "The sign-in link is unknown, used or too old."
        raise ApiError(ErrorCode.UNAUTHORIZED, message, headers=BEARER)
    data = {"session": session, "expiresInSeconds": int(keys.SESSION_LIFETIME.total_seconds())}
    return envelope.success(data, status=201, headers=envelope.NO_STORE)


MOST_ENTRIES = 1000
"""Of a page."""

_AUDIT = list_of(
    "AuditPage",
    Annotated[list[AuditEntry], Field(max_length=MOST_ENTRIES)],
    "Entries of the audit log.",
    hasMore=Annotated[bool, doc("Whether there are later ones.")],
)
_STORED = TypeAdapter[dict[str, Any]](form_of(AuditEntry))


@router.get(
    "/audit", **answers(_AUDIT, "Entries, the oldest first.", headers=headers("Cache-Control"))
)
async def list_audit_log(
    request: Request,
    context: envelope.Context,
    account_id: CurrentAccount,
    after: Annotated[
        Annotated[int, Field(ge=0, le=10**12), WHOLE_NUMBER],
        Query(description="Only entries after this position: where the next page goes on."),
    ] = 0,
    limit: Annotated[
        Annotated[int, Field(ge=1, le=MOST_ENTRIES), WHOLE_NUMBER],
        Query(description="Most entries of a page."),
    ] = 100,
) -> Response:
    """Read the audit log.

    Who did what, when and from where, the oldest first. Nothing is ever changed in it or taken
    out of it but addresses, when the account is erased: each `hash` covers the entry and the hash
    before. `vas audit verify --file` checks entries that were saved, one a line."""
    found = await context.database.read(
        audit.list_entries, account_id, after=after, limit=limit + 1
    )
    body = {
        "data": [each.json() for each in found[:limit]],
        "hasMore": len(found) > limit,
        "requestId": request.scope["vas_request_id"],
    }
    return envelope.ExactJSONResponse(body, headers=envelope.NO_STORE)


def entry_line(entry: AuditEntry) -> str:
    """Return a line of an export: the entry as JSON."""
    return json.dumps(entry.json(), ensure_ascii=False) + "\n"


def read_lines(lines: Iterable[str]) -> Iterator[AuditEntry]:
    """Yield the entries of an export; raises ValueError for a line that is none."""
    for line in lines:
        shown = _STORED.validate_json(line)
        actor = shown["actor"]
        ids = {"account_id": shown["accountId"], "actor_id": actor["id"], "job_id": shown["jobId"]}
        known: dict[str, Any] = {
            each.name: shown.get(to_camel(each.name)) for each in fields(AuditEntry)
        }
        known |= {name: None if text is None else uuid.UUID(text) for name, text in ids.items()}
        known["actor_kind"] = ActorKind(actor["kind"])
        known["created_at"] = datetime.strptime(shown["createdAt"], MOMENT).replace(tzinfo=UTC)
        yield AuditEntry(**known)
