"""The table's rows for accounts, webhooks, discovery and the dashboard."""

from __future__ import annotations

from serve_app.discovery.components_forms import Schema, choice, integer, list_of, number, text
from serve_app.discovery.components_forms import reference as ref
from serve_app.discovery.operations_forms import Auth, Operation, Parameter, Success, data
from serve_app.errors import ErrorCode
from serve_app.pricing import MAX_ESTIMATE_SECONDS, MAX_ESTIMATE_TRACKS, MAX_PRIOR_USAGE_SECONDS
from storage.types import ProcessingMode, Tier

_OPENAPI_DOCUMENT: Schema = {
    "type": "object",
    "description": "An OpenAPI 3.1 document.",
    "properties": {
        "openapi": text(pattern=r"^3\.1\.[0-9]+$"),
        "info": {"type": "object"},
        "paths": {"type": "object"},
    },
    "required": ["openapi", "info", "paths"],
}
_UUID: Schema = {"type": "string", "format": "uuid"}

ACCOUNT = (
    Operation(
        "getQuota",
        "GET",
        "/quota",
        Auth.KEY,
        "Account",
        "Read credits and usage",
        "When `available` is false, the balance could not be read and all other fields are "
        "missing.",
        data("QuotaResult", "Credits, holds and this month's usage."),
    ),
)

WEBHOOKS = (
    Operation(
        "listWebhookDeliveries",
        "GET",
        "/webhooks/deliveries",
        Auth.KEY,
        "Webhooks",
        "List webhook deliveries",
        "The account's last 100, newest first.",
        Success("The deliveries.", list_of(ref("Delivery"), maxItems=100)),
        (
            Parameter(
                "jobId",
                "query",
                text(pattern=r"^[^\u0000-\u001f]*$"),
                "Only those of this job; none, if there is no such job.",
            ),
        ),
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        "sendTestWebhook",
        "POST",
        "/webhooks/test",
        Auth.KEY,
        "Webhooks",
        "Send a test webhook",
        "Sends a signed `webhook.test` event and says what came back. At most 5 a minute.",
        data("WebhookTestResult", "What came back, good or bad."),
        body="TestWebhookRequest",
        errors=(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CALLBACK_URL),
    ),
)

_ESTIMATE_PARAMETERS = (
    Parameter(
        "durationSeconds",
        "query",
        number(minimum=0, maximum=MAX_ESTIMATE_SECONDS),
        "Length of the media.",
        required=True,
        example=3600,
    ),
    Parameter("tier", "query", choice("", Tier) | {"default": "standard"}, "Price tier."),
    Parameter(
        "mode", "query", choice("", ProcessingMode) | {"default": "all"}, "Which stages run."
    ),
    Parameter(
        "audioTracks",
        "query",
        integer(minimum=1, maximum=MAX_ESTIMATE_TRACKS, default=1),
        "Tracks to transcribe: audio streams of the video, or separate audio files in their "
        "place, and each channel of a file with `perChannelTranscription`.",
    ),
    Parameter(
        "priorUsageSeconds",
        "query",
        integer(minimum=0, maximum=MAX_PRIOR_USAGE_SECONDS, default=0),
        "Billable seconds already used this UTC month.",
    ),
)

DISCOVERY = (
    Operation(
        "getOpenApi",
        "GET",
        "/openapi.json",
        Auth.NONE,
        "Discovery",
        "Read this document",
        "OpenAPI 3.1, not wrapped in the usual envelope.",
        Success(
            "The document.",
            _OPENAPI_DOCUMENT,
            headers=("Cache-Control", "ETag"),
            enveloped=False,
        ),
        (
            Parameter(
                "If-None-Match", "header", text(), "An `ETag`: answered 304 if nothing changed."
            ),
        ),
        cacheable=True,
    ),
    Operation(
        "getPricing",
        "GET",
        "/pricing",
        Auth.NONE,
        "Discovery",
        "Read the price table",
        "Rates in US cents per footage-hour, by tier and stage.",
        data("PriceTable", "The price table.", headers=("Cache-Control",)),
    ),
    Operation(
        "estimatePrice",
        "GET",
        "/pricing/estimate",
        Auth.NONE,
        "Discovery",
        "Estimate a price",
        "Exactly what one job is charged if every requested stage completes.",
        data("PriceEstimate", "The estimate.", headers=("Cache-Control",)),
        _ESTIMATE_PARAMETERS,
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        "listFormats",
        "GET",
        "/formats",
        Auth.NONE,
        "Discovery",
        "List formats and limits",
        "File extensions that are taken and refused, and what the limits are.",
        data("Formats", "Formats and limits.", headers=("Cache-Control",)),
    ),
)

_PRIVATE = ("Cache-Control",)

DASHBOARD = (
    Operation(
        "listKeys",
        "GET",
        "/keys",
        Auth.SESSION,
        "Dashboard",
        "List API keys",
        "Never with their secrets.",
        Success(
            "The keys, newest first.",
            list_of(ref("Key")),
            headers=_PRIVATE,
            links={"rotateKey": {"id": "$response.body#/data/0/id"}},
        ),
    ),
    Operation(
        "getKeysPortal",
        "GET",
        "/keys/portal",
        Auth.SESSION,
        "Dashboard",
        "Open the billing page",
        "A short-lived link to keys, receipts and credits. Not found if nothing was ever "
        "purchased.",
        data("PortalLink", "The link.", headers=_PRIVATE),
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        "rotateKey",
        "POST",
        "/keys/{id}/rotate",
        Auth.SESSION,
        "Dashboard",
        "Rotate an API key",
        "The old key stops working; the new secret is shown this once.",
        data("RotatedKey", "The new key.", headers=_PRIVATE),
        (Parameter("id", "path", _UUID, "The key's id.", required=True),),
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        "getWebhookSecret",
        "GET",
        "/webhooks/secret",
        Auth.SESSION,
        "Dashboard",
        "Read the signing secret",
        "Made on the first call.",
        data("SigningSecret", "The secret.", headers=_PRIVATE),
    ),
    Operation(
        "rotateWebhookSecret",
        "POST",
        "/webhooks/secret/rotate",
        Auth.SESSION,
        "Dashboard",
        "Rotate the signing secret",
        "For 24 hours deliveries are signed with both the new and the previous secret.",
        data("SigningSecret", "The new secret.", headers=_PRIVATE),
    ),
)
