"""Signatures: the vector of the standard, the official verifier, rotation."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from serve_app.webhooks.sending import (
    ATTEMPTS,
    BACKOFF_SECONDS,
    Outcome,
    judge,
    pause_seconds,
    retry_after_seconds,
)
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import webhooks
from storage.types import DeliveryStatus
from tests.tables import every
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import Delivered, Verifier

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@every("change", ["body", "webhook-id", "webhook-timestamp", "secret"])
def test_the_official_verifier_accepts_what_is_signed_and_nothing_else(change: str) -> None:
    now = int(time.time())
    body = '{"type":"job.completed","n":"ü"}'.encode()
    headers = signed_headers([SECRET], "a:job.completed", now, body)
    assert Webhook(SECRET).verify(body, headers) == json.loads(body)
    changed = {
        "body": (SECRET, headers, body + b" "),
        "webhook-id": (SECRET, headers | {"webhook-id": "b:job.completed"}, body),
        "webhook-timestamp": (SECRET, headers | {"webhook-timestamp": str(now + 1)}, body),
        "secret": (new_signing_secret(), headers, body),
    }
    secret, sent, content = changed[change]
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(content, sent)


async def test_the_first_delivery_of_an_account_makes_its_secret(harness: WebhookHarness) -> None:
    account = await harness.account()
    await harness.execute("DELETE FROM signing_secrets")
    harness.secrets.clear()
    seen: list[Delivered] = []
    receiver = harness.receiver()
    receiver.verify = seen.append
    async with harness.sending():
        await harness.attempted(await harness.event(receiver.url, account))
        await harness.attempted(await harness.event(receiver.url, account))
    async with harness.context.database.transaction() as connection:
        stored = await webhooks.get_or_create_signing_secret(connection, account, b"never used")
    Verifier([harness.context.encrypter.decrypt(stored.current)])(seen[0])
    Verifier([harness.context.encrypter.decrypt(stored.current)])(seen[1])


async def test_secrets_are_encrypted_at_rest(harness: WebhookHarness) -> None:
    await harness.account()
    [row] = await harness.context.database.query(text("SELECT current FROM signing_secrets"))
    stored = bytes(row["current"])
    assert harness.secrets[0].encode() not in stored
    assert harness.secrets[0].removeprefix("whsec_").encode() not in stored
    assert harness.context.encrypter.decrypt(stored) == harness.secrets[0]


async def test_a_secret_that_cannot_be_opened_sends_nothing_unsigned(
    harness: WebhookHarness,
) -> None:
    """The operator changed the service's key: the event waits, others go on."""
    receiver = harness.receiver()
    account = await harness.account()
    await harness.execute("UPDATE signing_secrets SET current = 'other key'")
    broken = await harness.event(receiver.url, account)
    async with harness.sending():
        sound = await harness.event(receiver.url)
        await harness.attempted(sound)
        row = await harness.row(broken)
    assert (row["attempts"], row["status"]) == (0, "in_flight")
    assert [delivered.webhook_id for delivered in receiver.received] == [sound]


NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def outcome(status: int, failure: str | None, retry_after: str | None = None) -> Outcome:
    return Outcome(status, 1, failure, retry_after=retry_after)


UNAVAILABLE = outcome(503, "http_5xx: 503")


@every(
    ("came", "status"),
    [
        (outcome(200, None), "delivered"),
        (outcome(410, "http_4xx: 410"), "disabled"),
        (outcome(429, "http_4xx: 429"), "pending_retry"),
        (UNAVAILABLE, "pending_retry"),
        (outcome(0, "timeout"), "pending_retry"),
        (outcome(0, "connection"), "pending_retry"),
        (outcome(0, "tls"), "pending_retry"),
        (outcome(0, "dns"), "pending_retry"),
        (outcome(404, "http_4xx: 404"), "failed"),
        (outcome(302, "redirect"), "failed"),
        (outcome(0, "blocked_address"), "failed"),
    ],
    ids=lambda value: value.failure if isinstance(value, Outcome) else value,
)
def test_each_outcome_has_its_status(came: Outcome, status: str) -> None:
    verdict = judge(came, attempts_before=0, chance=0, now=NOW)
    assert verdict.status == status
    assert (verdict.pause_seconds is not None) == (status == "pending_retry")


def test_the_eighth_attempt_is_the_last() -> None:
    stands = [
        judge(UNAVAILABLE, attempts_before=before, chance=0.5, now=NOW).status
        for before in range(8)
    ]
    assert stands == [DeliveryStatus.PENDING_RETRY] * 7 + [DeliveryStatus.FAILED]
    assert ATTEMPTS == 8


@given(before=st.integers(0, ATTEMPTS - 2), chance=st.floats(0, 1, exclude_max=True))
def test_pauses_grow_from_10_seconds_to_10_minutes_with_a_tenth_of_jitter(
    before: int, chance: float
) -> None:
    base = BACKOFF_SECONDS[before]
    assert base <= pause_seconds(before, chance) <= min(base * 1.1, 600)


@every(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("0", 0),
        ("601", 600),
        ("9" * 400, 600),
        ("Sat, 21 Nov 2026 12:02:00 GMT", 120),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0),
        ("Sun, 21 Nov 2027 12:00:00 GMT", 600),
        ("Saturday, 21-Nov-26 12:02:00 GMT", 120),
        ("Sat Nov 21 12:02:00 2026", 120),
        ("Sat, 21 Nov 2026 13:02:00 +0100", 120),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("Sat, 21 Nov 2026 12:02:00 +99999999999999", None),
        ("Sat, 99 Nov 2026 12:02:00 GMT", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date_up_to_600_seconds(
    value: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(value, NOW) == seconds


@given(st.text(max_size=60))
def test_no_retry_after_is_too_odd_to_be_read(value: str) -> None:
    found = retry_after_seconds(value, NOW)
    assert found is None or 0 <= found <= 600


@every(
    ("before", "value", "pause"),
    [(0, "120", 120), (0, "5", 10), (4, "120", 160), (0, "3600", 600), (0, "soon", 10)],
    ids=["longer", "shorter", "shorter than a later pause", "too long", "nonsense"],
)
def test_only_a_longer_retry_after_is_honoured(before: int, value: str, pause: float) -> None:
    came = outcome(429, "http_4xx: 429", retry_after=value)
    assert judge(came, attempts_before=before, chance=0, now=NOW).pause_seconds == pause
