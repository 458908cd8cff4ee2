"""Signatures: the vector of the standard, the official verifier, rotation."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from sqlalchemy import text
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from serve_app.webhooks.signing import new_signing_secret, signature, signed_headers
from storage import webhooks
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import Delivered, Verifier

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_vector_of_the_standard_is_reproduced() -> None:
    signed = signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp", "secret"])
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


async def test_for_24_hours_after_a_rotation_both_secrets_sign(harness: WebhookHarness) -> None:
    receiver = harness.receiver()
    account = await harness.account()
    old, new = harness.secrets[-1], new_signing_secret()
    harness.secrets.append(new)

    async def signers() -> list[str]:
        """The secrets that sign a delivery made now, in the order of their signatures."""
        await harness.attempted(await harness.event(receiver.url, account))
        delivered = receiver.received[-1]
        named = {_signature(secret, delivered): secret for secret in (old, new)}
        return [named[entry] for entry in delivered.signatures]

    async with harness.sending():
        assert await signers() == [old]
        async with harness.context.database.transaction() as connection:
            await webhooks.rotate_signing_secret(
                connection, account, harness.context.encrypter.encrypt(new)
            )
        assert await signers() == [new, old]
        harness.clock.ahead = timedelta(hours=23, minutes=59)
        assert await signers() == [new, old]
        harness.clock.ahead = timedelta(hours=24, seconds=1)
        assert await signers() == [new]


def _signature(secret: str, delivered: Delivered) -> str:
    return signature(secret, delivered.webhook_id, delivered.signed_at, delivered.body)


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
