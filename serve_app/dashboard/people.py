"""Pages of an owner: people with their roles, invitations, sessions, and the audit log."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from serve_app.api.authentication import parse_job_id
from serve_app.api.context import Context
from serve_app.api.downloads import FilePlace
from serve_app.api.envelope import public_url
from serve_app.api.queries import WHOLE_NUMBER
from serve_app.context import AppContext
from serve_app.dashboard import PATH, SIGN_IN_PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute, SentForm
from serve_app.dashboard.pages import HEADERS, page
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.keys.audit import entry_line
from storage import audit, keys, people
from storage.types import Role

PEOPLE_PATH = f"{PATH}/people"
AUDIT_PATH = f"{PATH}/audit"
ENTRIES_SHOWN = 100
_EMAIL = re.compile(r"[^@\s\x00-\x1f<>\"(),:;\[\]\\]{1,64}@[^@\s\x00-\x1f<>\"(),:;\[\]\\]{1,190}")

router = APIRouter(route_class=PageRoute, include_in_schema=False)


def require_email(text: str) -> str:
    """Raises INVALID_REQUEST for what is no address of a mailbox."""
    if not _EMAIL.fullmatch(text):
        raise invalid("Give an e-mail address.", "email")
    return text


def require_role(text: str) -> Role:
    """Raises INVALID_REQUEST."""
    if text not in set(Role):
        raise invalid("There is no such role.", "role")
    return Role(text)


@router.get(PEOPLE_PATH)
async def get_people(request: Request, context: Context, viewer: CurrentViewer) -> Response:
    """Users, open invitations, and who is signed in."""
    return await _people_page(request, context, viewer.account.id)


async def _people_page(
    request: Request, context: AppContext, account_id: uuid.UUID, **values: Any
) -> Response:
    async with context.database.statement() as connection:
        users = await people.list_users(connection, account_id)
        invitations = await people.list_invitations(connection, account_id)
        sessions = await people.list_sessions(connection, account_id)
    return await page(
        request,
        "people.html",
        roles=list(Role),
        users=users,
        invitations=invitations,
        sessions=sessions,
        **values,
    )


@router.post(f"{PATH}/invitations")
async def invite(
    request: Request, context: Context, viewer: CurrentViewer, form: SentForm
) -> Response:
    """An invitation, whose link is shown on the page that answers and never again."""
    email, role = require_email(form.get("email", "")), require_role(form.get("role", ""))
    async with context.database.transaction() as connection:
        try:
            token = await people.invite(connection, viewer.account.id, email, role)
        except people.UserExistsError:
            raise invalid("Somebody with this address is in the account.", "email") from None
        except people.TooManyPeopleError:
            raise invalid(f"An account has at most {people.MOST_PEOPLE} people.") from None
    link = f"{public_url(request)}{SIGN_IN_PATH}?invitation={token}"
    return await _people_page(request, context, viewer.account.id, link=link, link_for=email)


@router.post(f"{PATH}/invitations/{{id}}/withdraw")
async def withdraw_invitation(context: Context, viewer: CurrentViewer, id: str) -> Response:  # noqa: A002
    """Its link opens nothing any more."""
    async with context.database.transaction() as connection:
        if not await people.withdraw_invitation(connection, viewer.account.id, parse_job_id(id)):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such invitation.")
    return RedirectResponse(PEOPLE_PATH, status_code=303)


@router.post(f"{PEOPLE_PATH}/{{id}}/role")
async def change_role(
    context: Context,
    viewer: CurrentViewer,
    form: SentForm,
    id: str,  # noqa: A002
) -> Response:
    """From their next request on."""
    role = require_role(form.get("role", ""))
    async with context.database.transaction() as connection:
        try:
            found = await people.change_role(connection, viewer.account.id, parse_job_id(id), role)
        except people.LastOwnerError:
            raise ApiError(ErrorCode.LAST_OWNER) from None
    if not found:
        raise _no_user()
    return RedirectResponse(PEOPLE_PATH, status_code=303)


@router.post(f"{PEOPLE_PATH}/{{id}}/remove")
async def remove_user(context: Context, viewer: CurrentViewer, id: str) -> Response:  # noqa: A002
    """They are signed out everywhere."""
    async with context.database.transaction() as connection:
        try:
            found = await people.remove_user(connection, viewer.account.id, parse_job_id(id))
        except people.LastOwnerError:
            raise ApiError(ErrorCode.LAST_OWNER) from None
    if not found:
        raise _no_user()
    return RedirectResponse(PEOPLE_PATH, status_code=303)


@router.post(f"{PEOPLE_PATH}/{{id}}/link")
async def make_link(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    id: str,  # noqa: A002
) -> Response:
    """A one-time link that signs the user in, shown on the page that answers and never again."""
    async with context.database.transaction() as connection:
        present = await people.list_users(connection, viewer.account.id)
        user = next((each for each in present if each.id == parse_job_id(id)), None)
        if user is None:
            raise _no_user()
        token = await keys.create_sign_in_link(connection, viewer.account.id, user.id)
    link = f"{public_url(request)}{SIGN_IN_PATH}?token={token}"
    return await _people_page(request, context, viewer.account.id, link=link, link_for=user.email)


@router.post(f"{PATH}/sessions/{{id}}/end")
async def end_session(context: Context, viewer: CurrentViewer, id: str) -> Response:  # noqa: A002
    """Sign a browser out; one's own too."""
    async with context.database.transaction() as connection:
        if not await people.end_session_of(connection, viewer.account.id, parse_job_id(id)):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such session.")
    return RedirectResponse(f"{PEOPLE_PATH}#sessions", status_code=303)


def _no_user() -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, "There is no such user.")


@router.get(AUDIT_PATH)
async def get_audit(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    before: Annotated[int, WHOLE_NUMBER] = 2**53,
) -> Response:
    """Who did what, the latest first, from before a position on."""
    async with context.database.statement() as connection:
        found = await audit.list_entries(
            connection, viewer.account.id, before=before, limit=ENTRIES_SHOWN + 1
        )
        names = await people.list_names(connection, viewer.account.id)
    entries = found[:ENTRIES_SHOWN]
    older = entries[-1].position if len(found) > ENTRIES_SHOWN else None
    return await page(request, "audit.html", entries=entries, names=names, older=older)


@router.get(f"{AUDIT_PATH}/export")
async def export_audit(context: Context, viewer: CurrentViewer, place: FilePlace) -> Response:
    """All of it, as ``vas audit verify --file`` reads it."""

    turns = place.downloads.turns

    async def pages() -> AsyncGenerator[str]:
        after: int | None = 0
        while after is not None:
            # The loop makes the entries: some at a time, of one export after the other.
            async with turns.turn(place.account_id), context.database.statement() as connection:
                found = await audit.list_entries(
                    connection, viewer.account.id, after=after, limit=ENTRIES_SHOWN
                )
            after = found[-1].position if found else None
            yield await run_in_threadpool(lambda: "".join(map(entry_line, found)))  # noqa: B023

    name = f"audit-{viewer.account.id}.jsonl"
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return place.stream(pages(), media_type="application/jsonl", headers=headers)
