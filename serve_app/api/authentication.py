"""Who calls, how often, and what they may do: API keys, dashboard sessions, or nobody in
particular.

A route's class decides, before it reads anything else of the request, in this order: credential
(401), rate (429), suspension (403). Rates are token buckets of an account or a client's address.

Keys have no scopes: whoever has one may call all that takes a key. Roles are those of people in the
dashboard: an operation needs to read or to write as its method does, but for those in a table; a
page that is in no table fails as it is made.
"""

from __future__ import annotations

import inspect
import ipaddress
import math
import re
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from fastapi import Depends, Path, Request
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from starlette.responses import Response

from serve_app.api.parameters import require_plain_query, with_json_object
from serve_app.api.schemas import Uuid
from serve_app.api.urls import parse_job_id
from serve_app.context import AppContext
from serve_app.errors import CATALOGUE, ApiError, ErrorCode, existing
from serve_app.observability.logs import note
from storage import access
from storage.audit import Actor, act_as
from storage.job_records import JobRecord
from storage.keys import KEY_PREFIX, SESSION_PREFIX, find_session
from storage.types import ActorKind, Role


class Bucket(StrEnum):
    """What is counted together, per account (``discovery``: per client address)."""

    READS = "reads"
    CREATION = "creation"
    WRITES = "writes"
    WEBHOOK_TEST = "webhook_test"
    DISCOVERY = "discovery"


LIMITS: dict[Bucket, int] = {
    Bucket.READS: 600,
    Bucket.CREATION: 30,
    Bucket.WRITES: 120,
    Bucket.WEBHOOK_TEST: 5,
    Bucket.DISCOVERY: 120,
}
"""Requests a minute."""


def rate_headers(bucket: Bucket, window: access.Window) -> dict[str, str]:
    """``X-RateLimit-*`` for every answer that was counted."""
    limit = LIMITS[bucket]
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(max(0, limit - window.used)),
        "X-RateLimit-Reset": str(window.resets_at),
    }


def check_rate(bucket: Bucket, window: access.Window) -> None:
    """Raises RATE_LIMITED if this request is one too many."""
    if window.used > LIMITS[bucket]:
        wait_seconds = max(1, math.ceil(window.resets_at - window.now))
        message = f"At most {LIMITS[bucket]} such requests a minute."
        wait = {"Retry-After": str(wait_seconds)}
        raise ApiError(ErrorCode.RATE_LIMITED, message, headers=wait)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """Return the nearest address that is not one of our proxies'.

    ``X-Forwarded-For`` grows to the right, so it is read from there, and only
    as far as each hop that added to it is trusted: what a client wrote itself
    is never believed.
    """
    peer = request.client.host if request.client else "unknown"
    hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    address = peer
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        known = _address_in(address)
        if known is None or not any(known in network for network in trusted):
            break
        if _address_in(hop) is None:
            break
        address = hop
    return address


def _address_in(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class Permission(StrEnum):
    """What operations and pages need of a role."""

    READ = "read"
    """Jobs and their results."""
    WRITE = "write"
    """Create, correct, erase; read what a redaction hides."""
    BILLING = "billing"
    """Credits, usage and receipts."""
    MANAGE = "manage"
    """Keys, webhooks and their secrets."""
    PEOPLE = "people"
    """Users, invitations, sessions and the audit log."""


ROLES: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission),
    Role.EDITOR: frozenset({Permission.READ, Permission.WRITE}),
    Role.VIEWER: frozenset({Permission.READ}),
    Role.BILLER: frozenset({Permission.BILLING}),
}

_OPERATIONS: Mapping[Permission, str] = {
    Permission.READ: "compareJobs ask",
    Permission.BILLING: "getQuota getKeysPortal",
    Permission.MANAGE: """
        listKeys rotateKey getWebhookSecret rotateWebhookSecret sendTestWebhook
        listWebhookEndpoints createWebhookEndpoint getWebhookEndpoint changeWebhookEndpoint
        deleteWebhookEndpoint rotateWebhookEndpoint
    """,
    Permission.PEOPLE: "listAuditLog",
}
_PAGES: Mapping[Permission | None, str] = {
    None: "sign_out get_nothing",
    Permission.READ: """
        get_jobs get_jobs_with_slash get_job get_captions get_changes get_part get_whole get_search
        get_archives get_compare get_vocabulary get_editors get_wave
    """,
    Permission.WRITE: "create_from_urls erase_job cancel_job change_archive change_vocabulary",
    Permission.BILLING: "get_account",
    Permission.MANAGE: """
        get_keys create_key rotate_key revoke_key rotate_webhook_secret add_endpoint
        delete_endpoint rotate_endpoint change_recognition
    """,
    Permission.PEOPLE: """
        get_people invite withdraw_invitation change_role remove_user make_link end_session
        get_audit export_audit
    """,
}

OPERATIONS: Mapping[str, Permission] = {
    name: permission for permission, names in _OPERATIONS.items() for name in names.split()
}
"""Of operations that need something else than their method implies."""
PAGES: Mapping[str, Permission | None] = {
    name: permission for permission, names in _PAGES.items() for name in names.split()
}
"""By function; None: for everybody who is signed in."""


