"""``GET /quota``."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.authentication import KeyedRoute, account_of
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import success
from storage import jobs, keys
from storage.database import DatabaseError

log = logging.getLogger("vas.credits")
router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute)


@router.get("/quota", operation_id="getQuota")
async def get_quota(request: Request) -> Response:
    """Credits, holds and this month's usage."""
    try:
        quota = await _read_quota(request)
    except DatabaseError:
        log.exception("the balance could not be read")
        quota = {"available": False}
    return success(request, {"api": quota})


async def _read_quota(request: Request) -> dict[str, Any]:
    account_id = account_of(request)
    context = context_of(request)
    threshold = context.prices.volume_threshold_seconds
    async with context.database.statement() as connection:
        account = await keys.get_account(connection, str(account_id))
        usage = await jobs.month_usage_seconds(connection, account_id)
    return {
        "available": True,
        "balanceCents": account.balance_cents,
        "heldCents": account.held_cents,
        "availableCents": account.available_cents,
        "payAsYouGo": account.pay_as_you_go,
        "monthUsageSeconds": usage,
        "tier": "volume" if usage >= threshold else "standard",
        "volumeThresholdSeconds": threshold,
    }
