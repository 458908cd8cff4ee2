"""Request rates: buckets, their limits, and the headers that tell clients where they stand."""

from __future__ import annotations

import math
from enum import StrEnum

from serve_app.errors import ApiError, ErrorCode
from storage.access import Window


class Bucket(StrEnum):
    """What is counted together, per account (``discovery``: per client address)."""

    READS = "reads"
    CREATION = "creation"
    WRITES = "writes"
    WEBHOOK_TEST = "webhook_test"
    DISCOVERY = "discovery"


LIMITS: dict[Bucket, int] = {
    Bucket.READS: 600,
    Bucket.CREATION: 30,
    Bucket.WRITES: 120,
    Bucket.WEBHOOK_TEST: 5,
    Bucket.DISCOVERY: 120,
}
"""Requests a minute."""


def rate_headers(bucket: Bucket, window: Window) -> dict[str, str]:
    """``X-RateLimit-*`` for every answer that was counted."""
    limit = LIMITS[bucket]
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(max(0, limit - window.used)),
        "X-RateLimit-Reset": str(window.resets_at),
    }


def check_rate(bucket: Bucket, window: Window) -> None:
    """Raises RATE_LIMITED if this request is one too many."""
    if window.used > LIMITS[bucket]:
        wait_seconds = max(1, math.ceil(window.resets_at - window.now))
        raise ApiError(
            ErrorCode.RATE_LIMITED,
            f"At most {LIMITS[bucket]} such requests a minute.",
            headers={"Retry-After": str(wait_seconds)},
        )