def may(role: Role, permission: Permission | None) -> bool:
    """Return whether a person of this role may do what needs this permission."""
    return permission is None or permission in ROLES[role]


def require(role: Role, permission: Permission | None) -> None:
    """Raises ROLE_NOT_ALLOWED."""
    if not may(role, permission):
        message = f"Your role, {role}, does not include this."
        raise ApiError(ErrorCode.ROLE_NOT_ALLOWED, message, extra={"role": str(role)})


_RANDOM_PART = r"[A-Za-z0-9_-]{43}"
_KEY_FORM = re.compile(re.escape(KEY_PREFIX) + _RANDOM_PART)
_SESSION_FORM = re.compile(re.escape(SESSION_PREFIX) + _RANDOM_PART)

BEARER = {"WWW-Authenticate": "Bearer"}
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Auth(StrEnum):
    """Who may call an operation."""

    KEY = "key"
    NONE = "none"
    SESSION = "session"


def presented_key(request: Request) -> str | None:
    """Return the key in the request's headers; None if there is none or it has not a key's form.

    Two different keys in the two headers are no valid credential.
    """
    found = set(_bearer_tokens(request))
    found |= {value.strip() for value in request.headers.getlist("x-api-key")}
    if len(found) != 1:
        return None
    key = found.pop()
    return key if _KEY_FORM.fullmatch(key) else None


def _bearer_tokens(request: Request) -> list[str]:
    tokens = []
    for value in request.headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            tokens.append(token.strip())
    return tokens


class OperationRoute(APIRoute):
    """A route of the interface document.

    Whatever takes parameters or a body may refuse them, and what a path names may not be there;
    its other errors are declared by ``responses=errors(…)``.

    After ``_admit``, query parameters must be given once and hold no control characters, and
    the body is a JSON object as ``bodies`` reads it, before FastAPI holds both to their types.
    """

    auth: ClassVar[Auth] = Auth.NONE
    permission: Permission | None = None
    """What a session needs for it; keys have no scopes."""
    bucket: Bucket | None = None
    """What its requests are counted in."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take the operation's id from the function's name, its summary from the docstring's first
        line and its description from the rest."""
        if options.get("include_in_schema", True):
            first, *rest = endpoint.__name__.split("_")
            summary, _, description = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
            options["operation_id"] = options.get("operation_id") or "".join(
                (first, *(part.capitalize() for part in rest))
            )
            options |= {"summary": summary.removesuffix("."), "description": description}
        model = options.pop("response_model", None)
        super().__init__(path, endpoint, response_model=None, **options)
        # Endpoints return responses. FastAPI's placeholder is for those that do not.
        self.response_model = None if isinstance(model, DefaultPlaceholder) else model
        del self.response_field
        dependencies = (self.dependant, *self.dependant.dependencies)
        if "{" in path:
            self._may_answer(ErrorCode.NOT_FOUND)
        if self.body_field is not None or any(each.query_params for each in dependencies):
            self._may_answer(ErrorCode.INVALID_REQUEST)
        if self.auth is not Auth.NONE:
            self._set_terms()

    @cached_property
    def response_field(self) -> Any:  # type: ignore[override]
        """Of ``response_model``, made when the document is: that takes half of a route's time."""
        if self.response_model is None:
            return None
        name = f"Response_{self.unique_id}"
        return create_model_field(name, self.response_model, mode="serialization")

    def _may_answer(self, code: ErrorCode) -> None:
        status = CATALOGUE[code].status
        declared = self.responses.get(status, {}).get("codes", [])
        if code not in declared:
            first: dict[int | str, dict[str, Any]] = {status: {"codes": [code, *declared]}}
            self.responses = first | {k: v for k, v in self.responses.items() if k != status}

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        query = [field.alias for field in self.dependant.query_params]
        has_body = self.body_field is not None

        async def admitted(request: Request) -> Response:
            await self._admit(request)
            if request.scope["query_string"]:
                require_plain_query(request, query)
            response = await handle(await with_json_object(request) if has_body else request)
            response.headers.update(getattr(request.state, "answer_headers", {}))
            return response

        return admitted

    async def _admit(self, request: Request) -> None:
        """Raises ApiError for who may not call, or not so often."""

    def _set_terms(self) -> None:
        """Of operations of an account: what a session needs, and what requests are counted in."""
        reads = "GET" in (self.methods or ())
        usual = Permission.READ if reads else Permission.WRITE
        self.permission = OPERATIONS.get(self.operation_id or self.name, usual)
        self.bucket = type(self).bucket or (Bucket.READS if reads else Bucket.WRITES)


