"""Prices, estimates, formats, quota: keyless and keyed discovery."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serve_app.running_api import RunningApi, within_a_minute


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


def test_what_a_client_puts_in_front_of_the_proxys_own_entry_is_not_believed(
    anonymous: Any,
) -> None:
    addresses = (f"198.51.100.{number}" for number in range(7, 17))

    def ask() -> list[str]:
        address = next(addresses)
        answers = [anonymous("/formats", hops) for hops in (address, f"10.9.8.7, {address}")]
        return [answer.headers["x-ratelimit-remaining"] for answer in answers]

    assert within_a_minute(ask) == ["119", "118"]
