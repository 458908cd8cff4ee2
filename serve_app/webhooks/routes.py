"""Webhooks of an account: endpoints, the delivery log, a test event, and the signing secret."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, NotRequired
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, KeyedRoute, SessionRoute, WebhookTestRoute
from serve_app.api.envelope import API_PREFIX, NO_STORE, Context, success
from serve_app.api.openapi import answers, headers
from serve_app.api.parameters import one_of
from serve_app.api.schemas import (
    Answer,
    Body,
    Count,
    Timestamp,
    Uuid,
    doc,
    each_once,
    list_of,
    rendered,
    timestamp,
)
from serve_app.api.urls import CallbackUrl, parse_job_id, require_callback_url
from serve_app.context import AppContext
from serve_app.errors import ErrorCode, existing, invalid
from serve_app.webhooks.sending import delivery_options, send_event
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import endpoints, webhooks
from storage.audit import record
from storage.endpoints import MOST_ENDPOINTS
from storage.tables import Delivery, WebhookEndpoint
from storage.types import TERMINAL_EVENTS, DeliveryStatus, EventType
from storage.webhooks import EncryptedSecret, list_deliveries

TEST_EVENT = "webhook.test"
TEST_MESSAGE = "This is a test event. No job has ended."

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Webhooks"])
test_router = APIRouter(prefix=API_PREFIX, route_class=WebhookTestRoute, tags=["Webhooks"])
secret_router = APIRouter(prefix=API_PREFIX, route_class=SessionRoute, tags=["Dashboard"])


class WebhookDelivery(TypedDict):
    """An event and how its delivery stands."""

    id: Annotated[
        str,
        doc(
            "`<jobId>:<eventType>`, the event's `webhook-id`; of an endpoint with "
            "`:<endpointId>`, of progress with the time too.",
            "6f1b7c0e-2f0a-4c55-9a53-0d1f3a1f2c77:job.completed",
        ),
    ]
    jobId: Annotated[Uuid, doc("The job.")]
    eventType: EventType
    urlHost: Annotated[str | None, doc("Host of the endpoint.", "hooks.example.com")]
    status: Annotated[DeliveryStatus, Field(examples=["delivered"])]
    attempts: Annotated[Count, doc("Attempts so far.", 1)]
    lastStatus: Annotated[Count | None, doc("HTTP status of the last attempt.", 204)]
    lastError: Annotated[str | None, doc("Failure class and the first 4 KiB of the answer.", None)]
    disabled: Annotated[bool, doc("Whether the endpoint answered `410 Gone`.", False)]
    deliveredAt: Annotated[Timestamp | None, doc("When a 2xx came back.")]
    createdAt: Annotated[Timestamp, doc("When the event was written.")]


_DELIVERIES = list_of(
    "WebhookDeliveries",
    Annotated[list[WebhookDelivery], Field(max_length=100)],
    "The last deliveries, newest first.",
)


@router.get("/webhooks/deliveries", **answers(_DELIVERIES, "The deliveries."))
async def list_webhook_deliveries(
    context: Context,
    account_id: CurrentAccount,
    job_id: Annotated[
        str | None,
        Query(
            alias="jobId",
            description="Only those of this job; none, if there is no such job.",
            json_schema_extra={"pattern": r"^[^\u0000-\u001f]*$"},
        ),
    ] = None,
) -> Response:
    """List webhook deliveries.

    The account's last 100, newest first."""
    wanted = None if job_id is None else parse_job_id(job_id)
    found = await context.database.read(list_deliveries, account_id, job_id=wanted)
    return success([_record(delivery) for delivery in found])


def _record(delivery: Delivery) -> WebhookDelivery:
    host, disabled = urlsplit(delivery.url).hostname, delivery.status == "disabled"
    return rendered(WebhookDelivery, delivery, urlHost=host, disabled=disabled)


class TestWebhookBody(Body):
    """Body of ``POST /webhooks/test``."""

    url: Annotated[
        CallbackUrl, doc("Public HTTPS endpoint, port 443.", "https://hooks.example.com/video")
    ]


class WebhookTestResult(TypedDict):
    """What came back from the endpoint."""

    delivered: Annotated[bool, doc("Whether a 2xx came back.")]
    statusCode: Annotated[Count, doc("The endpoint's status; 0 when nothing answered.", 204)]
    latencyMs: Annotated[Count, doc("How long it took.", 85)]
    error: NotRequired[Annotated[str, doc("Failure class, e.g. `timeout` or `http_5xx: 503`.")]]


