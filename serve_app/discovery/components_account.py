"""Schemas of accounts: credits, deliveries, keys, prices, formats."""

from __future__ import annotations

from serve_app.discovery.components_forms import (
    Schema,
    address,
    choice,
    extended,
    flag,
    identifier,
    integer,
    list_of,
    moment,
    nullable,
    number,
    record,
    reference,
    text,
)
from serve_app.formats import RAW_FAMILIES
from serve_app.pricing import CURRENCY, ROUNDING, UNIT
from storage.types import DeliveryStatus, EventType, KeyStatus, StageName, Tier

TEST_EVENT = "webhook.test"


def _quota() -> Schema:
    fields = {
        "balanceCents": integer("Credits, holds not taken off."),
        "heldCents": integer("Held for running jobs.", minimum=0),
        "availableCents": integer("What a new job may use."),
        "payAsYouGo": flag("Whether the balance may go below zero."),
        "monthUsageSeconds": integer("Billable seconds of this UTC month.", minimum=0),
        "tier": choice("By this month's usage.", ("standard", "volume")),
        "volumeThresholdSeconds": integer("Above it, volume rates apply.", minimum=0),
    }
    schema = record(
        "Credits and usage. When `available` is false, the balance could not be read and all "
        "other fields are missing.",
        {"available": flag("Whether the balance could be read.")},
        fields,
    )
    return schema | {
        "if": {"properties": {"available": {"const": True}}},
        "then": {"required": list(fields)},
    }


def _delivery() -> Schema:
    return record(
        "An event and how its delivery stands.",
        {
            "id": text("`<jobId>:<eventType>`, the event's `webhook-id`."),
            "jobId": identifier("The job."),
            "eventType": choice("The event.", EventType),
            "urlHost": nullable(text("Host of the endpoint.")),
            "status": choice("How the delivery stands.", DeliveryStatus),
            "attempts": integer("Attempts so far.", minimum=0),
            "lastStatus": nullable(integer("HTTP status of the last attempt.", minimum=0)),
            "lastError": nullable(text("Failure class and the first 4 KiB of the answer.")),
            "disabled": flag("Whether the endpoint said `410 Gone`."),
            "deliveredAt": nullable(moment("When a 2xx came back.")),
            "createdAt": moment("When the event was written."),
        },
    )


def _rate(description: str) -> Schema:
    cents = "US cents per footage-hour"
    fields = {
        "base": integer(f"{cents} up to the volume threshold.", minimum=0),
        "volume": integer(f"{cents} above it.", minimum=0),
    }
    return record(description, fields)


def _price_table() -> Schema:
    stages = {str(stage): _rate(f"The {stage} stage.") for stage in StageName}
    return record(
        "Rates and the rules of their use.",
        {
            "currency": {"const": CURRENCY},
            "unit": {"const": UNIT},
            "rounding": {"const": ROUNDING},
            "minBillableSeconds": integer("A shorter job costs this much.", minimum=0),
            "volumeThresholdSeconds": integer("Billable seconds in a UTC month.", minimum=0),
            "rates": record("By tier and stage.", {str(t): record("", stages) for t in Tier}),
        },
    )


def _price_estimate() -> Schema:
    return record(
        "What one job is charged if every requested stage completes.",
        {
            "cents": integer("The charge in US cents.", minimum=0),
            "usd": number("The charge in US dollars.", minimum=0),
            "currency": {"const": CURRENCY},
            "billableSeconds": integer("What is charged for.", minimum=0),
            "durationSeconds": number("As asked.", minimum=0),
            "tier": reference("Tier"),
            "mode": reference("ProcessingMode"),
            "audioTracks": integer("As asked.", minimum=1),
            "priorUsageSeconds": integer("As asked.", minimum=0),
        },
        {
            "stages": record(
                "Cents for each stage.", {str(stage): integer(minimum=0) for stage in StageName}
            )
        },
    )


def _formats() -> Schema:
    names = list_of(text())
    limits = {
        "standardMaxBytes": integer("Largest file, standard tier.", minimum=1),
        "rawMaxBytes": integer("Largest file, camera RAW tier.", minimum=1),
        "maxDurationSec": integer("Longest media.", minimum=1),
        "uploadUrlExpirySeconds": integer("Life of upload URLs.", minimum=1),
    }
    return record(
        "File extensions and limits.",
        {
            "standard": {**names, "description": "Video files of the standard tier."},
            "audioOnly": {**names, "description": "Audio files; their vision stage is skipped."},
            "raw": record("Camera RAW, by family.", dict.fromkeys(RAW_FAMILIES, names)),
            "rawExtensions": {**names, "description": "Camera RAW, all families."},
            "blocked": {**names, "description": "Refused."},
            "unknownExtensions": text("`accepted`: anything else is judged by its content."),
            "limits": record("Limits.", limits),
        },
        {"rawEnabled": {**names, "description": "RAW families that this service takes."}},
    )


def _key_schemas() -> dict[str, Schema]:
    key = record(
        "An API key; its secret is never listed.",
        {
            "id": identifier("The key's id."),
            "displayKey": text("Prefix and last four characters."),
            "status": choice("Whether it may be used.", KeyStatus),
            "expiresAt": nullable(moment("When it stops working; null for never.")),
            "benefitId": nullable(text("The purchase that it came with.")),
            "createdAt": moment("When it was made."),
        },
    )
    secret = record(
        "The secret that webhooks are signed with.",
        {
            "secret": text("`whsec_` and base64.", pattern="^whsec_[A-Za-z0-9+/]+=*$"),
            "createdAt": moment("When the account's first secret was made."),
            "rotatedAt": nullable(moment("When it was last rotated.")),
        },
    )
    shown_once = record("", {"key": text("The full secret, shown this once.")})
    return {
        "Key": key,
        "RotatedKey": extended("A new key in place of another.", "Key", shown_once),
        "SigningSecret": secret,
        "PortalLink": record("A short-lived link.", {"url": address("The billing page.")}),
    }


def _webhook_test() -> dict[str, Schema]:
    result = record(
        "What came back from the endpoint.",
        {
            "delivered": flag("Whether a 2xx came back."),
            "statusCode": integer("The endpoint's status; 0 when nothing answered.", minimum=0),
            "latencyMs": integer("How long it took.", minimum=0),
        },
        {"error": text("Failure class, e.g. `timeout` or `http_5xx: 503`.")},
    )
    event = record(
        "The body of a test event.",
        {
            "type": {"const": TEST_EVENT},
            "timestamp": moment("When it was made."),
            "data": record("", {"message": text("For people.")}),
        },
    )
    return {"WebhookTestResult": result, "WebhookTestEvent": event}


def _job_event() -> Schema:
    return record(
        "The body of a webhook: the job without `processedData`.",
        {
            "type": choice("What happened.", EventType),
            "timestamp": moment("When it happened."),
            "data": reference("Job"),
        },
    )


def account_schemas() -> dict[str, Schema]:
    """Components of accounts and discovery, by name."""
    return (
        {
            "Quota": _quota(),
            "QuotaResult": record("", {"api": reference("Quota")}),
            "Delivery": _delivery(),
            "JobEvent": _job_event(),
            "PriceTable": _price_table(),
            "PriceEstimate": _price_estimate(),
            "Formats": _formats(),
        }
        | _key_schemas()
        | _webhook_test()
    )
