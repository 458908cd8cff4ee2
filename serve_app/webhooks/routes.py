"""The delivery log, a test event to any endpoint, and the signing secret of an account."""

from __future__ import annotations

import json
import secrets
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from serve_app.api.authentication import KeyedRoute, SessionRoute, account_of, parse_job_id
from serve_app.api.bodies import parse_body, read_json_object
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import NO_STORE, success, timestamp
from serve_app.api.queries import single
from serve_app.api.urls import CallbackUrl, require_callback_url
from serve_app.webhooks.sending import Outcome, delivery_way, send_event
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import signing_secrets
from storage.outbox import Delivery, list_deliveries
from storage.signing_secrets import SealedSecret

TEST_EVENT = "webhook.test"
TEST_MESSAGE = "This is a test event. No job has ended."

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute)
secret_router = APIRouter(prefix=API_PREFIX, route_class=SessionRoute)


@router.get("/webhooks/deliveries", operation_id="listWebhookDeliveries")
async def list_webhook_deliveries(request: Request) -> Response:
    """The account's last deliveries, newest first."""
    job_id = single(request, "jobId")
    wanted = None if job_id is None else parse_job_id(job_id)
    async with context_of(request).database.statement() as connection:
        found = await list_deliveries(connection, account_of(request), job_id=wanted)
    return success(request, [_record(delivery) for delivery in found])


def _record(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "jobId": str(delivery.job_id),
        "eventType": delivery.event_type,
        "urlHost": urlsplit(delivery.url).hostname,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "lastStatus": delivery.last_status,
        "lastError": delivery.last_error,
        "disabled": delivery.status == "disabled",
        "deliveredAt": timestamp(delivery.delivered_at),
        "createdAt": timestamp(delivery.created_at),
    }


class TestWebhookBody(BaseModel):
    """Body of ``POST /webhooks/test``."""

    model_config = ConfigDict(strict=True, extra="ignore")

    url: CallbackUrl


@router.post("/webhooks/test", operation_id="sendTestWebhook")
async def send_test_webhook(request: Request) -> Response:
    """Send a signed ``webhook.test`` event to ``url`` and say what came back."""
    context = context_of(request)
    raw = await read_json_object(request, max_bytes=context.settings.max_body_bytes)
    body = parse_body(TestWebhookBody, raw)
    require_callback_url(body.url, "url", context.settings, standard_port_only=True)
    fresh = context.sealer.seal(new_signing_secret())
    async with context.database.transaction() as connection:
        stored = await signing_secrets.get_or_create(connection, account_of(request), fresh)
    sealed = [stored.current] + ([stored.previous] if stored.previous else [])
    content = _test_event()
    headers = signed_headers(
        [context.sealer.open(secret) for secret in sealed],
        f"test_{secrets.token_hex(16)}",
        int(time.time()),
        content,
    )
    outcome = await send_event(body.url, headers, content, way=delivery_way(context.settings))
    return success(request, _test_result(outcome))


def _test_event() -> bytes:
    event = {
        "type": TEST_EVENT,
        "timestamp": timestamp(datetime.now(UTC)),
        "data": {"message": TEST_MESSAGE},
    }
    return json.dumps(event).encode()


def _test_result(outcome: Outcome) -> dict[str, Any]:
    result: dict[str, Any] = {
        "delivered": outcome.delivered,
        "statusCode": outcome.status_code,
        "latencyMs": outcome.latency_ms,
    }
    if outcome.failure is not None:
        result["error"] = outcome.failure
    return result


@secret_router.get("/webhooks/secret", operation_id="getWebhookSecret")
async def get_webhook_secret(request: Request) -> Response:
    """The signing secret, made at its first use."""
    context = context_of(request)
    fresh = context.sealer.seal(new_signing_secret())
    async with context.database.transaction() as connection:
        stored = await signing_secrets.get_or_create(connection, account_of(request), fresh)
    return _secret_response(request, stored)


@secret_router.post("/webhooks/secret/rotate", operation_id="rotateWebhookSecret")
async def rotate_webhook_secret(request: Request) -> Response:
    """A new signing secret; the previous one goes on signing for 24 hours."""
    context = context_of(request)
    fresh = context.sealer.seal(new_signing_secret())
    async with context.database.transaction() as connection:
        stored = await signing_secrets.rotate(connection, account_of(request), fresh)
    return _secret_response(request, stored)


def _secret_response(request: Request, stored: SealedSecret) -> Response:
    data = {
        "secret": context_of(request).sealer.open(stored.current),
        "createdAt": timestamp(stored.created_at),
        "rotatedAt": timestamp(stored.rotated_at),
    }
    return success(request, data, headers=NO_STORE)
