"""Signing in by OpenID Connect: to the issuer, and back.

Its libraries are loaded by the first who signs in by it: most services have no issuer.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from serve_app.api.authentication import actor_of, count_requests, parse_job_id
from serve_app.api.context import Context
from serve_app.api.envelope import public_url
from serve_app.api.rate_limits import Bucket, client_address
from serve_app.context import AppContext
from serve_app.dashboard import OIDC_PATH, PATH
from serve_app.dashboard.access import COOKIE, OpenPageRoute, set_session_cookie
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError
from storage import keys, people
from storage.audit import ActorKind, act_as

FLOW_COOKIE = "vas_oidc"
RETURN_PATH = f"{OIDC_PATH}/return"

router = APIRouter(route_class=OpenPageRoute, include_in_schema=False)


async def _admit(request: Request, context: AppContext) -> None:
    address = client_address(request, context.settings.trusted_proxies)
    await count_requests(request, f"ip:{address}", Bucket.DISCOVERY)
    act_as(actor_of(request, ActorKind.LINK))


@router.get(OIDC_PATH)
async def begin(request: Request, context: Context, account: str = "") -> Response:
    """Lead to the issuer. What this browser began it alone can end: a cookie has its half."""
    from serve_app.keys.oidc import OidcClient, new_flow

    await _admit(request, context)
    client = OidcClient(context.settings)
    flow = replace(new_flow(), account_id=parse_job_id(account) if account else None)
    address = await client.begin(flow, public_url(request) + RETURN_PATH)
    async with context.database.transaction() as connection:
        await people.keep_flow(connection, flow)
    response = RedirectResponse(address, status_code=303)
    response.set_cookie(
        FLOW_COOKIE,
        flow.browser,
        max_age=int(people.FLOW_LIFETIME.total_seconds()),
        path=OIDC_PATH,
        secure=public_url(request).startswith("https:"),
        httponly=True,
        samesite="lax",  # the issuer leads back from elsewhere
    )
    return response


@router.get(RETURN_PATH)
async def finish(
    request: Request, context: Context, state: str = "", code: str = "", iss: str = "",
    error: str = "", error_description: str = "", session_state: str = "", scope: str = "",
) -> Response:  # fmt: skip
    """Sign in whom the issuer names, once they are a user of an account."""
    from serve_app.keys.oidc import OidcClient, OidcReason, failed

    await _admit(request, context)
    client = OidcClient(context.settings)
    async with context.database.transaction() as connection:
        flow = await people.take_flow(connection, state, request.cookies.get(FLOW_COOKIE, ""))
    if flow is None:
        raise failed(OidcReason.STATE, "This sign-in was not begun here, or was ended before.")
    given = {"code": code, "iss": iss}
    answer = {name: value for name, value in given.items() if value}
    person = await client.finish(flow, public_url(request) + RETURN_PATH, answer)
    async with context.database.transaction() as connection:
        found = await people.find_identities(
            connection, client.issuer, person.subject, person.email
        )
        chosen = [each for each in found if flow.account_id in (None, each.account_id)]
        if len(chosen) > 1:
            return await page(request, "accounts.html", identities=chosen, path=OIDC_PATH)
        if not chosen:
            raise _nobody(flow.account_id)
        session = await people.sign_in_identity(
            connection, chosen[0], client.issuer, person.subject
        )
        if session is None:
            raise _nobody(flow.account_id)
        await keys.end_session(connection, request.cookies.get(COOKIE, ""))
    # A page, not a redirect: browsers send a strict cookie only where their own site leads.
    response = await page(request, "signed_in.html", to=PATH)
    set_session_cookie(request, response, session)
    response.delete_cookie(FLOW_COOKIE, path=OIDC_PATH, httponly=True, samesite="lax")
    return response


def _nobody(account_id: uuid.UUID | None) -> ApiError:
    from serve_app.keys.oidc import OidcReason, failed

    where = "any account here" if account_id is None else "that account"
    message = f"You are in no account: nobody in {where} has your verified address."
    return failed(OidcReason.USER, message)
