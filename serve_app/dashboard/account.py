"""Pages of an account: credits, usage, prices and limits; keys and webhooks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from serve_app import pricing
from serve_app.api.authentication import parse_job_id
from serve_app.api.context import Context
from serve_app.api.queries import whole_number
from serve_app.api.rate_limits import LIMITS
from serve_app.api.urls import require_callback_url
from serve_app.context import AppContext
from serve_app.dashboard import PATH
from serve_app.dashboard.access import CurrentViewer, PageRoute, SentForm
from serve_app.dashboard.pages import page
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.media import formats
from serve_app.pricing import PriceTable
from serve_app.webhooks.signing import new_signing_secret
from storage import endpoints, jobs, keys, purchases, usage, webhooks
from storage.keys import KeyCaps
from storage.types import EventType, ProcessingMode, StageName, Tier
from storage.usage import DayUsage, Month

RECEIPTS_SHOWN = 50
KEYS_PATH = f"{PATH}/keys"

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Bar:
    """A day of the month in the chart; ``share`` is of the highest day."""

    day: date
    cents: int
    jobs: int
    share: float


def month_bars(month: Month, days: list[DayUsage]) -> list[Bar]:
    """Every day of the month, those without charges too."""
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
    account = viewer.account
    month = Month.of(datetime.now(UTC))
    async with context.database.statement() as connection:
        days = await usage.list_day_usage(connection, account.id, month)
        stages = await usage.list_stage_usage(connection, account.id, month)
        seconds = await jobs.month_usage_seconds(connection, account.id)
        receipts = await purchases.list_receipts(connection, account.id, limit=RECEIPTS_SHOWN)
        active = await jobs.count_unfinished(connection, account.id)
    return await page(
        request,
        "account.html",
        month=month,
        bars=month_bars(month, days),
        stages=stages,
        month_seconds=seconds,
        receipts=receipts,
        prices=context.prices,
        settings=context.settings,
        max_duration=formats.MAX_DURATION_SECONDS,
        rates=LIMITS,
        active=active,
        max_active=account.max_active_jobs or context.settings.max_active_jobs,
        estimate=_estimate(context.prices, hours, minutes, tier, seconds),
        asked={"hours": hours, "minutes": minutes, "tier": tier},
    )


def _estimate(
    prices: PriceTable, hours: str, minutes: str, tier: str, prior_seconds: int
) -> dict[StageName, int] | None:
    """What a job of this length costs, by stage; None where none was given."""
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
    async with context.database.transaction() as connection:
        try:
            issued = await keys.create_key(
                connection, viewer.account.id, expires_at=expires_at, caps=caps
            )
        except keys.TooManyKeysError:
            raise invalid(f"An account has at most {keys.MOST_KEYS} active keys.") from None
    return await _keys_page(request, context, viewer.account.id, issued=issued)


@router.post(f"{KEYS_PATH}/{{id}}/revoke")
async def revoke_key(context: Context, viewer: CurrentViewer, id: str) -> Response:  # noqa: A002
    """It opens nothing any more."""
    async with context.database.transaction() as connection:
        if not await keys.revoke_key(connection, parse_job_id(id), viewer.account.id):
            raise ApiError(ErrorCode.NOT_FOUND, "There is no such active key.")
    return RedirectResponse(KEYS_PATH, status_code=303)


@router.post(f"{KEYS_PATH}/{{id}}/rotate")
async def rotate_key(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    id: str,  # noqa: A002
) -> Response:
    """A new key in place of the old one, shown on the page that answers and never again."""
    async with context.database.transaction() as connection:
        issued = await keys.rotate_key(connection, viewer.account.id, parse_job_id(id))
    if issued is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such active key.")
    return await _keys_page(request, context, viewer.account.id, issued=issued)


@router.post(f"{PATH}/webhook-secret/rotate")
async def rotate_webhook_secret(context: Context, viewer: CurrentViewer) -> Response:
    """For a day deliveries are signed with both the new and the previous secret."""
    fresh = context.encrypter.encrypt(new_signing_secret())
    async with context.database.transaction() as connection:
        await webhooks.rotate_signing_secret(connection, viewer.account.id, fresh)
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
    async with context.database.transaction() as connection:
        added = await endpoints.add_endpoint(
            connection,
            viewer.account.id,
            url=url,
            event_types=events,
            secret=context.encrypter.encrypt(secret),
        )
    if added is None:
        raise invalid(f"An account has at most {endpoints.MOST_ENDPOINTS} endpoints.")
    return await _keys_page(request, context, viewer.account.id, endpoint_secret=secret)


@router.post(f"{PATH}/endpoints/{{id}}/delete")
async def delete_endpoint(
    context: Context,
    viewer: CurrentViewer,
    id: str,  # noqa: A002
) -> Response:
    """The endpoint and its deliveries."""
    async with context.database.transaction() as connection:
        found = await endpoints.delete_endpoint(connection, viewer.account.id, parse_job_id(id))
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such endpoint.")
    return RedirectResponse(f"{KEYS_PATH}#webhooks", status_code=303)


@router.post(f"{PATH}/endpoints/{{id}}/rotate")
async def rotate_endpoint(
    request: Request,
    context: Context,
    viewer: CurrentViewer,
    id: str,  # noqa: A002
) -> Response:
    """A new secret, shown as that of a new endpoint."""
    secret = new_signing_secret()
    async with context.database.transaction() as connection:
        found = await endpoints.change_endpoint(
            connection,
            viewer.account.id,
            parse_job_id(id),
            secret=context.encrypter.encrypt(secret),
        )
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such endpoint.")
    return await _keys_page(request, context, viewer.account.id, endpoint_secret=secret)
