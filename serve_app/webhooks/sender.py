"""The sender: leases due events, sends them concurrently, records the outcomes.

An event is sent outside any transaction and recorded only while its lease holds. The lease of a
sender that dies runs out and the event is sent again: at least once. Any number of senders share
the work.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from pipelines.net.safe_http import system_addresses
from serve_app.context import AppContext
from serve_app.observability.metrics import WEBHOOK_ATTEMPTS
from serve_app.periodic import Periodic, repeated
from serve_app.webhooks import sending
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import webhooks
from storage.database import DatabaseError

log = logging.getLogger("vas.webhooks")

FINISH_SECONDS = sending.ACKNOWLEDGE_SECONDS + 1
"""How long a stopping sender waits for attempts under way; the rest is requeued."""

FINAL_RECORD_SECONDS = 3.0
"""How long it then waits for the database to record that."""

TRIM_SECONDS = 30.0
POLL_SECONDS = 30.0
"""Until it is looked again for attempts whose time has come, at most; for near ones of its own a
sender sets a timer."""
_NEAR_SECONDS = 60.0
LEASED_AT_ONCE = 32
"""Few, so that a busy sender starts no more than it gets done: the deadline runs from the start."""

RECORDED_AT_ONCE = 500
STRAINED_SHARE = 4
"""Endpoints that did not answer last time get one in so many of a sender's deliveries together."""

STRAINED_REMEMBERED = 1_000


@dataclass(slots=True)
class SenderClock:
    """The sender's time: the machine's and the database's, both moved by ``ahead``."""

    ahead: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes attempts. ``chance`` gives numbers in [0, 1) for the jitter."""

    context: AppContext
    options: sending.DeliveryOptions
    connections: sending.Connections
    clock: SenderClock
    chance: Callable[[], float] = random.random

    async def make(self, event: webhooks.LeasedEvent) -> tuple[sending.Outcome, webhooks.Record]:
        """Sign and send once. Raises DecryptionError where the secret cannot be opened."""
        secrets = await self._secrets(event)
        signed_at = int(self.clock.now().timestamp())
        headers = signed_headers(secrets, event.id, signed_at, event.body)
        async with self.connections.of(event.endpoint) as transport:
            outcome = await sending.send_event(
                event.url, headers, event.body, options=self.options, transport=transport
            )
        verdict = sending.judge(
            outcome, attempts_before=event.attempts, chance=self.chance(), now=self.clock.now()
        )
        record = webhooks.Record(
            event.id,
            event.token,
            verdict.status,
            last_status=outcome.status_code or None,
            last_error=sending.error_text(outcome),
            retry_after_seconds=verdict.pause_seconds,
        )
        return outcome, record

    async def _secrets(self, event: webhooks.LeasedEvent) -> list[str]:
        """Return the newest first; an account's first delivery makes its secret."""
        encrypted = [event.current_secret, event.previous_secret]
        if event.current_secret is None:
            fresh = self.context.encrypter.encrypt(new_signing_secret())
            stored = await self.context.database.write(
                webhooks.get_or_create_signing_secret, event.account_id, fresh
            )
            encrypted = [stored.current, stored.previous]
        return [
            self.context.encrypter.decrypt(secret) for secret in encrypted if secret is not None
        ]


