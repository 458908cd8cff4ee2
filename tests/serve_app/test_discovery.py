"""Prices, estimates, formats, quota: keyless and keyed discovery."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serve_app.running_api import Customer, RunningApi, within_a_minute
from tests.serve_app.test_jobs_api import expect_error
from tests.tables import every


@pytest.fixture
def anonymous(api: RunningApi) -> Any:
    """A client behind a trusted proxy, with an address of this test's own."""
    import itertools

    counter = itertools.count(1)

    def get(path: str, address: str | None = None) -> httpx.Response:
        shown = address or f"203.0.113.{next(counter) % 250 + 1}"
        return api.client.get(path, headers={"X-Forwarded-For": shown})

    return get


def test_the_price_table_is_the_one_decided(anonymous: Any) -> None:
    table = anonymous("/pricing").json()["data"]
    assert table == {
        "currency": "usd",
        "unit": "footage_hour",
        "rounding": "half_up_per_stage",
        "minBillableSeconds": 30,
        "volumeThresholdSeconds": 360_000,
        "rates": {
            "standard": {
                "ingest": {"base": 0, "volume": 0},
                "vision": {"base": 120, "volume": 90},
                "transcript": {"base": 40, "volume": 30},
            },
            "raw": {
                "ingest": {"base": 0, "volume": 0},
                "vision": {"base": 180, "volume": 135},
                "transcript": {"base": 40, "volume": 30},
            },
        },
    }


ESTIMATES = [
    ("durationSeconds=3600", 160, 3600),
    ("durationSeconds=0", 2, 30),
    ("durationSeconds=3600&mode=vision", 120, 3600),
    ("durationSeconds=3600&mode=transcript&audioTracks=4", 160, 3600),
    ("durationSeconds=3600&tier=raw", 220, 3600),
    ("durationSeconds=3600&priorUsageSeconds=360000", 120, 3600),
    ("durationSeconds=3600&priorUsageSeconds=358200&mode=vision", 105, 3600),
    ("durationSeconds=45.2&mode=transcript", 1, 46),
    ("durationSeconds=135&mode=transcript", 2, 135),
]


@every(("query", "cents", "billable"), ESTIMATES)
def test_estimates(anonymous: Any, query: str, cents: int, billable: int) -> None:
    estimate = anonymous(f"/pricing/estimate?{query}").json()["data"]
    assert (estimate["cents"], estimate["billableSeconds"]) == (cents, billable)
    assert estimate["usd"] == pytest.approx(cents / 100)
    assert {"currency", "durationSeconds", "tier", "mode", "audioTracks"} <= set(estimate)


@every(
    ("query", "param"),
    [
        ("", "durationSeconds"),
        ("durationSeconds=x", "durationSeconds"),
        ("durationSeconds=-1", "durationSeconds"),
        ("durationSeconds=2678401", "durationSeconds"),
        ("durationSeconds=nan", "durationSeconds"),
        ("durationSeconds=1&tier=gold", "tier"),
        ("durationSeconds=1&mode=both", "mode"),
        ("durationSeconds=1&audioTracks=0", "audioTracks"),
        ("durationSeconds=1&audioTracks=17", "audioTracks"),
        ("durationSeconds=1&priorUsageSeconds=-1", "priorUsageSeconds"),
    ],
)
def test_bad_estimates_name_the_parameter(anonymous: Any, query: str, param: str) -> None:
    expect_error(anonymous(f"/pricing/estimate?{query}"), 400, "INVALID_REQUEST", param)


def test_formats_tell_types_and_limits(api: RunningApi, anonymous: Any) -> None:
    data = anonymous("/formats").json()["data"]
    assert {"mp4", "mkv", "gif"} <= set(data["standard"])
    assert data["raw"] == {"r3d": ["r3d"], "braw": ["braw"], "arri": ["ari", "arx"]}
    assert data["rawExtensions"] == ["r3d", "braw", "ari", "arx"]
    assert data["limits"] == {
        "standardMaxBytes": api.settings.standard_max_bytes,
        "rawMaxBytes": 100 * 1024**3,
        "maxDurationSec": 86_400,
        "uploadUrlExpirySeconds": 3600,
    }


@pytest.mark.parametrize(
    "path", ["/pricing", "/pricing/estimate?durationSeconds=1", "/formats", "/openapi.json"]
)
def test_discovery_is_cacheable_counted_and_the_same_with_a_key(
    api: RunningApi, customer: Customer, anonymous: Any, path: str
) -> None:
    answer = anonymous(path)
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.headers["x-ratelimit-limit"] == "120"
    keyed = api.client.get(path, headers=customer.headers)
    if path == "/openapi.json":
        assert keyed.content == answer.content
    else:
        assert keyed.json()["data"] == answer.json()["data"]


def test_the_interface_document_has_an_etag(anonymous: Any, api: RunningApi) -> None:
    etag = anonymous("/openapi.json").headers["etag"]
    again = api.client.get("/openapi.json", headers={"If-None-Match": etag})
    assert again.status_code == 304
    assert again.content == b""


def test_an_address_has_120_requests_a_minute_and_another_address_its_own(
    anonymous: Any, api: RunningApi
) -> None:
    addresses = (f"198.51.100.{number}" for number in range(7, 17))

    def ask() -> tuple[str, list[Any]]:
        address = next(addresses)
        return address, [anonymous("/formats", address) for _ in range(121)]

    address, answers = within_a_minute(ask)
    assert [a.status_code for a in answers] == [200] * 120 + [429]
    error = expect_error(answers[-1], 429, "RATE_LIMITED")
    assert error["code"] == "RATE_LIMITED"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert answers[-1].headers["x-ratelimit-remaining"] == "0"
    assert anonymous("/formats", "198.51.100.99").status_code == 200
    # What a client puts in front of the proxy's own entry is not believed.
    forged = api.client.get("/formats", headers={"X-Forwarded-For": f"10.9.8.7, {address}"})
    assert forged.status_code == 429


def test_quota_tells_credits_holds_and_usage(api: RunningApi, customer: Customer) -> None:
    api.client.post("/jobs", json={"fileName": "a.mp4"}, headers=customer.headers)
    quota = api.client.get("/quota", headers=customer.headers).json()["data"]["api"]
    assert quota == {
        "available": True,
        "balanceCents": 1000,
        "heldCents": 2,
        "availableCents": 998,
        "payAsYouGo": False,
        "monthUsageSeconds": 0,
        "tier": "standard",
        "volumeThresholdSeconds": 360_000,
    }
