"""``GET /audit``: the account's audit log, entry by entry, and the form in which it is exported."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field, TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, SessionRoute
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import NO_STORE, ExactJSONResponse
from serve_app.api.openapi import errors, headers
from serve_app.api.queries import WHOLE_NUMBER
from serve_app.api.schemas import Count, RequestId, Uuid, doc
from serve_app.errors import ErrorCode
from storage import audit
from storage.audit import ActorKind, AuditEntry

MOST_ENTRIES = 1000
"""Of a page."""
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class AuditActor(TypedDict):
    """Who acted."""

    kind: Annotated[ActorKind, doc("`link` is a session of the account's one-time link.")]
    id: Annotated[Uuid | None, doc("Of the key or the user.")]


class AuditEntryJson(TypedDict):
    """Something that was done to the account."""

    accountId: Annotated[Uuid, doc("The account.")]
    position: Annotated[Count, doc("Counts from 1 in the account.", 1)]
    createdAt: Annotated[str, doc("To the microsecond, in UTC.", "2026-01-31T09:30:00.123456Z")]
    actor: AuditActor
    action: Annotated[str, doc("What was done: the operation's name where one does it.")]
    jobId: Annotated[Uuid | None, doc("The job that it was done to.")]
    target: Annotated[str | None, doc("Id of the key, user, invitation, endpoint or voice.")]
    detail: Annotated[str | None, doc("What was set.", "role=viewer")]
    requestId: Annotated[str, doc("The request that did it; empty for a command.")]
    address: Annotated[str | None, doc("From where; null once it is erased.", "192.0.2.7")]
    addressSalt: Annotated[str | None, doc("What the address is hashed with.", None)]
    addressSha256: Annotated[str | None, doc("Of salt and address together.", None)]
    hash: Annotated[str, doc("SHA-256 over this entry and the hash before.", "9f86d081…")]


class AuditPage(TypedDict):
    """Entries of the audit log."""

    data: Annotated[list[AuditEntryJson], Field(max_length=MOST_ENTRIES)]
    hasMore: Annotated[bool, doc("Whether there are later ones.")]
    requestId: RequestId


_STORED = TypeAdapter(AuditEntryJson)

router = APIRouter(prefix=API_PREFIX, route_class=SessionRoute, tags=["Dashboard"])


@router.get(
    "/audit",
    operation_id="listAuditLog",
    summary="Read the audit log",
    response_model=AuditPage,
    response_description="Entries, the oldest first.",
    responses=errors(ErrorCode.INVALID_REQUEST) | {200: {"headers": headers("Cache-Control")}},
)
async def list_audit_log(
    request: Request,
    context: Context,
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
    """Who did what, when and from where, the oldest first. Nothing is ever changed in it or taken
    out of it but addresses, when the account is erased: each `hash` covers the entry and the hash
    before. `vas audit verify --file` checks entries that were saved, one a line."""
    async with context.database.statement() as connection:
        found = await audit.list_entries(connection, account_id, after=after, limit=limit + 1)
    body = {
        "data": [entry_json(each) for each in found[:limit]],
        "hasMore": len(found) > limit,
        "requestId": request.scope["vas_request_id"],
    }
    return ExactJSONResponse(body, headers=NO_STORE)


def entry_json(entry: AuditEntry) -> AuditEntryJson:
    """As the interface and exports have it."""
    return {
        "accountId": str(entry.account_id),
        "position": entry.position,
        "createdAt": entry.created_at.astimezone(UTC).strftime(_TIME),
        "actor": {
            "kind": entry.actor_kind,
            "id": None if entry.actor_id is None else str(entry.actor_id),
        },
        "action": entry.action,
        "jobId": None if entry.job_id is None else str(entry.job_id),
        "target": entry.target,
        "detail": entry.detail,
        "requestId": entry.request_id,
        "address": entry.address,
        "addressSalt": entry.address_salt,
        "addressSha256": entry.address_sha256,
        "hash": entry.hash,
    }


def entry_line(entry: AuditEntry) -> str:
    """A line of an export: the entry as JSON."""
    return json.dumps(entry_json(entry), ensure_ascii=False) + "\n"


def read_lines(lines: Iterable[str]) -> Iterator[AuditEntry]:
    """The entries of an export; raises ValueError for a line that is none."""
    for line in lines:
        shown = _STORED.validate_json(line)
        actor = shown["actor"]
        yield AuditEntry(
            account_id=uuid.UUID(shown["accountId"]),
            position=shown["position"],
            created_at=datetime.strptime(shown["createdAt"], _TIME).replace(tzinfo=UTC),
            actor_kind=ActorKind(actor["kind"]),
            actor_id=None if actor["id"] is None else uuid.UUID(actor["id"]),
            action=shown["action"],
            job_id=None if shown["jobId"] is None else uuid.UUID(shown["jobId"]),
            target=shown["target"],
            detail=shown["detail"],
            request_id=shown["requestId"],
            address=shown["address"],
            address_salt=shown["addressSalt"],
            address_sha256=shown["addressSha256"],
            hash=shown["hash"],
        )
