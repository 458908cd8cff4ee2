"""Prices, estimates, formats, quota: keyless and keyed discovery."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serve_app.running_api import RunningApi, within_a_minute
from tests.serve_app.test_jobs_api import expect_error


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
