"""``GET /quota``."""

from __future__ import annotations

import logging
import uuid
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter
from pydantic import ConfigDict, with_config
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, KeyedRoute
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import answers
from serve_app.api.schemas import Answer, Count, doc, rendered
from serve_app.context import AppContext
from storage import jobs, keys, ledger
from storage.database import DatabaseError
from storage.types import Tier

log = logging.getLogger("vas.credits")
router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Account"])

_WHILE_AVAILABLE = [
    "balanceCents",
    "heldCents",
    "availableCents",
    "payAsYouGo",
    "monthUsageSeconds",
    "tier",
    "volumeThresholdSeconds",
]


@with_config(
    ConfigDict(
        json_schema_extra={
            "if": {"properties": {"available": {"const": True}}},
            "then": {
                "required": [*_WHILE_AVAILABLE],
                "properties": {name: {} for name in ("available", *_WHILE_AVAILABLE)},
            },
        }
    )
)
class Quota(TypedDict):
    """Credits and usage.

    When `available` is false, the balance could not be read and all other fields are missing.
    """

    available: Annotated[bool, doc("Whether the balance could be read.")]
    balanceCents: NotRequired[Annotated[int, doc("Credits, holds not taken off.", 5000)]]
    heldCents: NotRequired[Annotated[Count, doc("Held for running jobs.", 3)]]
    availableCents: NotRequired[Annotated[int, doc("What a new job may use.", 4997)]]
    payAsYouGo: NotRequired[Annotated[bool, doc("Whether the balance may go below zero.", False)]]
    monthUsageSeconds: NotRequired[
        Annotated[Count, doc("Billable seconds of this UTC month.", 5400)]
    ]
    tier: NotRequired[
        Annotated[Literal["standard", "volume"], doc("By this month's usage.", "standard")]
    ]
    volumeThresholdSeconds: NotRequired[
        Annotated[Count, doc("Above it, volume rates apply.", 360_000)]
    ]


class QuotaResult(TypedDict):
    """Credits and usage; beside them what older clients read, while the balance can be read."""

    api: Quota
    currentPlan: NotRequired[
        Annotated[Literal["free", "pro"], doc("`free` until something was purchased.")]
    ]
    includedHours: NotRequired[Annotated[int, doc("Always 0.")]]
    creditsBalanceHours: NotRequired[
        Annotated[float, doc("Hours of footage that the available credits pay in full.")]
    ]
    resetDate: NotRequired[Annotated[None, doc("Credits do not expire.")]]


@router.get("/quota", **answers(Answer[QuotaResult], "Credits, holds and this month's usage."))
async def get_quota(context: Context, account_id: CurrentAccount) -> Response:
    """Read credits and usage.

    When `available` is false, the balance could not be read; other fields are missing."""
    try:
        threshold = context.prices.volume_threshold_seconds
        async with context.database.statement() as connection:
            account = await keys.get_account(connection, str(account_id))
            usage = await jobs.month_usage_seconds(connection, account_id)
        month = {
            "monthUsageSeconds": usage,
            "tier": "volume" if usage >= threshold else "standard",
            "volumeThresholdSeconds": threshold,
        }
        hour_cents = sum(rate.base for rate in context.prices.rates[Tier.STANDARD].values())
        hours = round(account.available_cents / hour_cents, 4) if hour_cents else 0
        quota: QuotaResult = {
            "api": rendered(Quota, account, available=True, **month),
            "currentPlan": await _plan(context, account_id),
            "includedHours": 0,
            "creditsBalanceHours": hours,
            "resetDate": None,
        }
    except DatabaseError:
        log.exception("the balance could not be read")
        quota = QuotaResult(api=Quota(available=False))
    return success(quota)


async def _plan(context: AppContext, account_id: uuid.UUID) -> Literal["free", "pro"]:
    """For display only: a ledger that cannot be read does not make the balance unavailable."""
    try:
        purchased = await context.database.read(ledger.has_purchases, account_id)
    except DatabaseError:
        log.exception("purchases could not be read")
        return "free"
    return "pro" if purchased else "free"