class KeyedRoute(OperationRoute):
    """Needs an API key; counted as a read or a write.

    Where the path names a job, the same statement reads the caller's job: see ``CurrentJob``.
    """

    auth = Auth.KEY

    async def _admit(self, request: Request) -> None:
        if self.deprecated:
            values = {name: quote(value, safe="") for name, value in request.path_params.items()}
            successor = f"{self.path_format.format(**values)}/cancel"
            add_answer_headers(
                request, {"Deprecation": "true", "Link": f'<{successor}>; rel="successor-version"'}
            )
        bucket = self.bucket or Bucket.READS
        key = presented_key(request)
        caller = None if key is None else await _find_caller(request, key, bucket)
        if caller is None:
            raise ApiError(ErrorCode.UNAUTHORIZED, headers=BEARER)
        add_answer_headers(request, rate_headers(bucket, caller.window))
        check_rate(bucket, caller.window)
        if caller.suspended:
            raise ApiError(ErrorCode.ACCOUNT_SUSPENDED)
        request.state.account_id = caller.account_id
        act_as(actor_of(request, ActorKind.KEY, caller.key_id))
        note(accountId=caller.account_id)


class CreationRoute(KeyedRoute):
    """Counted as a job creation."""

    bucket = Bucket.CREATION


class WebhookTestRoute(KeyedRoute):
    """Counted as a test webhook."""

    bucket = Bucket.WEBHOOK_TEST


async def _find_caller(request: Request, key: str, bucket: Bucket) -> access.Caller | None:
    context: AppContext = request.app.state.context
    job_id = request.path_params.get("jobId")
    if job_id is None:
        return await access.authenticate_and_count(context.database, key, bucket)
    found = await access.authenticate_count_and_read(
        context.database, key, bucket, parse_job_id(job_id)
    )
    if found is None:
        return None
    caller, request.state.job = found
    if request.state.job is not None:
        note(jobId=request.state.job.id)
    return caller


JobId = Annotated[
    Uuid, Path(alias="jobId", description="The job's id; what is no UUID is not found.")
]


async def _current_job(request: Request, _: JobId) -> JobRecord:
    job: JobRecord | None = request.state.job
    return existing(job, "job")


CurrentJob = Annotated[JobRecord, Depends(_current_job)]
"""The caller's job that the path names; NOT_FOUND for foreign, missing, malformed ids alike."""


class KeylessRoute(OperationRoute):
    """Open to everybody; counted per client address."""

    bucket = Bucket.DISCOVERY

    async def _admit(self, request: Request) -> None:
        await admit_anybody(request)


class SessionRoute(OperationRoute):
    """Needs a signed-in dashboard session, an API key does not open it; counted as with a key."""

    auth = Auth.SESSION

    async def _admit(self, request: Request) -> None:
        bucket = self.bucket or Bucket.READS
        tokens = _bearer_tokens(request)
        found = None
        if len(tokens) == 1 and _SESSION_FORM.fullmatch(tokens[0]):
            context: AppContext = request.app.state.context
            found = await context.database.read(find_session, tokens[0])
        if found is None:
            message = "Sign in to the dashboard: the session is missing, unknown or over."
            raise ApiError(ErrorCode.UNAUTHORIZED, message, headers=BEARER)
        await count_requests(request, f"{found.account_id}:{bucket}", bucket)
        if found.suspended:
            raise ApiError(ErrorCode.ACCOUNT_SUSPENDED)
        require(found.role, self.permission)
        request.state.account_id = found.account_id
        act_as(session_actor(request, found.user_id))
        note(accountId=found.account_id)


async def admit_anybody(request: Request) -> None:
    """Count a request that needs no credential. Raises RATE_LIMITED."""
    context: AppContext = request.app.state.context
    address = client_address(request, context.settings.trusted_proxies)
    await count_requests(request, f"ip:{address}", Bucket.DISCOVERY)
    act_as(actor_of(request, ActorKind.LINK))


def session_actor(request: Request, user_id: uuid.UUID | None) -> Actor:
    """Return who acts by a request of a session."""
    return actor_of(request, ActorKind.LINK if user_id is None else ActorKind.USER, user_id)


def actor_of(request: Request, kind: ActorKind, actor_id: uuid.UUID | None = None) -> Actor:
    """Return who acts by this request, for the audit log."""
    context: AppContext = request.app.state.context
    address = client_address(request, context.settings.trusted_proxies)
    return Actor(kind, actor_id, address, request.scope["vas_request_id"])


def add_answer_headers(request: Request, headers: dict[str, str]) -> None:
    """Headers of whatever the request will be answered with, refusals and failures included."""
    request.state.answer_headers = getattr(request.state, "answer_headers", {}) | headers


async def count_requests(request: Request, counted: str, bucket: Bucket) -> None:
    """Count a request; raises RATE_LIMITED."""
    context: AppContext = request.app.state.context
    window = await access.count_request(context.database, counted)
    add_answer_headers(request, rate_headers(bucket, window))
    check_rate(bucket, window)


def account_of(request: Request) -> uuid.UUID:
    """Return the account that a KeyedRoute or SessionRoute admitted."""
    account_id: uuid.UUID = request.state.account_id
    return account_id


async def _current_account(request: Request) -> uuid.UUID:
    return account_of(request)


CurrentAccount = Annotated[uuid.UUID, Depends(_current_account)]
"""The id of the account that a KeyedRoute or SessionRoute admitted."""
