"""An attempt at a leased event: signed with the secrets in force, sent, judged."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from serve_app.context import AppContext
from serve_app.webhooks.connections import Connections
from serve_app.webhooks.retrying import error_text, judge
from serve_app.webhooks.sending import Outcome, Way, send_event
from serve_app.webhooks.signing import new_signing_secret, signed_headers
from storage import signing_secrets
from storage.deliveries import LeasedEvent, Record


@dataclass(slots=True)
class Clock:
    """The sender's time: the machine's and the database's, both moved by ``ahead``."""

    ahead: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes attempts. ``chance`` gives numbers in [0, 1) for the jitter."""

    context: AppContext
    way: Way
    connections: Connections
    clock: Clock
    chance: Callable[[], float] = random.random

    async def make(self, event: LeasedEvent) -> tuple[Outcome, Record]:
        """Sign and send once. Raises SealBrokenError where the secret cannot be opened."""
        secrets = await self._secrets(event)
        signed_at = int(self.clock.now().timestamp())
        headers = signed_headers(secrets, event.id, signed_at, event.body)
        async with self.connections.of(event.endpoint) as transport:
            outcome = await send_event(
                event.url, headers, event.body, way=self.way, transport=transport
            )
        verdict = judge(
            outcome,
            attempts_before=event.attempts,
            chance=self.chance(),
            now=self.clock.now(),
        )
        record = Record(
            event.id,
            event.token,
            verdict.status,
            last_status=outcome.status_code or None,
            last_error=error_text(outcome),
            retry_after_seconds=verdict.pause_seconds,
        )
        return outcome, record

    async def _secrets(self, event: LeasedEvent) -> list[str]:
        """The newest first; an account's first delivery makes its secret."""
        sealed = [event.current_secret, event.previous_secret]
        if event.current_secret is None:
            fresh = self.context.sealer.seal(new_signing_secret())
            async with self.context.database.transaction() as connection:
                stored = await signing_secrets.get_or_create(connection, event.account_id, fresh)
            sealed = [stored.current, stored.previous]
        return [self.context.sealer.open(secret) for secret in sealed if secret is not None]
