"""Prices as pure functions over one table. The estimate and the charge come from here alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.types import ProcessingMode, StageName, Tier

CURRENCY = "usd"
UNIT = "footage_hour"
ROUNDING = "half_up_per_stage"
MIN_BILLABLE_SECONDS = 30
VOLUME_THRESHOLD_SECONDS = 360_000
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Rate:
    """Cents per footage-hour: up to the month's volume threshold, and above it."""

    base: int
    volume: int


PRICES: dict[Tier, dict[StageName, Rate]] = {
    Tier.STANDARD: {
        StageName.INGEST: Rate(0, 0),
        StageName.VISION: Rate(120, 90),
        StageName.TRANSCRIPT: Rate(40, 30),
    },
    Tier.RAW: {
        StageName.INGEST: Rate(0, 0),
        StageName.VISION: Rate(180, 135),
        StageName.TRANSCRIPT: Rate(40, 30),
    },
}

MODE_ANALYSES: dict[ProcessingMode, tuple[StageName, ...]] = {
    ProcessingMode.ALL: (StageName.VISION, StageName.TRANSCRIPT),
    ProcessingMode.VISION: (StageName.VISION,),
    ProcessingMode.TRANSCRIPT: (StageName.TRANSCRIPT,),
}


def billable_seconds(duration_seconds: float) -> int:
    """Duration rounded up to whole seconds, at least the minimum."""
    return max(MIN_BILLABLE_SECONDS, math.ceil(duration_seconds))


def quote(
    billable: int,
    tier: Tier,
    stages: tuple[StageName, ...],
    *,
    audio_tracks: int = 1,
    prior_usage_seconds: int = 0,
) -> dict[StageName, int]:
    """Cents for each of ``stages``; a job across the threshold pays each part at its own rate."""
    base_seconds = min(billable, max(0, VOLUME_THRESHOLD_SECONDS - prior_usage_seconds))
    volume_seconds = billable - base_seconds
    result: dict[StageName, int] = {}
    for stage in stages:
        rate = PRICES[tier][stage]
        units = audio_tracks if stage is StageName.TRANSCRIPT else 1
        amount = (base_seconds * rate.base + volume_seconds * rate.volume) * units
        result[stage] = _round_half_up(amount) if rate.base > 0 else 0
    return result


def minimum_hold(tier: Tier, mode: ProcessingMode) -> int:
    """Cents that must be available to create a job: its mode for the minimum duration."""
    return sum(quote(MIN_BILLABLE_SECONDS, tier, MODE_ANALYSES[mode]).values())


def _round_half_up(cent_seconds: int) -> int:
    """Cent-seconds per hour to whole cents, half up, at least 1."""
    return max(1, (2 * cent_seconds + _HOUR_SECONDS) // (2 * _HOUR_SECONDS))
