"""Who is looking: the session cookie, CSRF tokens, and the routes that hold requests to them.

Two kinds of routes need a signed-in session: ``PageRoute`` shows pages, its refusals too, and
``SessionApiRoute`` answers scripts of the pages as the API answers holders of a key. A third,
``OperatorRoute``, needs a session of an operator, which is of no account and opens nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response

from serve_app.api.authentication import (
    PAGES,
    Bucket,
    Handler,
    KeyedRoute,
    OperationRoute,
    Permission,
    actor_of,
    admit_anybody,
    count_requests,
    may,
    require,
    session_actor,
)
from serve_app.api.envelope import context_of, public_url, request_id
from serve_app.api.parameters import read_bounded, require_plain_query
from serve_app.api.urls import parse_job_id
from serve_app.dashboard import PATH, SIGN_IN_PATH
from serve_app.dashboard.pages import error_page
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.observability.logs import note
from storage import jobs, keys
from storage.audit import act_as
from storage.database import UNAVAILABLE
from storage.keys import Account
from storage.objects import ObjectStoreUnavailableError
from storage.types import ActorKind, Role

log = logging.getLogger("vas.http")

COOKIE = "vas_session"
OPERATOR_COOKIE = "vas_operator"
"""Sent below ``/dashboard/operator`` only."""
CSRF_FIELD = "csrf"
CSRF_HEADER = "X-CSRF-Token"

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_MOST_FORM_BYTES = 64 * 1024
_MOST_FORM_FIELDS = 50


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who is signed in, and with which session."""

    account: Account
    session: str
    csrf: str
    """A token for the forms and scripts of this answer; another one in each answer."""
    role: Role
    user_id: uuid.UUID | None
    email: str | None
    """Both None: of a one-time link of the account."""

    def may(self, permission: str) -> bool:
        """Return whether their role includes it."""
        return may(self.role, Permission(permission))


@dataclass(frozen=True, slots=True)
class Operator:
    """Whoever runs the service, signed in."""

    session: str
    csrf: str
    """As a viewer's."""


def _of_state(name: str) -> Any:
    async def found(request: Request) -> Any:
        return getattr(request.state, name)

    return Depends(found)


CurrentOperator = Annotated[Operator, _of_state("operator")]
"""The operator that an OperatorRoute admitted."""

CurrentViewer = Annotated[Viewer, _of_state("viewer")]
"""The viewer that a route of this module admitted."""

SentForm = Annotated[dict[str, str], _of_state("form")]
"""The fields of the form that was sent, white space around them removed."""


async def find_viewer(request: Request) -> Viewer | None:
    """Return the viewer behind the session cookie; None where it is missing, unknown or over.

    Raises ACCOUNT_SUSPENDED.
    """
    session = request.cookies.get(COOKIE, "")
    context = context_of(request)
    if not session.startswith(keys.SESSION_PREFIX):
        return None
    async with context.database.statement() as connection:
        found = await keys.find_session(connection, session)
        if found is None:
            return None
        if found.suspended:
            raise ApiError(ErrorCode.ACCOUNT_SUSPENDED)
        account = await keys.get_account(connection, str(found.account_id))
    note(accountId=account.id)
    csrf = _csrf_token(context.signer.secret, session)
    return Viewer(account, session, csrf, found.role, found.user_id, found.email)


async def find_operator(request: Request) -> Operator | None:
    """Return the operator behind the cookie of operators; None where it is missing, unknown or
    over."""
    session = request.cookies.get(OPERATOR_COOKIE, "")
    context = context_of(request)
    if not session.startswith(keys.OPERATOR_PREFIX):
        return None
    async with context.database.statement() as connection:
        if not await keys.is_operator_session(connection, session):
            return None
    return Operator(session, _csrf_token(context.signer.secret, session))


def _csrf_token(secret: bytes, session: str, nonce: str | None = None) -> str:
    """Bound to the session; the nonce keeps it from being guessed by the size of compressed pages.

    Source: https://breachattack.com.
    """
    nonce = nonce or secrets.token_urlsafe(9)
    message = b"csrf\n" + hashlib.sha256(session.encode()).digest() + nonce.encode()
    return f"{nonce}.{hmac.new(secret, message, hashlib.sha256).hexdigest()}"


def _require_token(request: Request, session: str, token: str) -> None:
    nonce = token.partition(".")[0]
    expected = _csrf_token(context_of(request).signer.secret, session, nonce or "-")
    if not hmac.compare_digest(expected.encode(), token.encode()):
        raise _forged()


def require_own_page(request: Request) -> None:
    """Raises 403 for a change that another site's page sent, by the browser's headers."""
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    if site is not None and origin != "null":
        own = site == "same-origin"
    else:  # an older browser, an address without TLS, or no browser
        host = public_url(request).partition("://")[2]
        own = origin is None or origin.partition("://")[2] == host
    if not own:
        raise _forged()


def _forged() -> ApiError:
    message = "This did not come from the page that you opened. Reload the page and try again."
    return ApiError(ErrorCode.INVALID_REQUEST, message, status=403)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raises INVALID_REQUEST for other bodies."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    raw = await read_bounded(request, _MOST_FORM_BYTES)
    if media_type != "application/x-www-form-urlencoded":
        raise invalid("The body is not a form.")
    try:
        fields = parse_qs(
            raw.decode("utf-8"), keep_blank_values=True, errors="strict",
            max_num_fields=_MOST_FORM_FIELDS)  # fmt: skip
    except ValueError as error:
        raise invalid("The form cannot be read.") from error
    if any("\0" in value for values in fields.values() for value in values):
        raise invalid("The form holds a character that cannot be stored.")
    return {name: values[-1].strip() for name, values in fields.items()}


