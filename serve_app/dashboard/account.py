"""Pages of an account: credits, usage, prices, limits, keys and webhooks; the signed billing page.

An owner also has pages of people with their roles, invitations and sessions, and the audit log.
"""

# ruff: noqa: A002  (names of paths)
from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from serve_app import pricing
from serve_app.api.authentication import LIMITS, Bucket, count_requests
from serve_app.api.downloads import FilePlace
from serve_app.api.envelope import Context, public_url
from serve_app.api.parameters import WHOLE_NUMBER, whole_number
from serve_app.api.urls import parse_job_id, require_callback_url
from serve_app.context import AppContext
from serve_app.crypto import BadSignatureError
from serve_app.dashboard import PATH, SIGN_IN_PATH
from serve_app.dashboard.access import CurrentViewer, OpenPageRoute, PageRoute, SentForm, Viewer
from serve_app.dashboard.pages import HEADERS, page
from serve_app.errors import ApiError, ErrorCode, existing, invalid
from serve_app.jobs.vocabulary import VocabularyJson, read_vocabulary
from serve_app.keys.routes import PORTAL_PATH, PORTAL_PURPOSE, entry_line
from serve_app.media import formats
from serve_app.pricing import PriceTable
from serve_app.webhooks.signing import new_signing_secret
from storage import audit, endpoints, jobs, keys, ledger, people, voices, webhooks
from storage.database import Connection
from storage.keys import Account, KeyCaps
from storage.ledger import DayUsage, Month
from storage.types import EventType, ProcessingMode, Role, StageName, Tier

RECEIPTS_SHOWN = 200
KEYS_PATH = f"{PATH}/keys"

