"""The dashboard's addresses: files, signing in and out, the API for scripts, and the pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

import storage.people
from serve_app.api.authentication import KeyedRoute, SessionRoute
from serve_app.api.envelope import API_PREFIX, Context
from serve_app.dashboard import (
    INVITATION_PATH,
    OPERATOR_PATH,
    PATH,
    SIGN_IN_PATH,
    access,
    account,
    jobs,
    library,
    oidc,
    operators,
    results,
)
from serve_app.dashboard.pages import STATIC_PATH, page, static_files, static_version, takes_gzip
from serve_app.errors import ApiError, ErrorCode, existing
from storage import keys
from storage.database import Connection
from storage.keys import Account

API_PATH = f"{PATH}/api"
_A_YEAR = "public, max-age=31536000, immutable"
_BRIEFLY = "public, max-age=60"

open_router = APIRouter(route_class=access.OpenPageRoute, include_in_schema=False)
router = APIRouter(route_class=access.PageRoute, include_in_schema=False)


@open_router.get(f"{STATIC_PATH}/{{version}}/{{name:path}}")
async def get_static(request: Request, version: str, name: str) -> Response:
    """A file of the pages; kept for good under the present version, briefly under another."""
    file = static_files().get(name)
    file = existing(file, "file")
    headers = {
        "Cache-Control": _A_YEAR if version == static_version() else _BRIEFLY,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


@open_router.get(SIGN_IN_PATH)
async def get_sign_in(
    request: Request, context: Context, token: str = "", invitation: str = "", ended: str = ""
) -> Response:
    """The one-time link, or an invitation. Only its form signs in, so that previews of links do not
    use it up."""
    invited = None
    if invitation:
        invited = await context.database.read(storage.people.find_invitation, invitation)
        if invited is None:
            raise ApiError(ErrorCode.INVITATION_NOT_VALID)
    shown: dict[str, Any] = {"token": token, "invitation": invitation, "invited": invited}
    shown |= {"ended": ended, "refused": False, "issuer": context.settings.oidc_issuer}
    return await page(request, "sign_in.html", **shown)


@open_router.post(INVITATION_PATH)
async def accept_invitation(request: Request, context: Context, form: access.SentForm) -> Response:
    """Make whoever has an invitation a user of its account, and sign them in."""
    async with context.database.transaction() as connection:
        await keys.end_session(connection, request.cookies.get(access.COOKIE, ""))
        session = await storage.people.accept_invitation(connection, form.get("invitation", ""))
        if session is None:
            raise ApiError(ErrorCode.INVITATION_NOT_VALID)
    return access.keep_session(
        request, access.COOKIE, session, path=PATH, lifetime=keys.SESSION_LIFETIME
    )


@open_router.post(SIGN_IN_PATH)
async def sign_in(request: Request, context: Context, form: access.SentForm) -> Response:
    """Exchange the link's token for a session, kept in a cookie that scripts cannot read."""
    token = form.get("token", "")
    try:
        async with context.database.transaction() as connection:
            if session := await keys.exchange_sign_in_link(connection, token):
                await _end_former_session(request, form, connection, session)
                lifetime = keys.SESSION_LIFETIME
                return access.keep_session(
                    request, access.COOKIE, session, path=PATH, lifetime=lifetime
                )
            if session := await keys.exchange_operator_link(connection, token):
                lifetime = keys.OPERATOR_SESSION_LIFETIME
                return access.keep_session(
                    request, access.OPERATOR_COOKIE, session, path=OPERATOR_PATH, lifetime=lifetime
                )
    except _OtherAccountError as error:  # the link is not used up
        return await page(
            request, "sign_in.html", token=token, change=error, refused=False, ended=""
        )
    return await page(request, "sign_in.html", status=401, token="", refused=True, ended="")


class _OtherAccountError(Exception):
    """The browser is signed in to another account; its user must consent to leave that."""

    def __init__(self, current: Account, following: Account) -> None:
        super().__init__(current.id)
        self.current, self.following = current, following


async def _end_former_session(
    request: Request, form: dict[str, str], connection: Connection, session: str
) -> None:
    """End the session in place of which the new one comes.

    Raises _OtherAccountError where that is of another account, which the form does not name.
    """
    former = request.cookies.get(access.COOKIE, "")
    found = [await keys.find_session(connection, token) for token in (former, session)]
    accounts = [await keys.get_account(connection, str(each.account_id)) for each in found if each]
    if len(accounts) == 2:
        current, following = accounts
        instead = form.get("instead")
        if current.id != following.id and instead != str(current.id):
            raise _OtherAccountError(current, following)
        await keys.end_session(connection, former)


@router.post(f"{PATH}/sign-out")
async def sign_out(context: Context, viewer: access.CurrentViewer) -> Response:
    """End the session, here and wherever else its token was copied to."""
    await context.database.write(keys.end_session, viewer.session)
    return access.forget_session(access.COOKIE, path=PATH, ended="out")


def session_api(routers: Iterable[APIRouter]) -> APIRouter:
    """Return the operations of keys and of sessions, with the same handlers, under
    ``/dashboard/api``."""
    routes: list[BaseRoute] = [
        access.SessionApiRoute.of(route, API_PATH + route.path.removeprefix(API_PREFIX))
        for router in routers
        for route in router.routes
        if isinstance(route, KeyedRoute | SessionRoute)
    ]
    return APIRouter(routes=routes)


rest_router = APIRouter(route_class=access.PageRoute, include_in_schema=False)


@rest_router.get(f"{PATH}/{{rest:path}}")
async def get_nothing() -> Response:
    """Whatever else is below the dashboard's path."""
    raise ApiError(ErrorCode.NOT_FOUND, "There is no such page.")


ROUTERS = (
    open_router,
    oidc.router,
    router,
    jobs.router,
    results.open_router,
    results.router,
    library.router,
    account.router,
    operators.router,
    rest_router,
)