class OpenPageRoute(APIRoute):
    """A page for everybody. What goes wrong is shown as a page too."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        query = [field.alias for field in self.dependant.query_params]

        async def shown(request: Request) -> Response:
            try:
                refusal = await self._admit(request)
                if refusal is not None:
                    return refusal
                require_plain_query(request, query)
                return await handle(request)
            except ApiError as error:
                return await error_page(request, error)
            except RequestValidationError as error:
                name = error.errors()[0]["loc"][-1]
                return await error_page(request, invalid(f"The page has no such {name}.", name))
            except (*UNAVAILABLE, ObjectStoreUnavailableError):
                return await error_page(request, ApiError(ErrorCode.SERVICE_UNAVAILABLE))
            except Exception:
                log.exception("request %s failed", request_id(request))
                return await error_page(request, ApiError(ErrorCode.INTERNAL_ERROR))

        return shown

    async def _admit(self, request: Request) -> Response | None:
        request.state.viewer = None
        if request.method not in _SAFE_METHODS:
            await admit_anybody(request)
            require_own_page(request)
            request.state.form = await read_form(request)
        return None


class PageRoute(OpenPageRoute):
    """A page for signed-in viewers; a change needs the token of an answer to the same session."""

    permission: Permission | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.permission = PAGES[self.name]

    async def _admit(self, request: Request) -> Response | None:
        request.state.viewer = None
        viewer = await find_viewer(request)
        if viewer is None:
            ended = "?ended=1" if COOKIE in request.cookies else ""
            path = request.url.path
            # For the script of the sign-in page, which leads back once somebody is signed in.
            there = f"#{path}" if request.method == "GET" and path != PATH else ""
            return RedirectResponse(SIGN_IN_PATH + ended + there, status_code=303)
        request.state.viewer = viewer
        request.state.account_id = viewer.account.id
        act_as(session_actor(request, viewer.user_id))
        await self._admit_session(request, str(viewer.account.id), viewer.session)
        if request.url.path == PATH and not viewer.may(Permission.READ):
            return RedirectResponse(f"{PATH}/account", status_code=303)
        require(viewer.role, self.permission)
        return None

    async def _admit_session(self, request: Request, counted: str, session: str) -> None:
        is_change = request.method not in _SAFE_METHODS
        bucket = Bucket.WRITES if is_change else Bucket.READS
        await count_requests(request, f"{counted}:{bucket}", bucket)
        if is_change:
            require_own_page(request)
            request.state.form = await read_form(request)
            _require_token(request, session, request.state.form.get(CSRF_FIELD, ""))


class OperatorRoute(PageRoute):
    """A page for operators. To accounts it looks like a page that is not there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        OpenPageRoute.__init__(self, *args, **options)

    async def _admit(self, request: Request) -> Response | None:
        operator = await find_operator(request)
        if operator is not None:
            request.state.viewer, request.state.operator = None, operator
            act_as(actor_of(request, ActorKind.OPERATOR))
            await self._admit_session(request, "operator", operator.session)
            return None
        refusal = await super()._admit(request)
        if refusal is None:
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such page.")
        if OPERATOR_COOKIE in request.cookies:
            return RedirectResponse(f"{SIGN_IN_PATH}?ended=operator", status_code=303)
        return refusal


def keep_session(
    request: Request, name: str, session: str, *, path: str, lifetime: timedelta
) -> Response:
    """Lead to ``path`` with the session in a cookie that scripts cannot read and only it gets."""
    response = RedirectResponse(path, status_code=303)
    set_cookie(request, response, name, session, path=path, lifetime=lifetime)
    return response


def set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    *,
    path: str,
    lifetime: timedelta,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    """Give the browser a cookie that scripts cannot read."""
    response.set_cookie(
        name,
        value,
        max_age=int(lifetime.total_seconds()),
        path=path,
        secure=public_url(request).startswith("https:"),
        httponly=True,
        samesite=samesite,
    )


def forget_session(name: str, *, path: str, ended: str) -> Response:
    """Lead to the sign-in page, which shows how the session ended, without the cookie."""
    response = RedirectResponse(f"{SIGN_IN_PATH}?ended={ended}", status_code=303)
    response.delete_cookie(name, path=path, httponly=True, samesite="strict")
    return response


class SessionApiRoute(KeyedRoute):
    """An operation of the API for the pages' scripts: the cookie and a CSRF header for a key."""

    async def _admit(self, request: Request) -> None:
        viewer = await find_viewer(request)
        if viewer is None:
            raise ApiError(ErrorCode.UNAUTHORIZED, "Your session is over: sign in again.")
        bucket = self.bucket or Bucket.READS
        await count_requests(request, f"{viewer.account.id}:{bucket}", bucket)
        if request.method not in _SAFE_METHODS:
            require_own_page(request)
            _require_token(request, viewer.session, request.headers.get(CSRF_HEADER, ""))
        require(viewer.role, self.permission)
        request.state.account_id, request.state.role = viewer.account.id, viewer.role
        act_as(session_actor(request, viewer.user_id))
        job_id = request.path_params.get("jobId")
        if job_id is not None:
            request.state.job = await context_of(request).database.read(
                jobs.find_job, parse_job_id(job_id), account_id=viewer.account.id
            )

    @classmethod
    def of(cls, operation: OperationRoute, path: str) -> SessionApiRoute:
        """Return the operation at another path, counted with the requests that come with a key."""
        options: dict[str, Any] = {"methods": operation.methods, "deprecated": operation.deprecated}
        # By which the table of permissions has it.
        options["name"] = operation.operation_id or operation.name
        route = cls(
            path, operation.endpoint, include_in_schema=False, response_model=None, **options
        )
        route.bucket = operation.bucket or route.bucket
        return route
