"""What an attempt's outcome means for its event: the delivery rules, pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from serve_app.webhooks.sending import Outcome
from storage.types import DeliveryStatus

BACKOFF_SECONDS = (10, 20, 40, 80, 160, 320, 600)
"""Between the attempts, one after the other."""

ATTEMPTS = len(BACKOFF_SECONDS) + 1
JITTER = 0.1
"""The largest part of a pause by which it is prolonged."""

LONGEST_PAUSE_SECONDS = 600.0

FINAL_FAILURES = frozenset({"redirect", "blocked_address"})
GONE = 410
TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the event stands after the attempt, and how long it now waits, if it does."""

    status: DeliveryStatus
    pause_seconds: float | None = None


def judge(outcome: Outcome, *, attempts_before: int, chance: float, now: datetime) -> Verdict:
    """The rules in their order. ``chance`` in [0, 1) decides the jitter; ``now`` is aware."""
    if outcome.delivered:
        return Verdict(DeliveryStatus.DELIVERED)
    if outcome.status_code == GONE:
        return Verdict(DeliveryStatus.DISABLED)
    if _is_final(outcome) or attempts_before + 1 >= ATTEMPTS:
        return Verdict(DeliveryStatus.FAILED)
    pause = pause_seconds(attempts_before, chance)
    wished = retry_after_seconds(outcome.retry_after, now)
    return Verdict(
        DeliveryStatus.PENDING_RETRY, min(max(pause, wished or 0.0), LONGEST_PAUSE_SECONDS)
    )


def _is_final(outcome: Outcome) -> bool:
    refused = 400 <= outcome.status_code < 500 and outcome.status_code != TOO_MANY_REQUESTS
    return refused or outcome.failure in FINAL_FAILURES


def pause_seconds(attempts_before: int, chance: float) -> float:
    """The pause after the attempt that ``attempts_before`` others preceded, its jitter included."""
    pause = BACKOFF_SECONDS[attempts_before] * (1 + JITTER * chance)
    return min(pause, LONGEST_PAUSE_SECONDS)


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """``Retry-After`` (RFC 9110, 10.2.3): seconds or an HTTP date; None if it is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_PAUSE_SECONDS)
    try:
        wanted = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if wanted.tzinfo is None:
        wanted = wanted.replace(tzinfo=now.tzinfo)
    return min(max((wanted - now).total_seconds(), 0.0), LONGEST_PAUSE_SECONDS)


def error_text(outcome: Outcome) -> str | None:
    """``lastError``: the failure's class, and below it what the endpoint answered."""
    if outcome.failure is None:
        return None
    return f"{outcome.failure}\n{outcome.body}" if outcome.body else outcome.failure
