"""Keyless discovery: interface document, prices, estimates, formats. Cacheable, with ETags."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Header, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import TypedDict

from pipelines.ingest.headers import RAW_FAMILIES
from serve_app import pricing
from serve_app.api.authentication import KeylessRoute, add_answer_headers
from serve_app.api.envelope import API_PREFIX, Context, success
from serve_app.api.openapi import answers, headers
from serve_app.api.parameters import NUMBER, WHOLE_NUMBER
from serve_app.api.schemas import Answer, Count, doc
from serve_app.media import formats
from storage.types import ProcessingMode, StageName, Tier

CACHE_HEADERS = {"Cache-Control": "public, max-age=300"}
_CACHED: dict[str, Any] = {"headers": headers("Cache-Control")}
_VERSIONED: dict[str, Any] = {"headers": headers("Cache-Control", "ETag")}


class OpenRoute(KeylessRoute):
    """Pages of any origin may read the answer, refusals included: it is the same for everybody."""

    async def _admit(self, request: Request) -> None:
        exposed = "ETag, Retry-After, X-Request-Id"
        add_answer_headers(
            request, {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": exposed}
        )
        await super()._admit(request)


router = APIRouter(prefix=API_PREFIX, route_class=OpenRoute, tags=["Discovery"])


class OpenApiDocument(TypedDict):
    """An OpenAPI 3.1 document."""

    openapi: Annotated[str, Field(pattern=r"^3\.1\.[0-9]+$", examples=["3.1.0"])]
    info: dict[str, Any]
    paths: dict[str, Any]


@router.get(
    "/openapi.json",
    response_model=OpenApiDocument,
    response_description="The document.",
    responses={200: _VERSIONED, 304: _VERSIONED | {"description": "Nothing changed."}},
)
async def get_open_api(
    request: Request,
    _: Annotated[
        str | None,
        Header(alias="If-None-Match", description="An `ETag`: answered 304 if nothing changed."),
    ] = None,
) -> Response:
    """Read this document.

    OpenAPI 3.1, not wrapped in the usual envelope."""
    body, etag = await run_in_threadpool(_document, request.app)
    answer_headers = CACHE_HEADERS | {"ETag": etag}
    conditions = request.headers.getlist("if-none-match")
    known = {part.strip().removeprefix("W/") for line in conditions for part in line.split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=answer_headers)
    return Response(body, media_type="application/json", headers=answer_headers)


@lru_cache(maxsize=1)
def _document(app: FastAPI) -> tuple[bytes, str]:
    """Return the document as served, and its ETag."""
    body = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


class RateJson(TypedDict):
    """What a stage costs."""

    base: Annotated[Count, doc("US cents per footage-hour up to the volume threshold.")]
    volume: Annotated[Count, doc("US cents per footage-hour above it.")]


class StageRates(TypedDict):
    """Rates by stage."""

    ingest: RateJson
    vision: RateJson
    transcript: RateJson


class TierRates(TypedDict):
    """Rates by tier and stage."""

    standard: StageRates
    raw: StageRates


class PriceTableJson(TypedDict):
    """Rates and the rules of their use."""

    currency: Literal["usd"]
    unit: Literal["footage_hour"]
    rounding: Literal["half_up_per_stage"]
    minBillableSeconds: Annotated[Count, doc("A shorter job costs this much.")]
    volumeThresholdSeconds: Annotated[Count, doc("Billable seconds in a UTC month.")]
    rates: TierRates


@router.get("/pricing", **answers(Answer[PriceTableJson], "The price table.", **_CACHED))
async def get_pricing(context: Context) -> Response:
    """Read the price table.

    Rates in US cents per footage-hour, by tier and stage."""
    return success(pricing.price_table(context.prices), headers=CACHE_HEADERS)


class StageCents(TypedDict):
    """Cents for each stage."""

    ingest: Count
    vision: Count
    transcript: Count


class PriceEstimate(TypedDict):
    """What one job is charged if every requested stage completes."""

    cents: Annotated[Count, doc("The charge in US cents.", 160)]
    usd: Annotated[float, doc("The charge in US dollars.", 1.6, ge=0)]
    currency: Literal["usd"]
    billableSeconds: Annotated[Count, doc("What is charged for.", 3600)]
    durationSeconds: Annotated[float, doc("As requested.", 3600, ge=0)]
    tier: Tier
    mode: ProcessingMode
    audioTracks: Annotated[int, doc("As requested.", ge=1)]
    priorUsageSeconds: Annotated[Count, doc("As requested.")]
    stages: Annotated[StageCents, Field(examples=[{"ingest": 0, "vision": 120, "transcript": 40}])]


@router.get("/pricing/estimate", **answers(Answer[PriceEstimate], "The estimate.", **_CACHED))
async def estimate_price(
    context: Context,
    duration: Annotated[
        Annotated[float, Field(ge=0, le=pricing.MAX_ESTIMATE_SECONDS), NUMBER],
        Query(alias="durationSeconds", description="Length of the media.", examples=[3600]),
    ],
    tier: Annotated[Tier, Query(description="Price tier.")] = Tier.STANDARD,
    mode: Annotated[ProcessingMode, Query(description="Which stages run.")] = ProcessingMode.ALL,
    tracks: Annotated[
        Annotated[int, Field(ge=1, le=pricing.MAX_ESTIMATE_TRACKS), WHOLE_NUMBER],
        Query(
            alias="audioTracks",
            description="Tracks to transcribe: audio streams of the video, or separate audio "
            "files in their place, and each channel of a file with `perChannelTranscription`.",
        ),
    ] = 1,
    prior: Annotated[
        Annotated[int, Field(ge=0, le=pricing.MAX_PRIOR_USAGE_SECONDS), WHOLE_NUMBER],
        Query(
            alias="priorUsageSeconds", description="Billable seconds already used this UTC month."
        ),
    ] = 0,
) -> Response:
    """Estimate a price.

    Exactly what one job is charged if every requested stage completes."""
    prices = context.prices
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
        "currency": "usd",
        "billableSeconds": billable,
        "durationSeconds": int(duration) if duration == int(duration) else duration,
        "tier": tier,
        "mode": mode,
        "audioTracks": tracks,
        "priorUsageSeconds": prior,
        "stages": {stage: quote.get(stage, 0) for stage in StageName},
    }
    return success(estimate, headers=CACHE_HEADERS)


class RawFamilies(TypedDict):
    """Camera RAW, by family."""

    r3d: list[str]
    braw: list[str]
    arri: list[str]


class FormatLimits(TypedDict):
    """Limits."""

    standardMaxBytes: Annotated[int, doc("Largest file, standard tier.", ge=1)]
    rawMaxBytes: Annotated[int, doc("Largest file, camera RAW tier.", ge=1)]
    maxDurationSec: Annotated[int, doc("Longest media.", ge=1)]
    uploadUrlExpirySeconds: Annotated[int, doc("Life of upload URLs.", ge=1)]


class Formats(TypedDict):
    """File extensions and limits."""

    standard: Annotated[list[str], doc("Video files of the standard tier.", ["mp4", "mov"])]
    audioOnly: Annotated[
        list[str], doc("Audio files; their vision stage is skipped.", ["wav", "mp3"])
    ]
    raw: RawFamilies
    rawExtensions: Annotated[list[str], doc("Camera RAW, all families.")]
    rawEnabled: Annotated[list[str], doc("RAW families that this service takes.", [])]
    blocked: Annotated[list[str], doc("Refused.", ["exe"])]
    unknownExtensions: Annotated[
        str, doc("`accepted`: anything else is judged by its content.", "accepted")
    ]
    limits: FormatLimits


@router.get("/formats", **answers(Answer[Formats], "Formats and limits.", **_CACHED))
async def list_formats(context: Context) -> Response:
    """List formats and limits.

    File extensions that are taken and refused, and what the limits are."""
    settings = context.settings
    data = {
        "standard": formats.STANDARD,
        "audioOnly": formats.AUDIO_ONLY,
        "raw": RAW_FAMILIES,
        "rawExtensions": [name for family in RAW_FAMILIES.values() for name in family],
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
    return success(data, headers=CACHE_HEADERS)
