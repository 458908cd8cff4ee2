"""When a client asks again: the API's retry rules as a pure function."""

from __future__ import annotations

import random
from collections.abc import Mapping

PATIENCE_SECONDS = 60.0
"""A longer ``Retry-After`` than this, or more waiting in all, ends a request."""
MAX_SERVER_FAILURES = 4
"""Attempts at most where the server failed or could not be reached."""

_WAIT_AND_RETRY = frozenset({"IDEMPOTENCY_IN_PROGRESS", "RESULTS_NOT_READY"})


def retry_delay_seconds(
    status: int, code: str, headers: Mapping[str, str], *, attempt: int, waited_seconds: float
) -> float | None:
    """Seconds until the next attempt after an error answer; None when it is final.

    ``attempt`` counts from 1. Every 429 and 503, and the two codes of 409 that pass,
    are waited out as long as the server says; 500, 502 and 504 with growing pauses.
    """
    if status in {429, 503} or code in _WAIT_AND_RETRY:
        delay = _stated_delay_seconds(headers.get("retry-after")) or backoff_seconds(attempt)
        return delay if waited_seconds + delay <= PATIENCE_SECONDS else None
    if status in {500, 502, 504} and attempt < MAX_SERVER_FAILURES:
        return backoff_seconds(attempt)
    return None


def backoff_seconds(attempt: int) -> float:
    """0.5, 1, 2 … seconds, up to a quarter less or more so that clients do not march in step."""
    return float(0.5 * 2 ** min(attempt - 1, 4) * random.uniform(0.75, 1.25))


def _stated_delay_seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds; its other form, a date, is not used by this API."""
    if header is None or not header.strip().isdigit():
        return None
    return float(header)