class StrainedEndpoints:
    """Endpoints that did not answer the last time; the oldest are forgotten first."""

    def __init__(self, most: int = STRAINED_REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()

    def note(self, endpoint: str, outcome: sending.Outcome) -> None:
        """Remember, or forget, by how the attempt went."""
        if outcome.status_code:
            self._known.pop(endpoint, None)
            return
        self._known[endpoint] = None
        self._known.move_to_end(endpoint)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self._known

    def names(self) -> list[str]:
        return list(self._known)


class Sender:
    """Runs until ``stop``. Clock, jitter and name lookup are parameters for tests."""

    def __init__(
        self,
        context: AppContext,
        *,
        clock: SenderClock | None = None,
        chance: Callable[[], float] = random.random,
        lookup: sending.Lookup = system_addresses,
        deadline_seconds: float = sending.ACKNOWLEDGE_SECONDS,
    ) -> None:
        self._context = context
        self._clock = clock or SenderClock()
        self._resolver = sending.SharedResolver(
            threads=context.settings.webhook_concurrency, lookup=lookup
        )
        way = replace(
            sending.delivery_options(context.settings, self._resolver),
            deadline_seconds=deadline_seconds,
        )
        self._connections = sending.Connections(way)
        self._attempts = Attempts(context, way, self._connections, self._clock, chance)
        self._strained = StrainedEndpoints()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._held: dict[uuid.UUID, webhooks.LeasedEvent] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Queue[webhooks.Record] = asyncio.Queue()
        self._untrimmed: set[uuid.UUID] | None = None

    async def run(self) -> None:
        """Lease and send until stopped; then finish what is under way."""
        beside = [
            Periodic("listening for events", 0.0, self._wake_when_notified),
            Periodic("recording deliveries", 0.0, self._record_next),
            Periodic("trimming delivery logs", TRIM_SECONDS, self._trim),
        ]
        try:
            async with repeated(beside):
                await Periodic("leasing events", 0.0, self._lease_and_wait).run(self._stopping)
                try:
                    await self._finish()
                except DatabaseError:
                    log.exception("webhooks: not all was requeued; the leases run out")
        finally:
            self._resolver.close()
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            await self._connections.aclose()
            self._over.set()

    async def stop(self) -> None:
        """Lease no more; return when all that was leased is recorded or requeued."""
        self._stopping.set()
        self.wake()
        await self._over.wait()

    def wake(self) -> None:
        """Look for due events now."""
        self._wake.set()

    async def _lease_and_wait(self) -> None:
        self._wake.clear()
        leased = await self._lease()
        for event in leased:
            self._held[event.token] = event
            task = asyncio.create_task(self._attempt(event))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        if len(leased) == LEASED_AT_ONCE:
            return  # there may be more
        try:
            pause = min(POLL_SECONDS, self._context.settings.poll_seconds)
            await asyncio.wait_for(self._wake.wait(), pause)
        except TimeoutError:
            return

    async def _lease(self) -> list[webhooks.LeasedEvent]:
        settings = self._context.settings
        free = settings.webhook_concurrency - len(self._held)
        if free <= 0:
            return []
        strained = sum(event.endpoint in self._strained for event in self._held.values())
        shares = webhooks.DeliveryShares(
            per_endpoint=settings.webhook_endpoint_concurrency,
            per_account=settings.webhook_account_concurrency,
            most=min(free, LEASED_AT_ONCE),
            most_strained=max(0, settings.webhook_concurrency // STRAINED_SHARE - strained),
        )
        return await webhooks.lease_due(
            self._context.database,
            shares,
            lease=timedelta(seconds=settings.webhook_lease_seconds),
            ahead=self._clock.ahead,
            strained=self._strained.names(),
        )

    async def _attempt(self, event: webhooks.LeasedEvent) -> None:
        try:
            outcome, record = await self._attempts.make(event)
        except Exception:
            # Nothing is recorded: when the lease has run out the event is tried again.
            log.exception("webhooks: event %s could not be sent", event.id)
            del self._held[event.token]
            return
        self._strained.note(event.endpoint, outcome)
        self._context.metrics.record(WEBHOOK_ATTEMPTS, 1, {"outcome": str(record.status)})
        self._ended.put_nowait(record)

    async def _record_next(self) -> None:
        """Write what has ended since the last time, together."""
        records = [await self._ended.get()]
        while not self._ended.empty() and len(records) < RECORDED_AT_ONCE:
            records.append(self._ended.get_nowait())
        try:
            recorded = await webhooks.record_attempts(
                self._context.database, records, ahead=self._clock.ahead
            )
        except BaseException:
            for record in records:
                self._ended.put_nowait(record)
                self._ended.task_done()
            raise
        loop = asyncio.get_running_loop()
        for record in records:
            event = self._held.pop(record.token)
            if record.id not in recorded:
                log.warning("webhooks: event %s: the lease was lost before its record", event.id)
            if self._untrimmed is not None:
                self._untrimmed.add(event.account_id)
            pause_seconds = record.retry_after_seconds
            if pause_seconds is not None and pause_seconds < _NEAR_SECONDS:
                loop.call_later(pause_seconds, self.wake)
            self._ended.task_done()
        self.wake()

    async def _finish(self) -> None:
        """Let attempts under way end and be recorded; requeue the rest."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=FINISH_SECONDS)
        for task in self._under_way:
            task.cancel()
        async with asyncio.timeout(FINAL_RECORD_SECONDS):
            await self._ended.join()
            await self._context.database.write(
                webhooks.requeue, list(self._held.values()), ahead=self._clock.ahead
            )

    async def _wake_when_notified(self) -> None:
        """Polling covers for it whenever this connection is down."""
        async for _ in self._context.database.listen(webhooks.EVENTS_CHANNEL):
            self.wake()

    async def _trim(self) -> None:
        """Cut the logs of accounts that got deliveries; at the start those of all."""
        accounts, self._untrimmed = self._untrimmed, set()
        if accounts is None or accounts:
            try:
                await self._context.database.write(webhooks.trim_logs, accounts)
            except BaseException:
                self._untrimmed = None
                raise
