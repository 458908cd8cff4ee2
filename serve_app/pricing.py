"""Prices as pure functions over one table. The estimate and the charge come from here alone."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from storage.types import ProcessingMode, StageName, Tier

_HOUR_SECONDS = 3600
MAX_ESTIMATE_SECONDS = 2_678_400
MAX_ESTIMATE_TRACKS = 16
MAX_PRIOR_USAGE_SECONDS = 10**12
"""Bounds of what ``GET /pricing/estimate`` takes."""

_DEFAULT_FILE = Path(__file__).parent / "prices.toml"

Cents = Annotated[int, Field(ge=0, le=1_000_000)]


class PriceFileError(Exception):
    """The price file cannot be read or is no complete price table."""


class Rate(BaseModel):
    """Cents per footage-hour: up to the month's volume threshold, and above it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    base: Cents
    volume: Cents


class PriceTable(BaseModel):
    """What the service charges; see ``prices.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_billable_seconds: int = Field(ge=1, le=86_400, strict=True)
    volume_threshold_seconds: int = Field(ge=0, le=10**12, strict=True)
    rates: dict[Tier, dict[StageName, Rate]]
    translation: Cents = 0
    """Of an audio track into a language, per footage-hour."""

    @model_validator(mode="after")
    def _is_complete(self) -> PriceTable:
        for tier in Tier:
            missing = set(StageName) - set(self.rates.get(tier, {}))
            if missing:
                raise ValueError(f"rates.{tier} lacks {', '.join(sorted(missing))}")
        return self


MODE_ANALYSES: dict[ProcessingMode, tuple[StageName, ...]] = {
    ProcessingMode.ALL: (StageName.VISION, StageName.TRANSCRIPT),
    ProcessingMode.VISION: (StageName.VISION,),
    ProcessingMode.TRANSCRIPT: (StageName.TRANSCRIPT,),
}


def load_prices(path: Path | None) -> PriceTable:
    """Return the table in ``path``, or the service's own; raises PriceFileError."""
    if path is None:
        return default_prices()
    try:
        return PriceTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the table"
        raise PriceFileError(f"Price file {path}: {place}: {first['msg']}.") from error
    except (OSError, ValueError) as error:
        raise PriceFileError(f"Price file {path}: {error}.") from error


@functools.cache
def default_prices() -> PriceTable:
    """The service's own table."""
    return load_prices(_DEFAULT_FILE)


def billable_seconds(prices: PriceTable, duration_seconds: float) -> int:
    """Duration rounded up to whole seconds, at least the minimum.

    Counted in milliseconds, as durations are stored and shown: an estimate
    for a job's ``durationSeconds`` is what the job was charged.
    """
    return max(prices.min_billable_seconds, -(-round(duration_seconds * 1000) // 1000))


def quote(
    prices: PriceTable,
    billable: int,
    tier: Tier,
    stages: Iterable[StageName],
    *,
    audio_tracks: int = 1,
    prior_usage_seconds: int = 0,
) -> dict[StageName, int]:
    """Cents for each of ``stages``; a job across the threshold pays each part at its own rate."""
    base_seconds = min(billable, max(0, prices.volume_threshold_seconds - prior_usage_seconds))
    volume_seconds = billable - base_seconds
    result: dict[StageName, int] = {}
    for stage in stages:
        rate = prices.rates[tier][stage]
        units = audio_tracks if stage is StageName.TRANSCRIPT else 1
        result[stage] = _cents((base_seconds * rate.base + volume_seconds * rate.volume) * units)
    return result


def waived_cents(cents: int, audio_tracks: int, charged_tracks: int) -> int:
    """Return what of the price of so many tracks is not charged where only some of them are.

    They cost their share of it, half up, and at least a cent, as ``quote`` counts.
    """
    if charged_tracks == 0 or cents == 0:
        return cents
    return cents - max(1, (2 * cents * charged_tracks + audio_tracks) // (2 * audio_tracks))


def translation_cents(prices: PriceTable, billable: int, audio_tracks: int) -> int:
    """Cents for a job's tracks in another language."""
    return _cents(billable * prices.translation * audio_tracks)


def minimum_hold(prices: PriceTable, tier: Tier, mode: ProcessingMode) -> int:
    """Cents that must be available to create a job: its mode for the minimum duration."""
    return sum(quote(prices, prices.min_billable_seconds, tier, MODE_ANALYSES[mode]).values())


def _cents(cent_seconds: int) -> int:
    """Cent-seconds per hour to whole cents: half up, at least 1 for what is not free."""
    if cent_seconds == 0:
        return 0
    return max(1, (2 * cent_seconds + _HOUR_SECONDS) // (2 * _HOUR_SECONDS))


def price_table(prices: PriceTable) -> dict[str, Any]:
    """Return the price table as ``GET /pricing`` publishes it."""
    return {
        "currency": "usd",
        "unit": "footage_hour",
        "rounding": "half_up_per_stage",
        "minBillableSeconds": prices.min_billable_seconds,
        "volumeThresholdSeconds": prices.volume_threshold_seconds,
        "rates": {
            str(tier): {
                str(stage): {"base": rate.base, "volume": rate.volume}
                for stage, rate in rates.items()
            }
            for tier, rates in prices.rates.items()
        },
    }