@test_router.post(
    "/webhooks/test",
    **answers(
        Answer[WebhookTestResult], "What came back, good or bad.", ErrorCode.INVALID_CALLBACK_URL
    ),
)
async def send_test_webhook(
    context: Context, account_id: CurrentAccount, body: TestWebhookBody
) -> Response:
    """Send a test webhook.

    Sends a signed `webhook.test` event and answers what came back."""
    require_callback_url(body.url, "url", context.settings, standard_port_only=True)
    fresh = context.encrypter.encrypt(new_signing_secret())
    async with context.database.transaction() as connection:
        stored = await webhooks.get_or_create_signing_secret(connection, account_id, fresh)
        await record(connection, account_id, "sendTestWebhook")
    encrypted = [stored.current] + ([stored.previous] if stored.previous else [])
    event = {
        "type": TEST_EVENT,
        "timestamp": timestamp(datetime.now(UTC)),
        "data": {"message": TEST_MESSAGE},
    }
    content = json.dumps(event).encode()
    headers = signed_headers(
        [context.encrypter.decrypt(secret) for secret in encrypted],
        f"test_{secrets.token_hex(16)}",
        int(time.time()),
        content,
    )
    outcome = await send_event(
        body.url, headers, content, options=delivery_options(context.settings)
    )
    result: WebhookTestResult = {
        "delivered": outcome.delivered,
        "statusCode": outcome.status_code,
        "latencyMs": outcome.latency_ms,
    }
    if outcome.failure is not None:
        result["error"] = outcome.failure
    return success(result)


SigningSecretText = Annotated[
    str,
    doc(
        "`whsec_` and base64.",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        pattern="^whsec_[A-Za-z0-9+/]+=*$",
    ),
]


class SigningSecret(TypedDict):
    """The secret that webhooks are signed with."""

    secret: SigningSecretText
    createdAt: Annotated[Timestamp, doc("When the account's first secret was made.")]
    rotatedAt: Annotated[Timestamp | None, doc("When it was last rotated.")]


@secret_router.get(
    "/webhooks/secret",
    **answers(Answer[SigningSecret], "The secret.", headers=headers("Cache-Control")),
)
async def get_webhook_secret(context: Context, account_id: CurrentAccount) -> Response:
    """Read the signing secret.

    Made on the first call."""
    fresh = context.encrypter.encrypt(new_signing_secret())
    stored = await context.database.write(webhooks.get_or_create_signing_secret, account_id, fresh)
    return _secret_response(context, stored)


@secret_router.post(
    "/webhooks/secret/rotate",
    **answers(Answer[SigningSecret], "The new secret.", headers=headers("Cache-Control")),
)
async def rotate_webhook_secret(context: Context, account_id: CurrentAccount) -> Response:
    """Rotate the signing secret.

    For 24 hours deliveries are signed with both the new and the previous secret."""
    fresh = context.encrypter.encrypt(new_signing_secret())
    stored = await context.database.write(webhooks.rotate_signing_secret, account_id, fresh)
    return _secret_response(context, stored)


def _secret_response(context: AppContext, stored: EncryptedSecret) -> Response:
    data = {
        "secret": context.encrypter.decrypt(stored.current),
        "createdAt": timestamp(stored.created_at),
        "rotatedAt": timestamp(stored.rotated_at),
    }
    return success(data, headers=NO_STORE)


Events = Annotated[
    list[
        Annotated[
            str, one_of(EventType), Field(json_schema_extra={"enum": [str(e) for e in EventType]})
        ]
    ],
    doc(
        "Types of the events that are sent; `job.progress` at most every 10 seconds a job.",
        ["job.completed", "job.failed"],
        min_length=1,
        max_length=len(EventType),
        json_schema_extra={"uniqueItems": True},
    ),
    each_once("event"),
]
EndpointUrl = Annotated[CallbackUrl, doc("A public HTTPS URL.", "https://hooks.example.com/events")]


class NewEndpointBody(Body):
    """Body of ``POST /webhooks/endpoints``."""

    url: EndpointUrl
    events: Events = [str(event) for event in TERMINAL_EVENTS.values()]  # noqa: RUF012 - pydantic copies it


class EndpointChangesBody(Body):
    """Body of ``PATCH /webhooks/endpoints/{endpointId}``: what is not given stays."""

    url: EndpointUrl | None = None
    events: Events | None = None


