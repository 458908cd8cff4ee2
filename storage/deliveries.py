"""Deliveries as the senders work on them: leased, recorded, handed back, trimmed.

All times are the database's, moved by ``ahead`` (zero but in tests), so senders
on machines whose clocks disagree still agree on what is due.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.outbox import DELIVERY_LOG_SIZE
from storage.signing_secrets import OVERLAP
from storage.types import DeliveryStatus

_LEASE = text(
    "SELECT * FROM lease_webhook_events(:ahead, :lease, :overlap, :per_endpoint, :per_account,"
    " :most, :most_strained, CAST(:strained AS text[]))"
)
"""Round robin over the endpoints; the function and its reasons stand in migration 0002."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How many events may be under way at once; the first two count those of all senders."""

    per_endpoint: int
    per_account: int
    most: int
    """Taken in one go."""
    most_strained: int
    """Of these, for endpoints that the sender names as strained."""


@dataclass(frozen=True, slots=True)
class LeasedEvent:
    """An event that this sender alone may send until its lease ends."""

    id: str
    token: uuid.UUID
    account_id: uuid.UUID
    endpoint: str
    url: str
    body: bytes
    attempts: int
    """Known to have been made before this one."""
    current_secret: bytes | None
    """Sealed; None before the account's first use."""
    previous_secret: bytes | None
    """Sealed; only while it still signs."""


async def lease_due(
    database: Database,
    shares: Shares,
    *,
    lease: timedelta,
    ahead: timedelta,
    strained: Iterable[str] = (),
) -> list[LeasedEvent]:
    """Take due events, the endpoints in turn. Senders lease one after the other, never twice."""
    rows = await database.query(
        _LEASE,
        per_endpoint=shares.per_endpoint,
        per_account=shares.per_account,
        most=shares.most,
        most_strained=shares.most_strained,
        strained=list(strained),
        lease=lease,
        ahead=ahead,
        overlap=OVERLAP,
    )
    return [LeasedEvent(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class Record:
    """What an attempt changes: the event's state after it."""

    id: str
    token: uuid.UUID
    status: DeliveryStatus
    last_status: int | None
    last_error: str | None
    retry_after_seconds: float | None = None
    """None where there is no further attempt."""


_RECORD = text(
    """
    UPDATE webhook_events AS event
       SET status = ended.status, attempts = attempts + 1, lease_token = NULL,
           last_status = ended.last_status, last_error = ended.last_error,
           next_attempt_at = now() + :ahead + make_interval(secs => ended.retry_after_seconds),
           delivered_at = CASE WHEN ended.status = 'delivered' THEN now() + :ahead END
      FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS uuid[]), CAST(:statuses AS text[]),
                  CAST(:last_statuses AS int[]), CAST(:last_errors AS text[]),
                  CAST(:retries AS float8[]))
           AS ended(id, token, status, last_status, last_error, retry_after_seconds)
     WHERE event.id = ended.id AND event.lease_token = ended.token
    RETURNING event.id
    """
)


async def record_attempts(
    database: Database, records: Sequence[Record], *, ahead: timedelta
) -> set[str]:
    """Write the ends of attempts in one statement; return the events whose lease still held.

    What was leased anew in the meantime belongs to its new holder and is left alone.
    """
    rows = await database.query(
        _RECORD,
        ids=[record.id for record in records],
        tokens=[record.token for record in records],
        statuses=[str(record.status) for record in records],
        last_statuses=[record.last_status for record in records],
        last_errors=[record.last_error for record in records],
        retries=[record.retry_after_seconds for record in records],
        ahead=ahead,
    )
    return {row["id"] for row in rows}


_HAND_BACK = text(
    """
    UPDATE webhook_events AS event
       SET lease_token = NULL, next_attempt_at = now() + :ahead,
           status = CASE WHEN attempts = 0 THEN 'in_flight' ELSE 'pending_retry' END
      FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS uuid[])) AS held(id, token)
     WHERE event.id = held.id AND event.lease_token = held.token
    """
)


async def hand_back(
    connection: AsyncConnection, held: Sequence[LeasedEvent], *, ahead: timedelta
) -> None:
    """Let other senders have these events at once; no attempt is counted."""
    values: dict[str, Any] = {
        "ids": [event.id for event in held],
        "tokens": [event.token for event in held],
        "ahead": ahead,
    }
    await connection.execute(_HAND_BACK, values)


_TRIM = text(
    """
    DELETE FROM webhook_events AS event USING (
        SELECT account.id AS account_id, oldest.created_at, oldest.id
          FROM accounts AS account, LATERAL (
            SELECT created_at, id FROM webhook_events
             WHERE account_id = account.id
             ORDER BY created_at DESC, id DESC OFFSET :kept - 1 LIMIT 1) AS oldest
         WHERE CAST(:accounts AS uuid[]) IS NULL OR account.id = ANY(CAST(:accounts AS uuid[]))
    ) AS log
     WHERE event.account_id = log.account_id
       AND (event.created_at, event.id) < (log.created_at, log.id)
       -- What is owed stays until it is delivered or given up, and what an endpoint has
       -- switched off stays so for ever: neither is forgotten, whatever its age.
       AND event.status IN ('delivered', 'failed')
    """
)


async def trim_logs(
    connection: AsyncConnection, accounts: Iterable[uuid.UUID] | None = None
) -> int:
    """Forget ended deliveries beyond the newest DELIVERY_LOG_SIZE; return how many.

    Of ``accounts``, or of all. Events that are owed or switched off are never forgotten.
    """
    values = {
        "accounts": None if accounts is None else list(accounts),
        "kept": DELIVERY_LOG_SIZE,
    }
    return (await connection.execute(_TRIM, values)).rowcount
