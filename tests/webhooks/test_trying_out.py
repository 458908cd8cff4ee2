"""``vas webhooks listen``, ``replay`` and ``secret``, as integrators and operators use them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from serve_app.cli.accounts import DEMO_KEY_FILE, ensure_demo_account, signing_secret
from serve_app.cli.main import app, user_sentence
from serve_app.jobs.service import ReplayError, replay
from serve_app.webhooks.listening import Listener, listening_server, own_certificate
from serve_app.webhooks.signing import (
    VerificationError,
    decode_secret,
    new_signing_secret,
    signed_headers,
    verify,
)
from storage import endpoints, jobs, keys, webhooks
from storage.tables import WebhookEndpoint
from storage.types import EventType
from storage.webhooks import NewEvent
from tests.places import PROJECT
from tests.serve_app.running_api import RunningApi
from tests.tables import every
from tests.webhooks.harness import WebhookHarness
from tests.webhooks.receivers import in_turn, status

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"type": "job.completed"}'
NOW = 1_800_000_000


def sent(**changes: str) -> dict[str, str]:
    """The headers of a good delivery, some of them changed."""
    return signed_headers([SECRET], "a:job.completed", NOW, BODY) | changes


def test_a_good_delivery_verifies_by_any_of_the_receivers_secrets() -> None:
    verify([SECRET], sent(), BODY, NOW)
    verify([new_signing_secret(), SECRET], sent(), BODY, NOW + 300)
    both = signed_headers([new_signing_secret(), SECRET], "a", NOW, BODY)
    verify([SECRET], both, BODY, NOW - 300)


@every(
    ("changes", "body", "now", "said"),
    [
        ({"webhook-id": ""}, BODY, NOW, "the header webhook-id is missing"),
        ({"webhook-signature": ""}, BODY, NOW, "the header webhook-signature is missing"),
        ({"webhook-timestamp": "soon"}, BODY, NOW, "'soon', no Unix time"),
        ({}, BODY, NOW + 301, "signed 301 seconds old"),
        ({}, BODY, NOW - 301, "301 seconds in the future"),
        ({"webhook-id": "b"}, BODY, NOW, "none of its 1 signatures fits"),
        ({"webhook-signature": "v1,x v2,ü"}, BODY, NOW, "none of its 2 signatures fits"),
        ({}, BODY + b" ", NOW, "or the body changed on its way"),
    ],
    ids=["no id", "no signature", "no time", "old", "future", "other id", "nonsense", "body"],
)
def test_what_does_not_verify_is_explained(
    changes: dict[str, str], body: bytes, now: float, said: str
) -> None:
    with pytest.raises(VerificationError, match=re.escape(said)):
        verify([SECRET], sent(**changes), body, now)


@contextlib.contextmanager
def listening(folder: Path, listener: Listener) -> Iterator[tuple[str, Path]]:
    """The URL of a running local receiver, and its authority."""
    authority, tls = own_certificate(folder)
    with listening_server(listener, "127.0.0.1", 0, tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}/", authority
        server.shutdown()
        thread.join(120)


async def test_the_listener_verifies_and_prints_what_a_sender_sends_it(
    harness: WebhookHarness, tmp_path: Path
) -> None:
    said: list[str] = []
    account = await harness.account()
    listener = Listener(harness.secrets, said.append, [500, 204])
    with listening(tmp_path / "own", listener) as (url, authority):
        harness.change_settings(webhook_ca_file=authority)
        event_id = await harness.event(url, account, b'{"type": "job.failed"}')
        async with harness.sending() as sender:
            assert (await harness.attempted(event_id))["last_error"] == "http_5xx: 500"
            await harness.pass_pause(sender, event_id)
            row = await harness.attempted(event_id, 2)
    assert row["status"] == "delivered"
    first, body, again, _body = said
    assert re.fullmatch(rf"\d\d:\d\d:\d\d  {re.escape(event_id)}  verified  -> 500", first)
    assert json.loads(body) == {"type": "job.failed"}
    assert again.endswith("verified, again: deduplicate by webhook-id  -> 204")


async def test_a_service_that_allows_loopback_sends_its_test_event_to_the_listener(
    harness: WebhookHarness, tmp_path: Path
) -> None:
    said: list[str] = []
    listener = Listener([], said.append)
    with listening(tmp_path / "own", listener) as (url, authority):
        changes = {"webhook_ca_file": authority, "allowed_networks": (ip_network("127.0.0.1"),)}
        settings = harness.context.settings.model_copy(update=changes)
        with RunningApi(settings) as api:
            customer = api.customer()
            record = await harness.context.database.write(
                signing_secret, settings, str(customer.account_id), rotate=False
            )
            listener.secrets = [record["secret"]]
            answer = api.client.post("/webhooks/test", json={"url": url}, headers=customer.headers)
    assert answer.json()["data"]["delivered"] is True, answer.text
    assert said[0].endswith("verified  -> 204")
    assert json.loads(said[1])["type"] == "webhook.test"


async def test_the_secret_of_an_account_is_made_once_and_rotated_when_asked(
    harness: WebhookHarness,
) -> None:
    settings = harness.context.settings
    async with harness.context.database.transaction() as connection:
        await keys.create_account(connection, "studio")
        first = await signing_secret(connection, settings, "studio", rotate=False)
        again = await signing_secret(connection, settings, "studio", rotate=False)
        rotated = await signing_secret(connection, settings, "studio", rotate=True)
    assert decode_secret(first["secret"])
    assert (first["account"], first["rotatedAt"]) == ("studio", None)
    assert again == first
    assert rotated["secret"] != first["secret"]
    assert rotated["rotatedAt"] is not None


async def test_the_demo_key_is_kept_until_it_is_valid_no_more(
    harness: WebhookHarness, tmp_path: Path
) -> None:
    async def demo_key() -> str:
        return await harness.context.database.write(ensure_demo_account, tmp_path)

    first = await demo_key()
    assert await demo_key() == first
    kept = tmp_path / DEMO_KEY_FILE
    assert kept.stat().st_mode & 0o777 == 0o600
    await harness.execute("UPDATE api_keys SET status = 'revoked'")
    second = await demo_key()
    assert second not in {first, ""}
    await harness.execute("UPDATE api_keys SET expires_at = now() WHERE status = 'active'")
    assert await demo_key() != second
    kept.write_text(f"vas_live_{'x' * 43}")  # of another database
    third = await demo_key()
    assert (kept.read_text(), await demo_key()) == (third, third)


def test_a_wrong_signature_is_refused_with_a_line_that_helps(tmp_path: Path) -> None:
    said: list[str] = []
    listener = Listener([SECRET], said.append)
    with listening(tmp_path, listener) as (url, authority):
        headers = signed_headers([new_signing_secret()], "a", int(time.time()), BODY)
        trust = ssl.create_default_context(cafile=authority)
        answer = httpx.post(url, content=BODY, headers=headers, trust_env=False, verify=trust)
    assert answer.status_code == 401
    [line] = said
    assert "NOT VERIFIED: none of its 1 signatures fits" in line
    assert "GET /webhooks/secret" in line


@pytest.mark.parametrize(
    ("trouble", "explained"),
    [
        ("no trust", "REFUSED by the sender: it does not trust the certificate. Start the service "
         "with VAS_WEBHOOK_CA_FILE"),
        ("no TLS", "NO DELIVERY: without TLS; the address begins with https://"),
        ("nothing", "NO DELIVERY: the connection ended"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_without_a_delivery_is_explained_in_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    trouble: str,
    explained: str,
    version: ssl.TLSVersion,
) -> None:
    said: list[str] = []
    with listening(tmp_path, Listener([SECRET], said.append)) as (url, _):
        distrust = ssl.create_default_context()
        distrust.maximum_version = version
        with contextlib.suppress(httpx.TransportError), httpx.Client(verify=distrust) as client:
            match trouble:
                case "no trust":
                    client.post(url, content=BODY)
                case "no TLS":
                    client.post(url.replace("https:", "http:"), content=BODY)
                case _:
                    address = urlsplit(url)
                    socket.create_connection((str(address.hostname), address.port or 0)).close()
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
    [line] = said
    assert explained in line
    assert capfd.readouterr() == ("", "")


def test_the_listeners_certificate_is_kept_and_its_key_is_private(tmp_path: Path) -> None:
    authority, _tls = own_certificate(tmp_path)
    before = authority.read_bytes()
    own_certificate(tmp_path)
    assert authority.read_bytes() == before
    assert (tmp_path / "server.pem").stat().st_mode & 0o777 == 0o600


def test_the_command_listens_answers_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "serve_app.cli",
        "webhooks",
        "listen",
        "--plain",
        "--port",
        "0",
    ]
    command += ["--secret", SECRET, "--answer", "503", "--data", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    assert process.stdout is not None
    with process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert found is not None
        headers = signed_headers([SECRET], "a", int(time.time()), BODY)
        answer = httpx.post(found[0], content=BODY, headers=headers, trust_env=False, timeout=120)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
    assert (answer.status_code, process.wait(120)) == (503, 0)
    assert "a  verified  -> 503" in printed
    assert '"type": "job.completed"' in printed


def test_a_secret_that_is_none_is_said_at_once() -> None:
    ended = CliRunner().invoke(app, ["webhooks", "listen", "--secret", "whsec_?"])
    assert isinstance(ended.exception, Exception)
    assert user_sentence(ended.exception)
    assert str(ended.exception) == "The secret is not whsec_ and base64."


async def replayed(harness: WebhookHarness, event_id: str) -> dict[str, Any]:
    return await harness.context.database.write(replay, event_id.partition(":")[0])


async def test_a_replay_is_a_new_series_of_attempts_under_the_old_id(
    harness: WebhookHarness,
) -> None:
    receiver = harness.receiver(in_turn(status(404), status(500), status(204)))
    event_id = await harness.event(receiver.url, body=b'{"n": 1.0}')
    async with harness.sending() as sender:
        assert (await harness.attempted(event_id))["status"] == "failed"
        assert (await replayed(harness, event_id))["id"] == event_id
        row = await harness.until(lambda row: row["status"] == "pending_retry", event_id)
        assert row["attempts"] == 1
        await harness.pass_pause(sender, event_id)
        assert (await harness.attempted(event_id, 2))["status"] == "delivered"
    assert [delivered.webhook_id for delivered in receiver.received] == [event_id] * 3
    assert {delivered.body for delivered in receiver.received} == {b'{"n": 1.0}'}


async def test_an_event_that_has_left_the_log_is_written_anew_from_its_job(
    harness: WebhookHarness,
) -> None:
    receiver = harness.receiver()
    event_id = await harness.event(receiver.url)
    await harness.execute("DELETE FROM webhook_events")
    async with harness.sending():
        await replayed(harness, event_id)
        assert (await harness.attempted(event_id))["status"] == "delivered"
    [delivered] = receiver.received
    body = json.loads(delivered.body)
    assert delivered.webhook_id == event_id
    assert (body["type"], body["data"]["state"]) == ("job.completed", "completed")
    job = await harness.context.database.read(jobs.find_job, uuid.UUID(body["data"]["jobId"]))
    assert job is not None
    assert job.completed_at is not None
    assert body["timestamp"][:19] == job.completed_at.isoformat()[:19]


async def endpoint_at(harness: WebhookHarness, url: str, *events: EventType) -> tuple[str, str]:
    """Ids of an ended job without an event, and of an endpoint of its account."""
    secret = new_signing_secret()
    harness.secrets.append(secret)
    owner = await harness.account()
    job_id = (await harness.event(url, owner)).partition(":")[0]
    await harness.execute("DELETE FROM webhook_events")
    async with harness.context.database.transaction() as connection:
        sealed = harness.context.encrypter.encrypt(secret)
        made: WebhookEndpoint | None = await endpoints.add_endpoint(
            connection, owner, url=url, event_types=events, secret=sealed
        )
        assert made is not None
        body = b'{"type":"translation.completed"}'
        ours = (owner, uuid.UUID(job_id), EventType.TRANSLATION_COMPLETED, url, body, made.id)
        await webhooks.add_event(connection, NewEvent(*ours))
    return job_id, str(made.id)


async def test_events_of_an_endpoint_are_sent_to_it_again(harness: WebhookHarness) -> None:
    receiver = harness.receiver()
    ended, translated = EventType.JOB_COMPLETED, EventType.TRANSLATION_COMPLETED
    job_id, endpoint_id = await endpoint_at(harness, receiver.url, ended, translated)
    ids = [f"{job_id}:{each}:{endpoint_id}" for each in (ended, translated)]
    async with harness.sending():
        assert (await harness.attempted(ids[1]))["status"] == "delivered"
        sent_again = await harness.context.database.write(replay, job_id, endpoint_id)
        assert sent_again == {"events": ids, "urlHost": "127.0.0.1"}
        for each in ids:
            assert (await harness.attempted(each))["status"] == "delivered"
    assert [each.webhook_id for each in receiver.received].count(ids[1]) == 2
    assert receiver.refused == []


async def test_a_replay_goes_to_the_present_url_of_an_endpoint(harness: WebhookHarness) -> None:
    """Its log has events for the URL that it had, whose owner is not to get what is signed now."""
    former, present = harness.receiver(), harness.receiver()
    ended, translated = EventType.JOB_COMPLETED, EventType.TRANSLATION_COMPLETED
    job_id, endpoint_id = await endpoint_at(harness, former.url, ended, translated)
    owner = (await harness.row(f"{job_id}:{translated}:{endpoint_id}"))["account_id"]
    ids = [f"{job_id}:{each}:{endpoint_id}" for each in (ended, translated)]
    async with harness.sending():
        assert (await harness.attempted(ids[1]))["status"] == "delivered"
        await harness.context.database.write(replay, job_id, endpoint_id)
        for each in ids:
            assert (await harness.attempted(each))["status"] == "delivered"
        assert len(former.received) == 3
        async with harness.context.database.transaction() as connection:
            changed = uuid.UUID(endpoint_id)
            await endpoints.change_endpoint(connection, owner, changed, url=present.url)
            sent_again = await replay(connection, job_id, endpoint_id)
        assert sent_again["events"] == ids
        for each in ids:
            assert (await harness.attempted(each))["status"] == "delivered"
    assert {each.webhook_id for each in present.received} == set(ids)
    assert len(former.received) == 3


async def test_an_endpoint_of_another_account_or_without_an_event_is_named(
    harness: WebhookHarness,
) -> None:
    job_id, endpoint_id = await endpoint_at(harness, "https://a.example.com/", EventType.JOB_FAILED)
    other, others_endpoint = await endpoint_at(
        harness, "https://b.example.com/", EventType.JOB_FAILED
    )
    await harness.execute("DELETE FROM webhook_events")
    cases = ((job_id, others_endpoint, "has no endpoint"), (job_id, endpoint_id, "has no event"))
    for job, endpoint, said in cases:
        async with harness.context.database.transaction() as connection:
            with pytest.raises(ReplayError, match=said):
                await replay(connection, job, endpoint)
    assert other != job_id


async def test_what_its_endpoint_switched_off_is_not_sent_again(harness: WebhookHarness) -> None:
    receiver = harness.receiver(status(410))
    event_id = await harness.event(receiver.url)
    async with harness.sending():
        assert (await harness.attempted(event_id))["status"] == "disabled"
        with pytest.raises(ReplayError, match="410 Gone"):
            await replayed(harness, event_id)
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE jobs SET callback_url = NULL", "has no callbackUrl"),
        ("UPDATE jobs SET state = 'expired'", "is expired: no event"),
        ("UPDATE jobs SET state = 'queued', completed_at = NULL", "is queued: no event"),
    ],
    ids=["no callback", "expired", "queued"],
)
async def test_a_job_without_an_event_is_said_to_have_none(
    harness: WebhookHarness, change: str, said: str
) -> None:
    event_id = await harness.event("https://a.example.com/")
    await harness.execute(change)
    with pytest.raises(ReplayError, match=said):
        await replayed(harness, event_id)


@pytest.mark.parametrize("job_id", ["no-uuid", "3f8a1c52-9c1e-4f6b-8f0e-2d5b7a9c4e10"])
async def test_a_job_that_does_not_exist_is_said_not_to(
    harness: WebhookHarness, job_id: str
) -> None:
    with pytest.raises(ReplayError, match=job_id):
        await replayed(harness, job_id)