@dataclass(frozen=True, slots=True)
class NewWebhookEndpoint(WebhookEndpoint):
    """An endpoint with its secret, which is shown this once."""

    secret: SigningSecretText


_ENDPOINTS = list_of(
    "WebhookEndpoints",
    Annotated[list[WebhookEndpoint], Field(max_length=MOST_ENDPOINTS)],
    "The account's endpoints, the oldest first.",
)
EndpointId = Annotated[
    Uuid, Path(alias="endpointId", description="The endpoint's id; what is no UUID is not found.")
]


@router.get("/webhooks/endpoints", **answers(_ENDPOINTS, "The endpoints."))
async def list_webhook_endpoints(context: Context, account_id: CurrentAccount) -> Response:
    """List webhook endpoints.

    At most 10, the oldest first."""
    found = await context.database.read(endpoints.list_endpoints, account_id)
    return success([each.json() for each in found])


@router.post(
    "/webhooks/endpoints",
    **answers(
        Answer[NewWebhookEndpoint],
        "The endpoint with its secret.",
        ErrorCode.INVALID_CALLBACK_URL,
        status=201,
        headers=headers("Cache-Control"),
    ),
)
async def create_webhook_endpoint(
    context: Context, account_id: CurrentAccount, body: NewEndpointBody
) -> Response:
    """Add a webhook endpoint.

    It gets the account's events from now on, signed with a secret of its own, which is shown
    this once. An account has at most 10; `callbackUrl` of jobs goes on beside them."""
    require_callback_url(body.url, "url", context.settings)
    secret = new_signing_secret()
    added = await context.database.write(
        endpoints.add_endpoint,
        account_id,
        url=body.url,
        event_types=body.events,
        secret=context.encrypter.encrypt(secret),
    )
    if added is None:
        raise invalid(f"An account has at most {MOST_ENDPOINTS} endpoints.", "url")
    return success({**added.json(), "secret": secret}, status=201, headers=NO_STORE)


@router.get("/webhooks/endpoints/{endpointId}", **answers(Answer[WebhookEndpoint], "The endpoint."))
async def get_webhook_endpoint(
    context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """Read a webhook endpoint.

    Without its secret."""
    known_id = parse_job_id(endpoint_id)
    found = await context.database.read(endpoints.list_endpoints, account_id, known_id)
    return success(existing(found[0] if found else None, "endpoint").json())


@router.patch(
    "/webhooks/endpoints/{endpointId}",
    **answers(Answer[WebhookEndpoint], "The endpoint.", ErrorCode.INVALID_CALLBACK_URL),
)
async def change_webhook_endpoint(
    context: Context, account_id: CurrentAccount, endpoint_id: EndpointId, body: EndpointChangesBody
) -> Response:
    """Change a webhook endpoint.

    What is still owed to its old URL is sent to the new one."""
    if body.url is not None:
        require_callback_url(body.url, "url", context.settings)
    async with context.database.transaction() as connection:
        changed = await endpoints.change_endpoint(
            connection, account_id, parse_job_id(endpoint_id), url=body.url, event_types=body.events
        )
    return success(existing(changed, "endpoint").json())


@router.delete(
    "/webhooks/endpoints/{endpointId}",
    **answers(Answer[WebhookEndpoint], "The endpoint that was deleted."),
)
async def delete_webhook_endpoint(
    context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """Delete a webhook endpoint.

    With its deliveries, sent or not."""
    async with context.database.transaction() as connection:
        deleted = await endpoints.delete_endpoint(connection, account_id, parse_job_id(endpoint_id))
    return success(existing(deleted, "endpoint").json())


@router.post(
    "/webhooks/endpoints/{endpointId}/rotate",
    **answers(
        Answer[NewWebhookEndpoint],
        "The endpoint with its new secret.",
        headers=headers("Cache-Control"),
    ),
)
async def rotate_webhook_endpoint(
    context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """Rotate an endpoint's secret.

    Shown this once. For 24 hours its deliveries are signed with the old secret too."""
    secret = new_signing_secret()
    changed = await context.database.write(
        endpoints.change_endpoint,
        account_id,
        parse_job_id(endpoint_id),
        secret=context.encrypter.encrypt(secret),
    )
    rotated = existing(changed, "endpoint").json()
    return success({**rotated, "secret": secret}, headers=NO_STORE)
