"""Where a payment provider reports: outside of the API, off unless a provider is configured."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app.api.bodies import read_bounded
from serve_app.api.context import Context
from serve_app.api.envelope import success
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.payments.service import (
    BadNotificationError,
    Notification,
    PaymentProvider,
    apply_notification,
    find_secret,
)
from storage.keys import AccountNotFoundError

log = logging.getLogger("vas.payments")
router = APIRouter()


@router.post("/payments/{provider}/events", include_in_schema=False)
async def take_event(request: Request, context: Context, provider: str) -> Response:
    """Take a provider's notification.

    Everything but a 2xx makes the provider send it again and shows there as
    failed, so that a payment which cannot be credited is not lost in silence.
    """
    known: PaymentProvider | None = request.app.state.payment_provider
    if known is None or known.name != provider:
        raise ApiError(ErrorCode.NOT_FOUND, "There is nothing at this address.")
    notification = await _verified(request, context, known)
    try:
        async with context.database.transaction() as connection:
            changed = await apply_notification(connection, provider, notification)
    except AccountNotFoundError as error:
        log.exception("payment event %s cannot be credited", notification.event_id)
        raise invalid(f"Event {notification.event_id} names no account of this service.") from error
    log.info("payment event %s (%s): changed=%s", notification.event_id, provider, changed)
    return success(request, {"received": True})


async def _verified(
    request: Request, context: AppContext, provider: PaymentProvider
) -> Notification:
    body = await read_bounded(request, context.settings.max_body_bytes)
    secret = await find_secret(context.settings, context.database, context.encrypter)
    if secret is None:
        log.error("payment event refused: no webhook secret of %s is set", provider.name)
        raise ApiError(ErrorCode.SERVICE_UNAVAILABLE, "The provider's secret is not set yet.")
    try:
        return provider.verify(body, request.headers, secret)
    except BadNotificationError as error:
        log.warning("payment event refused: %s", error)
        raise invalid(str(error)) from error
