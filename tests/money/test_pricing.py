"""Prices: one table, one function for the estimate and the charge, exact to the cent."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app import pricing
from serve_app.pricing import PriceFileError, PriceTable, Rate, load_prices
from storage.types import ProcessingMode, StageName, Tier
from tests.tables import every

PRICES = pricing.default_prices()
THRESHOLD = PRICES.volume_threshold_seconds
HOUR = 3600
ANALYSES = pricing.MODE_ANALYSES[ProcessingMode.ALL]

DECIDED = {
    (Tier.STANDARD, StageName.INGEST): (0, 0),
    (Tier.STANDARD, StageName.VISION): (120, 90),
    (Tier.STANDARD, StageName.TRANSCRIPT): (40, 30),
    (Tier.RAW, StageName.INGEST): (0, 0),
    (Tier.RAW, StageName.VISION): (180, 135),
    (Tier.RAW, StageName.TRANSCRIPT): (40, 30),
}


def test_the_table_is_the_one_decided() -> None:
    shown = {
        (tier, stage): (rate.base, rate.volume)
        for tier, rates in PRICES.rates.items()
        for stage, rate in rates.items()
    }
    assert shown == DECIDED
    assert (PRICES.min_billable_seconds, THRESHOLD) == (30, 360_000)


CASES = [
    pytest.param(0, Tier.STANDARD, 1, 0, {"vision": 1, "transcript": 1}, id="the minimum"),
    pytest.param(HOUR, Tier.STANDARD, 1, 0, {"vision": 120, "transcript": 40}, id="an hour"),
    pytest.param(HOUR, Tier.RAW, 1, 0, {"vision": 180, "transcript": 40}, id="an hour of RAW"),
    pytest.param(HOUR, Tier.STANDARD, 5, 0, {"vision": 120, "transcript": 200}, id="five tracks"),
    pytest.param(
        HOUR,
        Tier.STANDARD,
        1,
        THRESHOLD,
        {"vision": 90, "transcript": 30},
        id="above the threshold",
    ),
    pytest.param(
        HOUR,
        Tier.STANDARD,
        1,
        THRESHOLD - HOUR,
        {"vision": 120, "transcript": 40},
        id="up to the threshold exactly",
    ),
    pytest.param(
        2 * HOUR,
        Tier.STANDARD,
        2,
        THRESHOLD - HOUR,
        {"vision": 120 + 90, "transcript": 2 * (40 + 30)},
        id="half on each side",
    ),
    # 45 s at 120 are exactly 1.5 cents, 44 s a little less; 135 s at 40 are 1.5 cents.
    pytest.param(45, Tier.STANDARD, 1, 0, {"vision": 2, "transcript": 1}, id="half up"),
    pytest.param(44, Tier.STANDARD, 1, 0, {"vision": 1, "transcript": 1}, id="just below half"),
    pytest.param(
        135, Tier.STANDARD, 1, 0, {"vision": 5, "transcript": 2}, id="half up, transcript"
    ),
    pytest.param(30.001, Tier.RAW, 1, 0, {"vision": 2, "transcript": 1}, id="a started second"),
]


@every(("duration", "tier", "tracks", "prior", "expected"), CASES)
def test_prices(
    duration: float, tier: Tier, tracks: int, prior: int, expected: dict[str, int]
) -> None:
    billable = pricing.billable_seconds(PRICES, duration)
    quote = pricing.quote(
        PRICES, billable, tier, ANALYSES, audio_tracks=tracks, prior_usage_seconds=prior
    )
    assert {str(stage): cents for stage, cents in quote.items()} == expected


BILLABLE = [
    pytest.param(0, 30, id="nothing"),
    pytest.param(29.999, 30, id="below the minimum"),
    pytest.param(30, 30, id="the minimum"),
    pytest.param(30.0004, 30, id="less than a millisecond more"),
    pytest.param(30.0006, 31, id="a millisecond more"),
    pytest.param(60.99, 61, id="rounded up"),
    pytest.param(0.1 + 0.2 + 60.7, 61, id="61 s as floating point adds them up"),
]


@every(("duration", "expected"), BILLABLE)
def test_billable_seconds(duration: float, expected: int) -> None:
    assert pricing.billable_seconds(PRICES, duration) == expected


rates = st.builds(Rate, base=st.integers(0, 1000), volume=st.integers(0, 1000))
tables = st.builds(
    PriceTable,
    min_billable_seconds=st.integers(1, 120),
    volume_threshold_seconds=st.integers(0, 10**6),
    rates=st.fixed_dictionaries(
        {tier: st.fixed_dictionaries(dict.fromkeys(StageName, rates)) for tier in Tier}
    ),
)
durations = st.floats(0, 2_678_400, allow_nan=False)
usages = st.integers(0, 2 * 10**6)
tracks_ = st.integers(1, 16)
tiers = st.sampled_from(list(Tier))


@given(tables, durations, tiers, tracks_, usages)
def test_each_part_of_a_job_is_paid_at_its_own_rate_and_rounded_half_up(
    table: PriceTable, duration: float, tier: Tier, tracks: int, prior: int
) -> None:
    """Held against exact decimal arithmetic, one second at a time in effect."""
    billable = pricing.billable_seconds(table, duration)
    below = max(0, min(billable, table.volume_threshold_seconds - prior))
    quote = pricing.quote(
        table, billable, tier, StageName, audio_tracks=tracks, prior_usage_seconds=prior
    )
    for stage, cents in quote.items():
        rate = table.rates[tier][stage]
        units = tracks if stage is StageName.TRANSCRIPT else 1
        exact = Decimal((below * rate.base + (billable - below) * rate.volume) * units) / HOUR
        rounded = int(exact.quantize(Decimal(1), ROUND_HALF_UP))
        assert cents == (max(1, rounded) if exact > 0 else 0)


@given(durations, tiers, tracks_, usages, st.integers(0, 10**5))
def test_longer_media_are_never_cheaper(
    duration: float, tier: Tier, tracks: int, prior: int, more: int
) -> None:
    def price(seconds: float) -> int:
        billable = pricing.billable_seconds(PRICES, seconds)
        quote = pricing.quote(
            PRICES, billable, tier, ANALYSES, audio_tracks=tracks, prior_usage_seconds=prior
        )
        return sum(quote.values())

    assert price(duration) <= price(duration + more)


@given(durations, tiers, tracks_)
def test_the_minimum_hold_never_exceeds_any_price_of_the_first_tier_of_usage(
    duration: float, tier: Tier, tracks: int
) -> None:
    for mode, stages in pricing.MODE_ANALYSES.items():
        billable = pricing.billable_seconds(PRICES, duration)
        quote = pricing.quote(PRICES, billable, tier, stages, audio_tracks=tracks)
        assert pricing.minimum_hold(PRICES, tier, mode) <= sum(quote.values())


@given(durations)
def test_the_duration_as_shown_is_billed_like_the_duration_as_measured(duration: float) -> None:
    shown = round(duration * 1000) / 1000
    assert pricing.billable_seconds(PRICES, shown) == pricing.billable_seconds(PRICES, duration)


OWN = """
min_billable_seconds = 10
volume_threshold_seconds = 100
rates.standard.ingest = { base = 7, volume = 0 }
rates.standard.vision = { base = 0, volume = 3600 }
rates.standard.transcript = { base = 3600, volume = 0 }
rates.raw.ingest = { base = 0, volume = 0 }
rates.raw.vision = { base = 0, volume = 0 }
rates.raw.transcript = { base = 0, volume = 0 }
"""


def test_another_file_takes_the_tables_place(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(OWN)
    table = load_prices(path)
    quote = pricing.quote(table, 150, Tier.STANDARD, StageName, prior_usage_seconds=50)
    # 50 s below the threshold, 100 s above; ingest's thousandth of a cent is a cent.
    assert quote == {"ingest": 1, "vision": 100, "transcript": 50}
    assert pricing.billable_seconds(table, 1) == 10


BROKEN = [
    pytest.param("min_billable_seconds = ", "Invalid", id="no TOML"),
    pytest.param(OWN.replace("rates.raw.vision", "rates.raw.sight"), "sight", id="unknown stage"),
    pytest.param(OWN.replace("base = 7", "base = -7"), "ingest.base", id="a negative rate"),
    pytest.param(OWN.replace("base = 7", "base = 7.5"), "ingest.base", id="half a cent"),
    pytest.param(OWN + "discount = 3", "discount", id="an unknown field"),
    pytest.param(
        OWN.replace("rates.raw.vision = { base = 0, volume = 0 }", ""),
        "rates.raw lacks vision",
        id="a missing rate",
    ),
]


@every(("content", "complaint"), BROKEN)
def test_a_broken_price_file_is_refused_in_a_sentence(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(content)
    with pytest.raises(PriceFileError, match=complaint):
        load_prices(path)


def test_a_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceFileError, match=r"nowhere\.toml"):
        load_prices(tmp_path / "nowhere.toml")
