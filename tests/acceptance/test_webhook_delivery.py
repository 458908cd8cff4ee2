"""A customer's system hears of its job: from the running service to a receiver over TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from storage import keys
from storage.database import Database
from tests.acceptance.service import Service, wait_until
from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.receivers import Receiver, Verifier, status

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

ANALYSIS_SECONDS = 150
DELIVERY_SECONDS = 90


@pytest.fixture
def receiver(service: Service, authority: Authority) -> Iterator[Receiver]:
    """It fails at its end unless the official verifier accepted every delivery."""
    tls = authority.server_context("127.0.0.1")
    with Receiver(status(204), tls, Verifier([signing_secret(service)])).running() as started:
        yield started


def signing_secret(service: Service) -> str:
    """The account's secret as its dashboard shows it."""
    token = asyncio.run(sign_in_token(service))
    session = httpx.post(f"{service.base_url}/sessions", json={"token": token}, trust_env=False)
    headers = {"Authorization": f"Bearer {session.json()['data']['session']}"}
    shown = httpx.get(f"{service.base_url}/webhooks/secret", headers=headers, trust_env=False)
    return str(shown.json()["data"]["secret"])


async def sign_in_token(service: Service) -> str:
    database = Database(f"postgresql://postgres@/postgres?host={service.data / 'postgres'}")
    async with database.transaction() as connection:
        account = await keys.get_account(connection, "demo")
        token = await keys.create_sign_in_link(connection, account.id)
    await database.close()
    return token


def log_record(service: Service, job_id: str) -> dict[str, object]:
    answer = httpx.get(
        f"{service.base_url}/webhooks/deliveries",
        params={"jobId": job_id},
        headers={"X-API-Key": service.api_key},
        trust_env=False,
    )
    [record] = answer.json()["data"]
    return dict(record)


def test_a_completed_job_is_told_to_its_callback(
    service: Service, receiver: Receiver, excerpt: Path
) -> None:
    client = service.client()
    job = client.create_job(
        excerpt.name, excerpt.stat().st_size, "vision", callback_url=receiver.url
    )
    client.upload(excerpt, job["uploadUrl"], job["uploadHeaders"])
    wait_until(lambda: receiver.received, ANALYSIS_SECONDS, "the event has not come")
    [delivered] = receiver.received
    event = json.loads(delivered.body)
    assert delivered.webhook_id == f"{job['jobId']}:job.completed"
    assert (event["type"], event["data"]["state"]) == ("job.completed", "completed")
    scenes = httpx.get(
        event["data"]["links"]["scenes"], headers={"X-API-Key": service.api_key}, trust_env=False
    )
    assert scenes.json()["data"]["scenes"]
    wait_until(
        lambda: log_record(service, job["jobId"])["status"] == "delivered", 120, "not recorded"
    )


def test_a_sender_that_is_killed_is_replaced_and_its_events_arrive(
    service: Service, receiver: Receiver
) -> None:
    client = service.client()
    before = service.replica("Api")
    before.kill()
    job_id = client.create_job("clip.mp4", callback_url=receiver.url)["jobId"]
    client.cancel(job_id)
    wait_until(lambda: receiver.received, DELIVERY_SECONDS, "the event has not come")
    assert receiver.received[0].webhook_id == f"{job_id}:job.cancelled"
    assert service.replica("Api").pid != before.pid
