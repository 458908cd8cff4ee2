"""Request rates: buckets, their limits, and the headers that state what is left."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from enum import StrEnum

from starlette.requests import Request

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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """The nearest address that is not one of our proxies'.

    ``X-Forwarded-For`` grows to the right, so it is read from there, and only
    as far as each hop that added to it is trusted: what a client wrote itself
    is never believed.
    """
    peer = request.client.host if request.client else "unknown"
    hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    address = peer
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        if not _is_trusted(address, trusted):
            break
        if not _is_address(hop):
            break
        address = hop
    return address


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    if not _is_address(text):
        return False
    address = ipaddress.ip_address(text)
    return any(address in network for network in trusted)
