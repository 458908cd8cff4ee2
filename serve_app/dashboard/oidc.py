"""Signing in by OpenID Connect: to the issuer, and back.

Its libraries are loaded by the first who signs in by it: most services have no issuer.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from serve_app.api.authentication import admit_anybody
from serve_app.api.envelope import Context, public_url
from serve_app.context import AppContext
from serve_app.dashboard import OIDC_PATH, PATH
from serve_app.dashboard.access import COOKIE, OpenPageRoute, SentForm, set_cookie
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError, ErrorCode
from storage import keys, people
from storage.people import Flow

FLOW_COOKIE = "vas_oidc"
ACCOUNT_COOKIE = "vas_oidc_account"
"""The account that this browser last signed in to by OpenID Connect: for another one it is asked,
since a stranger's link can begin a sign-in, and a stranger can invite anybody's address."""
_ACCOUNT_COOKIE_LIFETIME = timedelta(days=365)
RETURN_PATH = f"{OIDC_PATH}/return"
CONFIRM_PATH = f"{OIDC_PATH}/confirm"

router = APIRouter(route_class=OpenPageRoute, include_in_schema=False)


# The issuer leads back from elsewhere.
_keep_cookie = partial(set_cookie, path=OIDC_PATH, samesite="lax")


@router.get(OIDC_PATH)
async def begin(request: Request, context: Context, invitation: str = "") -> Response:
    """Lead to the issuer; only the browser that began a sign-in can end it, for its cookie has
    half of it.

    With an invitation, it is accepted by whom the issuer names, if the address is theirs. A user
    who is signed in by a link connects themselves with the issuer.
    """
    from serve_app.keys.oidc import OidcClient, new_flow

    await admit_anybody(request)
    client = OidcClient(context.settings)
    flow = new_flow()
    address = await client.begin(flow, public_url(request) + RETURN_PATH)
    async with context.database.transaction() as connection:
        if session := await keys.find_session(connection, request.cookies.get(COOKIE, "")):
            flow = replace(flow, user_id=session.user_id)
        if invitation:
            found = await people.find_invitation(connection, invitation)
            if found is None:
                raise ApiError(ErrorCode.INVITATION_NOT_VALID)
            flow = replace(flow, invitation_id=found[0].id)
        await people.keep_flow(connection, flow)
    response = RedirectResponse(address, status_code=303)
    _keep_cookie(request, response, FLOW_COOKIE, flow.browser, lifetime=people.FLOW_LIFETIME)
    return response


@router.get(RETURN_PATH)
async def finish(
    request: Request, context: Context, state: str = "", code: str = "", iss: str = "",
    error: str = "", error_description: str = "", session_state: str = "", scope: str = "",
) -> Response:  # fmt: skip
    """Sign in whom the issuer names, once they are a user of an account; ask them first unless it
    is the account that this browser knows."""
    from serve_app.keys.oidc import OidcClient, new_flow

    await admit_anybody(request)
    client = OidcClient(context.settings)
    flow = await _take_flow(request, context, state, is_named=False)
    given = {"code": code, "iss": iss}
    answer = {name: value for name, value in given.items() if value}
    person = await client.finish(flow, public_url(request) + RETURN_PATH, answer)
    async with context.database.transaction() as connection:
        found = await people.find_identities(
            connection, client.issuer, person.subject, person.email, flow
        )
        if not found:
            raise _nobody()
        endings = [
            replace(
                new_flow(), browser=flow.browser, account_id=each.account_id, user_id=each.user_id,
                invitation_id=flow.invitation_id, subject=person.subject,
            )
            for each in found
        ]  # fmt: skip
        if request.cookies.get(ACCOUNT_COOKIE) != str(found[0].account_id) or len(found) > 1:
            for each in endings:
                await people.keep_flow(connection, each)
            choices = list(zip(found, endings, strict=True))
            return await page(request, "accounts.html", choices=choices, path=CONFIRM_PATH)
    return await _sign_in(request, context, client.issuer, endings[0])


@router.post(CONFIRM_PATH)
async def confirm(request: Request, context: Context, form: SentForm) -> Response:
    """Sign in to the account that the person chose."""
    from serve_app.keys.oidc import OidcClient

    issuer = OidcClient(context.settings).issuer
    flow = await _take_flow(request, context, form.get("state", ""), is_named=True)
    return await _sign_in(request, context, issuer, flow)


async def _take_flow(request: Request, context: AppContext, state: str, *, is_named: bool) -> Flow:
    from serve_app.keys.oidc import OidcReason, failed

    browser = request.cookies.get(FLOW_COOKIE, "")
    flow = await context.database.write(people.take_flow, state, browser)
    if flow is None or (flow.subject is not None) != is_named:
        raise failed(OidcReason.STATE, "This sign-in did not start here, or has ended.")
    return flow


async def _sign_in(request: Request, context: AppContext, issuer: str, flow: Flow) -> Response:
    async with context.database.transaction() as connection:
        session = await people.sign_in_identity(connection, issuer, flow)
        if session is None:
            raise _nobody()
        await keys.end_session(connection, request.cookies.get(COOKIE, ""))
    # A page, not a redirect: browsers send a strict cookie only where their own site leads.
    response = await page(request, "signed_in.html", to=PATH)
    set_cookie(request, response, COOKIE, session, path=PATH, lifetime=keys.SESSION_LIFETIME)
    account_id, lifetime = str(flow.account_id), _ACCOUNT_COOKIE_LIFETIME
    _keep_cookie(request, response, ACCOUNT_COOKIE, account_id, lifetime=lifetime)
    response.delete_cookie(FLOW_COOKIE, path=OIDC_PATH, httponly=True, samesite="lax")
    return response


def _nobody() -> ApiError:
    from serve_app.keys.oidc import OidcReason, failed

    message = (
        "You are in no account here, or not connected with one. Accept an invitation to your "
        "verified address, or sign in by a link and then, while that session is open, this way."
    )
    return failed(OidcReason.USER, message)
