"""Endpoints of an account: where it receives the events that it subscribes to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from serve_app.api.authentication import CurrentAccount, KeyedRoute, parse_job_id
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import NO_STORE, success, timestamp
from serve_app.api.openapi import errors, headers
from serve_app.api.queries import one_of
from serve_app.api.schemas import Answer, RequestId, Timestamp, Url, Uuid, doc, each_once
from serve_app.api.urls import CallbackUrl, require_callback_url
from serve_app.errors import ApiError, ErrorCode, invalid
from serve_app.webhooks.routes import SigningSecretText
from serve_app.webhooks.signing import new_signing_secret
from storage import endpoints
from storage.endpoints import MOST_ENDPOINTS, Endpoint
from storage.types import TERMINAL_EVENTS, EventType

router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Webhooks"])


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


class NewEndpointBody(BaseModel):
    """Body of ``POST /webhooks/endpoints``."""

    model_config = ConfigDict(strict=True, extra="ignore")

    url: EndpointUrl
    events: Events = [str(event) for event in TERMINAL_EVENTS.values()]


class EndpointChangesBody(BaseModel):
    """Body of ``PATCH /webhooks/endpoints/{endpointId}``: what is not given stays."""

    model_config = ConfigDict(strict=True, extra="ignore")

    url: EndpointUrl | None = None
    events: Events | None = None


class WebhookEndpoint(TypedDict):
    """Where events are sent, beside the `callbackUrl` of jobs."""

    id: Annotated[Uuid, doc("The endpoint.")]
    url: Annotated[Url, doc("Where its events are sent.")]
    events: Annotated[list[EventType], doc("What it subscribes to.")]
    createdAt: Annotated[Timestamp, doc("When it was made.")]
    rotatedAt: Annotated[Timestamp | None, doc("When its secret was last rotated.")]


class NewWebhookEndpoint(WebhookEndpoint):
    """An endpoint with its secret, which is shown this once."""

    secret: SigningSecretText


class WebhookEndpoints(TypedDict):
    """The account's endpoints, the oldest first."""

    data: Annotated[list[WebhookEndpoint], Field(max_length=MOST_ENDPOINTS)]
    requestId: RequestId


EndpointId = Annotated[
    Uuid, Path(alias="endpointId", description="The endpoint's id; what is no UUID is not found.")
]


def _endpoint(found: Endpoint | None) -> WebhookEndpoint:
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, "There is no such endpoint.")
    return {
        "id": str(found.id),
        "url": found.url,
        "events": [EventType(each) for each in found.event_types],
        "createdAt": timestamp(found.created_at),
        "rotatedAt": timestamp(found.rotated_at),
    }


@router.get(
    "/webhooks/endpoints",
    operation_id="listWebhookEndpoints",
    summary="List webhook endpoints",
    response_model=WebhookEndpoints,
    response_description="The endpoints.",
)
async def list_webhook_endpoints(
    request: Request, context: Context, account_id: CurrentAccount
) -> Response:
    """At most 10, the oldest first."""
    async with context.database.statement() as connection:
        found = await endpoints.list_endpoints(connection, account_id)
    return success(request, [_endpoint(each) for each in found])


@router.post(
    "/webhooks/endpoints",
    operation_id="createWebhookEndpoint",
    summary="Add a webhook endpoint",
    status_code=201,
    response_model=Answer[NewWebhookEndpoint],
    response_description="The endpoint with its secret.",
    responses=errors(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CALLBACK_URL)
    | {201: {"headers": headers("Cache-Control")}},
)
async def create_webhook_endpoint(
    request: Request, context: Context, account_id: CurrentAccount, body: NewEndpointBody
) -> Response:
    """It gets the account's events from now on, signed with a secret of its own, which is shown
    this once. An account has at most 10; `callbackUrl` of jobs goes on beside them."""
    require_callback_url(body.url, "url", context.settings)
    secret = new_signing_secret()
    async with context.database.transaction() as connection:
        added = await endpoints.add_endpoint(
            connection,
            account_id,
            url=body.url,
            event_types=body.events,
            secret=context.encrypter.encrypt(secret),
        )
    if added is None:
        raise invalid(f"An account has at most {MOST_ENDPOINTS} endpoints.", "url")
    return success(request, {**_endpoint(added), "secret": secret}, status=201, headers=NO_STORE)


@router.get(
    "/webhooks/endpoints/{endpointId}",
    operation_id="getWebhookEndpoint",
    summary="Read a webhook endpoint",
    response_model=Answer[WebhookEndpoint],
    response_description="The endpoint.",
    responses=errors(ErrorCode.NOT_FOUND),
)
async def get_webhook_endpoint(
    request: Request, context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """Without its secret."""
    known_id = parse_job_id(endpoint_id)
    async with context.database.statement() as connection:
        found = await endpoints.list_endpoints(connection, account_id, known_id)
    return success(request, _endpoint(found[0] if found else None))


@router.patch(
    "/webhooks/endpoints/{endpointId}",
    operation_id="changeWebhookEndpoint",
    summary="Change a webhook endpoint",
    response_model=Answer[WebhookEndpoint],
    response_description="The endpoint.",
    responses=errors(
        ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CALLBACK_URL, ErrorCode.NOT_FOUND
    ),
)
async def change_webhook_endpoint(
    request: Request,
    context: Context,
    account_id: CurrentAccount,
    endpoint_id: EndpointId,
    body: EndpointChangesBody,
) -> Response:
    """What is still owed to its old URL is sent to the new one."""
    if body.url is not None:
        require_callback_url(body.url, "url", context.settings)
    async with context.database.transaction() as connection:
        changed = await endpoints.change_endpoint(
            connection,
            account_id,
            parse_job_id(endpoint_id),
            url=body.url,
            event_types=body.events,
        )
    return success(request, _endpoint(changed))


@router.delete(
    "/webhooks/endpoints/{endpointId}",
    operation_id="deleteWebhookEndpoint",
    summary="Delete a webhook endpoint",
    response_model=Answer[WebhookEndpoint],
    response_description="The endpoint that was deleted.",
    responses=errors(ErrorCode.NOT_FOUND),
)
async def delete_webhook_endpoint(
    request: Request, context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """With its deliveries, sent or not."""
    async with context.database.transaction() as connection:
        deleted = await endpoints.delete_endpoint(connection, account_id, parse_job_id(endpoint_id))
    return success(request, _endpoint(deleted))


@router.post(
    "/webhooks/endpoints/{endpointId}/rotate",
    operation_id="rotateWebhookEndpoint",
    summary="Rotate an endpoint's secret",
    response_model=Answer[NewWebhookEndpoint],
    response_description="The endpoint with its new secret.",
    responses=errors(ErrorCode.NOT_FOUND) | {200: {"headers": headers("Cache-Control")}},
)
async def rotate_webhook_endpoint(
    request: Request, context: Context, account_id: CurrentAccount, endpoint_id: EndpointId
) -> Response:
    """Shown this once. For 24 hours its deliveries are signed with the old secret too."""
    secret = new_signing_secret()
    async with context.database.transaction() as connection:
        changed = await endpoints.change_endpoint(
            connection,
            account_id,
            parse_job_id(endpoint_id),
            secret=context.encrypter.encrypt(secret),
        )
    return success(request, {**_endpoint(changed), "secret": secret}, headers=NO_STORE)
