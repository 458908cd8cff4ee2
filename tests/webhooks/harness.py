"""A sender of the test's own over a real PostgreSQL, its clock in the test's hand."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from sqlalchemy import text

from serve_app.context import AppContext, build_context
from serve_app.settings import Settings
from serve_app.webhooks.sender import Sender, SenderClock
from serve_app.webhooks.signing import new_signing_secret
from storage import keys, webhooks
from storage.types import EventType
from tests.pipelines.net.fetch_servers import Authority
from tests.webhooks.receivers import Receiver, Script, Verifier, receivers_clock, status

SECRET_KEY = "a secret for tests, long enough for the encrypter"
PATIENCE_SECONDS = 120.0
ALLOWED = (ip_network("127.0.0.0/8"),)
LATE_SECONDS = 5.0
"""What may pass from the record of an attempt until its pause is read."""


def assert_pauses(found: Sequence[float], expected: Sequence[float]) -> None:
    """Pauses as ``pass_pause`` gives them, less what has passed of each."""
    for pause, whole in zip(found, expected, strict=True):
        assert whole - LATE_SECONDS < pause < whole + 0.5, (found, expected)


@dataclass(slots=True)
class WebhookHarness:
    """What a test does around senders: accounts, jobs, events, receivers, time."""

    context: AppContext
    authority: Authority
    clock: SenderClock = field(default_factory=SenderClock)
    secrets: list[str] = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.secrets)

    def receiver(self, script: Script | None = None, name: str = "127.0.0.1") -> Receiver:
        """A receiver until the test's end, its certificate in order."""
        return self.receiver_with(self.authority.server_context(name), script, name)

    def receiver_with(
        self, tls: ssl.SSLContext | None, script: Script | None = None, name: str = "127.0.0.1"
    ) -> Receiver:
        """The same with any TLS, or with none."""
        made = Receiver(script or status(204), tls, self.verifier, name)
        return self.stack.enter_context(made.running())

    def change_settings(self, **changes: object) -> None:
        """For senders that are started from now on."""
        settings = self.context.settings.model_copy(update=changes)
        self.context = replace(self.context, settings=settings)

    async def account(self) -> uuid.UUID:
        """An account whose secret the test's receivers know."""
        secret = new_signing_secret()
        self.secrets.append(secret)
        async with self.context.database.transaction() as connection:
            account = await keys.create_account(connection, uuid.uuid4().hex)
            sealed = self.context.encrypter.encrypt(secret)
            await webhooks.get_or_create_signing_secret(connection, account.id, sealed)
        return account.id

    async def event(
        self,
        url: str,
        account: uuid.UUID | None = None,
        body: bytes = b'{"type":"job.completed"}',
    ) -> str:
        """An event of a job that ended just now; its id."""
        owner = account or await self.account()
        job_id = uuid.uuid4()
        async with self.context.database.transaction() as connection:
            values = {"id": job_id, "account": owner, "url": url}
            await connection.execute(text(INSERT_JOB), values)
            await connection.execute(text(INSERT_STAGES), {"id": job_id})
            event = webhooks.NewEvent(owner, job_id, EventType.JOB_COMPLETED, url, body)
            await webhooks.add_event(connection, event)
        return event.id

    async def execute(self, statement: str, **values: Any) -> None:
        """A statement in a transaction of its own."""
        async with self.context.database.transaction() as connection:
            await connection.execute(text(statement), values)

    async def row(self, event_id: str) -> dict[str, Any]:
        """The event as it is stored."""
        query = text("SELECT * FROM webhook_events WHERE id = :id")
        [row] = await self.context.database.query(query, id=event_id)
        return row

    async def events(self, url: str, count: int, account: uuid.UUID | None = None) -> list[str]:
        """Several events of one account."""
        owner = account or await self.account()
        return [await self.event(url, owner) for _ in range(count)]

    async def rows(self) -> list[dict[str, Any]]:
        return await self.context.database.query(text("SELECT * FROM webhook_events ORDER BY id"))

    async def until(self, condition: Callable[[dict[str, Any]], bool], event_id: str) -> Any:
        """The event's row as soon as it is so."""
        for _ in range(int(PATIENCE_SECONDS / 0.02)):
            row = await self.row(event_id)
            if condition(row):
                return row
            await asyncio.sleep(0.02)
        raise AssertionError(f"it never came to that: {row}")

    async def attempted(self, event_id: str, attempts: int = 1) -> Any:
        """The row once so many attempts are recorded."""
        return await self.until(
            lambda row: row["attempts"] >= attempts and row["lease_token"] is None, event_id
        )

    async def until_nothing_is_owed(self) -> None:
        """Every event has come to an end."""
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            owed = [row for row in await self.rows() if row["next_attempt_at"] is not None]
            if not owed:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{len(owed)} events are still owed")

    async def pass_pause(self, sender: Sender, event_id: str) -> float:
        """Move the clock to the event's next attempt; the pause in seconds."""
        query = text("SELECT next_attempt_at - now() AS ahead FROM webhook_events WHERE id = :id")
        [row] = await self.context.database.query(query, id=event_id)
        pause: timedelta = row["ahead"] - self.clock.ahead
        self.clock.ahead = row["ahead"]
        sender.wake()
        return pause.total_seconds()

    @contextlib.asynccontextmanager
    async def sending(self, **options: Any) -> AsyncIterator[Sender]:
        """A sender at work for the block, stopped in order after it."""
        sender = Sender(self.context, clock=self.clock, **options)
        running = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            await sender.stop()
            await running


INSERT_JOB = """
    INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source,
                      callback_url, completed_at)
    VALUES (:id, :account, 'completed', 'all', 'standard', 'clip.mp4',
            '{"kind": "upload", "base_url": "https://video.example.com/v1/api"}', :url, now())
"""

INSERT_STAGES = """
    INSERT INTO stages (job_id, stage, status)
    SELECT :id, unnest(ARRAY['ingest', 'vision', 'transcript']), 'completed'
"""


@contextlib.asynccontextmanager
async def open_desk(settings: Settings, authority: Authority) -> AsyncIterator[WebhookHarness]:
    """A harness on the database of ``settings``."""
    context = build_context(settings)
    made = WebhookHarness(context, authority)
    with receivers_clock(made.clock), made.stack:
        yield made
    await context.database.close()


def settings_for(database_url: str, ca_file: Path, folder: Path) -> Settings:
    """A sender's settings: as delivered, but it may talk to loopback and trusts ``ca_file``."""
    return Settings(
        data_dir=folder,
        database_url=database_url,
        secret_key=SECRET_KEY,
        allowed_networks=ALLOWED,
        webhook_ca_file=ca_file,
        poll_seconds=0.2,
    )
