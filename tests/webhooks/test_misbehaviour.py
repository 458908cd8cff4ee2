"""Misbehaving endpoints, over real TLS: the delivery log's status and error class for each."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.databases import fresh_database
from tests.pipelines.net.fetch_servers import Authority, Trap
from tests.tables import every
from tests.webhooks.harness import WebhookHarness, open_desk, settings_for
from tests.webhooks.misbehaviour import CASES
from tests.webhooks.receivers import Receiver, status

DEADLINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Logged:
    """What came of one attempt at every case."""

    rows: dict[str, dict[str, Any]]
    receivers: dict[str, Receiver]


@pytest.fixture(scope="module")
async def logged(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory, authority: Authority, ca_file: Path
) -> AsyncIterator[Logged]:
    """All cases side by side, so that those that hang are waited for together."""
    folder = tmp_path_factory.mktemp("misbehaviour")
    with fresh_database(postgres_url) as url:
        async with open_desk(settings_for(url, ca_file, folder), authority) as harness:
            yield await _log_of_all(harness, folder)


async def _log_of_all(harness: WebhookHarness, folder: Path) -> Logged:
    account = await harness.account()
    receivers = {}
    for name, case in CASES.items():
        good = harness.authority.server_context("127.0.0.1")
        tls = case.tls(harness.authority, folder) if case.tls else good
        receivers[name] = harness.receiver_with(tls, case.script)
    ids = {name: await harness.event(made.url, account) for name, made in receivers.items()}
    async with harness.sending(deadline_seconds=DEADLINE_SECONDS):
        return Logged({name: await harness.attempted(ids[name]) for name in CASES}, receivers)


@every("name", CASES)
async def test_the_log_says_what_the_endpoint_did(logged: Logged, name: str) -> None:
    case, row = CASES[name], logged.rows[name]
    error, _, body = (row["last_error"] or "").partition("\n")
    assert (row["status"], error or None) == (case.status, case.error)
    assert row["last_status"] == case.last_status
    assert re.fullmatch(case.body, body)
    assert (row["next_attempt_at"] is not None) == (case.status == "pending_retry")
    assert (row["delivered_at"] is not None) == (case.status == "delivered")
    assert row["attempts"] == 1


@every("name", [name for name in CASES if CASES[name].error != "tls"])
async def test_whoever_can_be_talked_to_gets_one_delivery(logged: Logged, name: str) -> None:
    assert len(logged.receivers[name].received) == logged.receivers[name].connections == 1


@every("name", [name for name in CASES if CASES[name].error == "tls"])
async def test_without_a_secure_connection_nothing_is_said(logged: Logged, name: str) -> None:
    assert logged.receivers[name].received == []


async def test_a_redirect_to_a_private_address_is_not_followed(harness: WebhookHarness) -> None:
    with Trap().listening() as trap:
        receiver = harness.receiver(status(307, location=f"https://127.0.0.1:{trap.port}/"))
        event_id = await harness.event(receiver.url)
        async with harness.sending():
            row = await harness.attempted(event_id)
        assert trap.take() == []
    assert (row["status"], row["last_error"]) == ("failed", "redirect")


UNREACHABLE = {
    "private address": ("https://10.1.2.3/", "failed", "blocked_address"),
    "metadata service": ("https://169.254.169.254/latest", "failed", "blocked_address"),
    "name of a private address": ("https://inside.example.com/", "failed", "blocked_address"),
    "one of its addresses is private": ("https://both.example.com/", "failed", "blocked_address"),
    "unknown name": ("https://nowhere.example.com/", "pending_retry", "dns"),
    "nobody listens": ("https://127.0.0.1:{closed}/", "pending_retry", "connection"),
    "never answers on TCP": ("https://127.0.0.1:{mute}/", "pending_retry", "timeout"),
}

NAMES = {
    "inside.example.com": ["10.1.2.3"],
    "both.example.com": ["127.0.0.1", "10.1.2.3"],
}


def lookup(host: str, _port: int) -> list[str]:
    """A name server of the test's own."""
    if host not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "unknown name")
    return NAMES[host]


@every("name", UNREACHABLE)
async def test_who_cannot_be_reached_is_logged_by_why(harness: WebhookHarness, name: str) -> None:
    url, wanted, error = UNREACHABLE[name]
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = {"mute": mute.getsockname()[1], "closed": closed.getsockname()[1]}
        event_id = await harness.event(url.format(**ports))
        async with harness.sending(lookup=lookup, deadline_seconds=1.0):
            row = await harness.attempted(event_id)
    assert (row["status"], row["last_error"], row["last_status"]) == (wanted, error, None)


async def test_a_name_that_resolves_is_delivered_to(harness: WebhookHarness) -> None:
    receiver = harness.receiver(name="hooks.example.com")
    event_id = await harness.event(receiver.url)
    async with harness.sending(lookup=lambda host, _port: ["127.0.0.1"]):
        row = await harness.attempted(event_id)
    assert row["status"] == "delivered"
    assert receiver.received[0].headers["host"] == f"hooks.example.com:{receiver.port}"


async def test_timeouts_are_retried_eight_times_in_all(harness: WebhookHarness) -> None:
    receiver = harness.receiver(CASES["hangs before the status line"].script)
    event_id = await harness.event(receiver.url)
    async with harness.sending(deadline_seconds=0.5) as sender:
        for attempt in range(1, 8):
            row = await harness.attempted(event_id, attempt)
            assert (row["status"], row["last_error"]) == ("pending_retry", "timeout")
            await harness.pass_pause(sender, event_id)
        row = await harness.attempted(event_id, 8)
    assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 8, "timeout")


@pytest.mark.parametrize("name", ["404", "410", "redirect to itself"])
async def test_what_is_final_is_never_tried_again(harness: WebhookHarness, name: str) -> None:
    receiver = harness.receiver(CASES[name].script)
    event_id = await harness.event(receiver.url)
    async with harness.sending() as sender:
        await harness.attempted(event_id)
        harness.clock.ahead += timedelta(days=2)
        sender.wake()
        after = await harness.event(harness.receiver().url)
        await harness.attempted(after)
    assert len(receiver.received) == 1
