"""Keyless discovery: interface document, prices, estimates, formats. Cacheable, with ETags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve_app import formats, pricing
from serve_app.api.authentication import KeylessRoute
from serve_app.api.context import API_PREFIX, context_of
from serve_app.api.envelope import success
from serve_app.api.queries import one_of, read_integer, read_number
from serve_app.errors import invalid
from serve_app.pricing import (
    MAX_ESTIMATE_SECONDS,
    MAX_ESTIMATE_TRACKS,
    MAX_PRIOR_USAGE_SECONDS,
    price_table,
)
from storage.types import ProcessingMode, StageName, Tier

CACHE_HEADERS = {"Cache-Control": "public, max-age=300"}

router = APIRouter(prefix=API_PREFIX, route_class=KeylessRoute)


@router.get("/openapi.json", operation_id="getOpenApi")
async def get_openapi(request: Request) -> Response:
    """The OpenAPI 3.1 document of this interface, unwrapped."""
    from serve_app.discovery.openapi import openapi_bytes

    body = openapi_bytes()
    etag = f'"{_digest(body)}"'
    if _matches(request.headers.getlist("if-none-match"), etag):
        return Response(status_code=304, headers=CACHE_HEADERS | {"ETag": etag})
    headers = CACHE_HEADERS | {"ETag": etag}
    return Response(body, media_type="application/json", headers=headers)


@lru_cache(maxsize=4)
def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _matches(conditions: Iterable[str], etag: str) -> bool:
    known = {part.strip().removeprefix("W/") for line in conditions for part in line.split(",")}
    return etag in known or "*" in known


@router.get("/pricing", operation_id="getPricing")
async def get_pricing(request: Request) -> Response:
    """Rates in cents per footage-hour."""
    return success(request, price_table(context_of(request).prices), headers=CACHE_HEADERS)


@router.get("/pricing/estimate", operation_id="estimatePrice")
async def estimate_price(request: Request) -> Response:
    """What one job will be charged if every requested stage completes."""
    duration = read_number(request, "durationSeconds", low=0, high=MAX_ESTIMATE_SECONDS)
    if duration is None:
        raise invalid("durationSeconds is required.", "durationSeconds")
    tier = Tier(one_of(request, "tier", Tier) or Tier.STANDARD)
    mode = ProcessingMode(one_of(request, "mode", ProcessingMode) or ProcessingMode.ALL)
    tracks = read_integer(request, "audioTracks", low=1, high=MAX_ESTIMATE_TRACKS) or 1
    prior = read_integer(request, "priorUsageSeconds", low=0, high=MAX_PRIOR_USAGE_SECONDS) or 0
    prices = context_of(request).prices
    billable = pricing.billable_seconds(prices, duration)
    quote = pricing.quote(
        prices,
        billable,
        tier,
        pricing.MODE_ANALYSES[mode],
        audio_tracks=tracks,
        prior_usage_seconds=prior,
    )
    cents = sum(quote.values())
    estimate = {
        "cents": cents,
        "usd": cents / 100,
        "currency": pricing.CURRENCY,
        "billableSeconds": billable,
        "durationSeconds": int(duration) if duration == int(duration) else duration,
        "tier": str(tier),
        "mode": str(mode),
        "audioTracks": tracks,
        "priorUsageSeconds": prior,
        "stages": {str(stage): quote.get(stage, 0) for stage in StageName},
    }
    return success(request, estimate, headers=CACHE_HEADERS)


@router.get("/formats", operation_id="listFormats")
async def list_formats(request: Request) -> Response:
    """File types and limits."""
    settings = context_of(request).settings
    data = {
        "standard": formats.STANDARD,
        "audioOnly": formats.AUDIO_ONLY,
        "raw": formats.RAW_FAMILIES,
        "rawExtensions": [name for family in formats.RAW_FAMILIES.values() for name in family],
        "rawEnabled": sorted(settings.raw_decoders),
        "blocked": formats.BLOCKED,
        "unknownExtensions": formats.UNKNOWN_EXTENSIONS,
        "limits": {
            "standardMaxBytes": settings.standard_max_bytes,
            "rawMaxBytes": settings.raw_max_bytes,
            "maxDurationSec": formats.MAX_DURATION_SECONDS,
            "uploadUrlExpirySeconds": settings.upload_lifetime_seconds,
        },
    }
    return success(request, data, headers=CACHE_HEADERS)