_PORTAL_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    # The address is the permission: it goes to nobody else.
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(route_class=PageRoute, include_in_schema=False)
portal_router = APIRouter(route_class=OpenPageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Bar:
    """A day of the month in the chart; ``share`` is of the highest day."""

    day: date
    cents: int
    jobs: int
    share: float


def month_bars(month: Month, days: list[DayUsage]) -> list[Bar]:
    """Return every day of the month, those without charges too."""
    used = {each.day: each for each in days}
    highest = max((each.cents for each in days), default=0) or 1
    bars, day = [], month.start.date()
    while day < month.end.date():
        found = used.get(day, DayUsage(day, 0, 0))
        bars.append(Bar(day, found.cents, found.jobs, found.cents / highest))
        day += timedelta(days=1)
    return bars


@router.get(f"{PATH}/account")
async def get_account(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    hours: str = "",
    minutes: str = "",
    tier: str = "standard",
) -> Response:
    """Credits, this month by day, receipts, prices with an estimate, limits."""
    async with context.database.statement() as connection:
        values = await _read_account(connection, context, viewer.account)
        values["voices"] = await voices.list_voices(connection, viewer.account.id)
    estimate = _estimate(context.prices, hours, minutes, tier, values["month_seconds"])
    asked = {"hours": hours, "minutes": minutes, "tier": tier}
    return await page(request, "account.html", **values, estimate=estimate, asked=asked)


async def _read_account(
    connection: Connection, context: AppContext, account: Account
) -> dict[str, Any]:
    month = Month.of(datetime.now(UTC))
    days = await ledger.list_day_usage(connection, account.id, month)
    return {
        "account": account,
        "month": month,
        "bars": month_bars(month, days),
        "stages": await ledger.list_stage_usage(connection, account.id, month),
        "month_seconds": await jobs.month_usage_seconds(connection, account.id),
        "receipts": await ledger.list_receipts(connection, account.id, limit=RECEIPTS_SHOWN),
        "refund_cents": await ledger.outstanding_refund_cents(connection, account.id),
        "prices": context.prices,
        "settings": context.settings,
        "max_duration": formats.MAX_DURATION_SECONDS,
        "rates": LIMITS,
        "active": await jobs.count_unfinished(connection, account.id),
        "max_active": account.max_active_jobs or context.settings.max_active_jobs,
    }


@router.post(f"{PATH}/recognition")
async def change_recognition(
    context: Context, viewer: CurrentViewer, form: SentForm
) -> RedirectResponse:
    """Have new jobs recognise people and voices, or not."""
    recognises = form.get("recognises") == "1"
    await context.database.write(keys.set_recognition, viewer.account.id, recognises=recognises)
    return RedirectResponse(f"{PATH}/account", status_code=303)


@portal_router.get(f"{PORTAL_PATH}/{{account_id}}")
async def get_billing_page(
    request: Request, context: Context, account_id: str, expires: str = "", signature: str = ""
) -> Response:
    """The account's page with its keys, for whoever holds a link to it; it changes nothing."""
    path, values = f"{PORTAL_PATH}/{account_id}", dict[str, Any]()
    try:
        context.signer.check_path(PORTAL_PURPOSE, path, expires=expires, signature=signature)
    except BadSignatureError:
        pass
    else:
        await count_requests(request, f"{account_id}:{Bucket.READS}", Bucket.READS)
        async with context.database.statement() as connection:
            account = await keys.get_account(connection, account_id)
            if account.suspended_at is None:
                values = await _read_account(connection, context, account)
                values["api_keys"] = await keys.list_keys(connection, account.id)
    shown = await page(request, "account.html", status=200 if values else 403, **values)
    shown.headers.update(_PORTAL_HEADERS)
    return shown


def _estimate(
    prices: PriceTable, hours: str, minutes: str, tier: str, prior_seconds: int
) -> dict[StageName, int] | None:
    """Return what a job of this length costs, by stage; None where none was given."""
    if not hours and not minutes:
        return None
    whole_hours, whole_minutes = whole_number(hours or "0"), whole_number(minutes or "0")
    if whole_hours is None or whole_minutes is None:
        raise invalid("Give the length in whole hours and minutes.", "hours")
    if tier not in set(Tier):
        raise invalid("There is no such price tier.", "tier")
    seconds = whole_hours * 3600 + whole_minutes * 60
    if not 0 <= seconds <= pricing.MAX_ESTIMATE_SECONDS:
        raise invalid("No job is that long.", "hours")
    billable = pricing.billable_seconds(prices, seconds)
    stages = pricing.MODE_ANALYSES[ProcessingMode.ALL]
    return pricing.quote(prices, billable, Tier(tier), stages, prior_usage_seconds=prior_seconds)


@router.get(KEYS_PATH)
async def get_keys(request: Request, context: Context, viewer: CurrentViewer) -> Response:
    """Keys, the webhooks' signing secret, and the last deliveries."""
    return await _keys_page(request, context, viewer.account.id)


async def _keys_page(
    request: Request, context: AppContext, account_id: uuid.UUID, **values: Any
) -> Response:
    fresh = context.encrypter.encrypt(new_signing_secret())
    async with context.database.transaction() as connection:
        found = await keys.list_keys(connection, account_id)
        secret = await webhooks.get_or_create_signing_secret(connection, account_id, fresh)
        deliveries = await webhooks.list_deliveries(connection, account_id)
        subscribed = await endpoints.list_endpoints(connection, account_id)
    return await page(
        request,
        "keys.html",
        keys=found,
        secret=context.encrypter.decrypt(secret.current),
        rotated_at=secret.rotated_at,
        deliveries=deliveries,
        endpoints=subscribed,
        event_types=list(EventType),
        **values,
    )


def _key_terms(form: dict[str, str]) -> tuple[datetime | None, KeyCaps]:
    """When a new key ends, and its caps; raises INVALID_REQUEST."""
    given: dict[str, int | None] = {}
    for name, most in (("days", 3650), ("dollars", 10_000_000), ("active_jobs", 100_000)):
        text = form.get(name, "")
        number = whole_number(text) if text else None
        if text and (number is None or not 1 <= number <= most):
            raise invalid(f"Give a whole number from 1 to {most:,}, or nothing.", name)
        given[name] = number
    days, whole_dollars = given["days"], given["dollars"]
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    cents = None if whole_dollars is None else whole_dollars * 100
    return expires_at, KeyCaps(cents, given["active_jobs"])


@router.post(KEYS_PATH)
async def create_key(
    request: Request, context: Context, viewer: CurrentViewer, form: SentForm
) -> Response:
    """A new key, shown on the page that answers and never again."""
    expires_at, caps = _key_terms(form)
    name = form.get("name", "")
    if len(name) > keys.MOST_NAME_CHARACTERS:
        raise invalid(f"A name has at most {keys.MOST_NAME_CHARACTERS} characters.", "name")
    try:
        issued = await context.database.write(
            keys.create_key,
            viewer.account.id,
            expires_at=expires_at,
            caps=caps,
            name=name or None,
        )
    except keys.TooManyKeysError:
        raise invalid(f"An account has at most {keys.MOST_KEYS} active keys.") from None
    return await _keys_page(request, context, viewer.account.id, issued=issued)


@router.post(f"{KEYS_PATH}/{{id}}/revoke")
async def revoke_key(context: Context, viewer: CurrentViewer, id: str) -> Response:
    """It opens nothing any more."""
    if not await context.database.write(keys.revoke_key, parse_job_id(id), viewer.account.id):
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such active key.")
    return RedirectResponse(KEYS_PATH, status_code=303)


@router.post(f"{KEYS_PATH}/{{id}}/rotate")
async def rotate_key(
    request: Request, context: Context, viewer: CurrentViewer, id: str
) -> Response:
    """A new key in place of the old one, shown on the page that answers and never again."""
    issued = await context.database.write(keys.rotate_key, viewer.account.id, parse_job_id(id))
    issued = existing(issued, "active key")
    return await _keys_page(request, context, viewer.account.id, issued=issued)


@router.post(f"{PATH}/webhook-secret/rotate")
async def rotate_webhook_secret(context: Context, viewer: CurrentViewer) -> Response:
    """For a day deliveries are signed with both the new and the previous secret."""
    fresh = context.encrypter.encrypt(new_signing_secret())
    await context.database.write(webhooks.rotate_signing_secret, viewer.account.id, fresh)
    return RedirectResponse(f"{KEYS_PATH}#webhooks", status_code=303)


@router.post(f"{PATH}/endpoints")
async def add_endpoint(
    request: Request, context: Context, viewer: CurrentViewer, form: SentForm
) -> Response:
    """A new endpoint, whose secret is shown on the page that answers and never again."""
    url = form.get("url", "")
    require_callback_url(url, "url", context.settings)
    events = [str(each) for each in EventType if each in form]
    if not events:
        raise invalid("Choose at least one event.", "events")
    secret = new_signing_secret()
    added = await context.database.write(
        endpoints.add_endpoint,
        viewer.account.id,
        url=url,
        event_types=events,
        secret=context.encrypter.encrypt(secret),
    )
    if added is None:
        raise invalid(f"An account has at most {endpoints.MOST_ENDPOINTS} endpoints.")
    return await _keys_page(request, context, viewer.account.id, endpoint_secret=secret)


@router.post(f"{PATH}/endpoints/{{id}}/delete")
async def delete_endpoint(context: Context, viewer: CurrentViewer, id: str) -> Response:
    """The endpoint and its deliveries."""
    of = viewer.account.id, parse_job_id(id)
    existing(await context.database.write(endpoints.delete_endpoint, *of), "endpoint")
    return RedirectResponse(f"{KEYS_PATH}#webhooks", status_code=303)


@router.post(f"{PATH}/endpoints/{{id}}/rotate")
async def rotate_endpoint(
    request: Request, context: Context, viewer: CurrentViewer, id: str
) -> Response:
    """A new secret, shown as that of a new endpoint."""
    secret, of = new_signing_secret(), (viewer.account.id, parse_job_id(id))
    encrypted = context.encrypter.encrypt(secret)
    found = await context.database.write(endpoints.change_endpoint, *of, secret=encrypted)
    existing(found, "endpoint")
    return await _keys_page(request, context, viewer.account.id, endpoint_secret=secret)


VOCABULARY_PATH = f"{PATH}/vocabulary"
_VOCABULARY = TypeAdapter(VocabularyJson)


@router.get(VOCABULARY_PATH)
async def get_vocabulary(request: Request, context: Context, viewer: CurrentViewer) -> Response:
    """Key terms, replacements, and those that are proposed."""
    found = await read_vocabulary(request, context, viewer.account.id)
    return await page(request, "vocabulary.html", **found)


@router.post(VOCABULARY_PATH)
async def change_vocabulary(context: Context, viewer: CurrentViewer, form: SentForm) -> Response:
    """The fields of the form, with the replacement whose button was used."""
    lines = f"{form.get('replacements', '')}\n{form.get('add', '')}"
    terms, pairs = (
        [line.strip() for line in text.splitlines() if line.strip()]
        for text in (form.get("keyterms", ""), lines)
    )
    sides = [[side.strip() for side in line.partition("=")] for line in pairs]
    replacements = [{"from": heard, "to": written} for heard, _, written in sides]
    try:
        given = _VOCABULARY.validate_python({"keyterms": terms, "replacements": replacements})
    except ValidationError as error:
        (name, *place), reason = error.errors()[0]["loc"], error.errors()[0]["msg"]
        line = f", line {int(place[0]) + 1}" if place else ""
        raise invalid(f"{str(name).capitalize()}{line}: {reason}.", str(name)) from None
    await context.database.write(keys.replace_vocabulary, viewer.account.id, {**given})
    return RedirectResponse(VOCABULARY_PATH, status_code=303)


PEOPLE_PATH = f"{PATH}/people"
AUDIT_PATH = f"{PATH}/audit"
ENTRIES_SHOWN = 100
_EMAIL = re.compile(r"[^@\s\x00-\x1f<>\"(),:;\[\]\\]{1,64}@[^@\s\x00-\x1f<>\"(),:;\[\]\\]{1,190}")


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
    values |= {"users": users, "invitations": invitations, "sessions": sessions}
    return await page(request, "people.html", roles=list(Role), **values)


@router.post(f"{PATH}/invitations")
async def invite(
    request: Request, context: Context, viewer: CurrentViewer, form: SentForm
) -> Response:
    """An invitation, whose link is shown on the page that answers and never again."""
    email = form.get("email", "")
    if not _EMAIL.fullmatch(email):
        raise invalid("Give an e-mail address.", "email")
    role = require_role(form.get("role", ""))
    try:
        token = await context.database.write(people.invite, viewer.account.id, email, role)
    except people.UserExistsError:
        raise invalid("Somebody with this address is in the account.", "email") from None
    except people.TooManyPeopleError:
        raise invalid(f"An account has at most {people.MOST_PEOPLE} people.") from None
    link = f"{public_url(request)}{SIGN_IN_PATH}?invitation={token}"
    return await _people_page(request, context, viewer.account.id, link=link, link_for=email)


@router.post(f"{PATH}/invitations/{{id}}/withdraw")
async def withdraw_invitation(context: Context, viewer: CurrentViewer, id: str) -> Response:
    """Its link opens nothing any more."""
    of = viewer.account.id, parse_job_id(id)
    if not await context.database.write(people.withdraw_invitation, *of):
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such invitation.")
    return RedirectResponse(PEOPLE_PATH, status_code=303)


@router.post(f"{PEOPLE_PATH}/{{id}}/role")
async def change_role(context: Context, viewer: CurrentViewer, form: SentForm, id: str) -> Response:
    """From their next request on."""
    return await _change_user(
        context, people.change_role, viewer, id, require_role(form.get("role", ""))
    )


@router.post(f"{PEOPLE_PATH}/{{id}}/remove")
async def remove_user(context: Context, viewer: CurrentViewer, id: str) -> Response:
    """They are signed out everywhere."""
    return await _change_user(context, people.remove_user, viewer, id)


async def _change_user(
    context: AppContext, change: Callable[..., Awaitable[bool]], viewer: Viewer, id: str, *to: Role
) -> Response:
    try:
        found = await context.database.write(change, viewer.account.id, parse_job_id(id), *to)
    except people.LastOwnerError:
        raise ApiError(ErrorCode.LAST_OWNER) from None
    if not found:
        raise _no_user()
    return RedirectResponse(PEOPLE_PATH, status_code=303)


@router.post(f"{PEOPLE_PATH}/{{id}}/link")
async def make_link(request: Request, context: Context, viewer: CurrentViewer, id: str) -> Response:
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
async def end_session(context: Context, viewer: CurrentViewer, id: str) -> Response:
    """Sign a browser out; one's own too."""
    of = viewer.account.id, parse_job_id(id)
    if not await context.database.write(people.end_session_of, *of):
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
    job: str = "",
    actor: str = "",
) -> Response:
    """Who did what, the latest first, from before a position on; to one job, or by one actor."""
    async with context.database.statement() as connection:
        found = await audit.list_entries(
            connection, viewer.account.id, before=before, limit=ENTRIES_SHOWN + 1,
            job_id=parse_job_id(job) if job else None,
            actor_id=parse_job_id(actor) if actor else None)  # fmt: skip
        names = await people.list_names(connection, viewer.account.id)
        entries = found[:ENTRIES_SHOWN]
        files = await jobs.list_file_names(connection, [each.job_id for each in entries])
    older = entries[-1].position if len(found) > ENTRIES_SHOWN else None
    only = {"job": job, "actor": actor}
    return await page(
        request, "audit.html", entries=entries, names=names, files=files, older=older, only=only
    )


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
