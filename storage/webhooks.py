"""Webhook events from the transaction that ends the job to their delivery, and signing secrets.

Senders lease due events, record the attempts, and requeue what they hold when they stop. All times
are the database's, moved by ``ahead`` (zero but in tests), so that senders on machines whose clocks
disagree agree on what is due.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import Insert, insert

from storage.audit import record
from storage.database import Connection, Database
from storage.records import columns, read
from storage.tables import (
    Delivery,
    EncryptedSecret,
    signing_secrets,
    webhook_endpoints,
    webhook_events,
)
from storage.types import DeliveryStatus, EventType

__all__ = ["EncryptedSecret"]

OVERLAP = timedelta(hours=24)
"""How long the previous secret goes on signing after a rotation."""


async def get_or_create_signing_secret(
    connection: Connection, account_id: uuid.UUID, fresh: bytes
) -> EncryptedSecret:
    """Return the account's secret; ``fresh`` becomes it if it has none. Two first calls agree on
    one."""
    await connection.execute(
        insert(signing_secrets)
        .values(account_id=account_id, current=fresh)
        .on_conflict_do_nothing()
    )
    return await _get_signing_secret(connection, account_id)


async def rotate_signing_secret(
    connection: Connection, account_id: uuid.UUID, fresh: bytes
) -> EncryptedSecret:
    """Make ``fresh`` the secret; the one before it signs on for OVERLAP."""
    created = (
        insert(signing_secrets)
        .values(account_id=account_id, current=fresh)
        .on_conflict_do_nothing()
        .returning(signing_secrets.c.account_id)
    )
    if (await connection.execute(created)).first() is None:
        await connection.execute(
            update(signing_secrets)
            .where(signing_secrets.c.account_id == account_id)
            .values(previous=signing_secrets.c.current, current=fresh, rotated_at=func.now())
        )
    await record(connection, account_id, "rotateWebhookSecret")
    return await _get_signing_secret(connection, account_id)


async def find_any_encrypted_secret(connection: Connection) -> bytes | None:
    """Any encrypted secret, to check the service's key with; the schema may be an older one."""
    for table in (signing_secrets, webhook_endpoints):
        known = await connection.execute(text("SELECT to_regclass(:name)"), {"name": table.name})
        if known.scalar_one() is not None:
            found = await connection.execute(select(table.c.current).limit(1))
            encrypted: bytes | None = found.scalar_one_or_none()
            if encrypted is not None:
                return encrypted
    return None


async def _get_signing_secret(connection: Connection, account_id: uuid.UUID) -> EncryptedSecret:
    table = signing_secrets.c
    still_signs = (table.rotated_at > func.now() - OVERLAP).label("still_signs")
    query = select(
        table.current, table.previous, table.created_at, table.rotated_at, still_signs
    ).where(table.account_id == account_id)
    row = (await connection.execute(query)).one()
    previous = row.previous if row.still_signs else None
    return EncryptedSecret(row.current, previous, row.created_at, row.rotated_at)


DELIVERY_LOG_SIZE = 100

EVENTS_CHANNEL = "vas_webhook_events"
"""NOTIFY channel that wakes idle senders."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A job's event: the bytes that every attempt signs and sends."""

    account_id: uuid.UUID
    job_id: uuid.UUID
    event_type: EventType
    url: str
    body: bytes
    endpoint_id: uuid.UUID | None = None
    """None: ``url`` is the job's callback URL."""
    written_at: datetime | None = None
    """Of one of several of its type."""

    @property
    def id(self) -> str:
        """The event's ``webhook-id``: one of a kind a job and receiver."""
        moment = None if self.written_at is None else int(self.written_at.timestamp())
        parts = (self.job_id, self.event_type, self.endpoint_id, moment)
        return ":".join(str(part) for part in parts if part is not None)


def _insert_event(event: NewEvent) -> Insert:
    values = asdict(event)
    del values["written_at"]
    return insert(webhook_events).values(id=event.id, **values)


async def add_event(connection: Connection, event: NewEvent) -> None:
    """Write an event; a second one of the same kind for a job is dropped."""
    await connection.execute(_insert_event(event).on_conflict_do_nothing())
    await _wake_senders(connection)


async def rewrite_event(connection: Connection, event: NewEvent) -> None:
    """Give an event that is still in the log another body."""
    await connection.execute(
        update(webhook_events).where(webhook_events.c.id == event.id).values(body=event.body)
    )


async def _wake_senders(connection: Connection) -> None:
    await connection.execute(text(f"NOTIFY {EVENTS_CHANNEL}"))


_ANEW = {
    "status": DeliveryStatus.IN_FLIGHT,
    "attempts": 0,
    "last_status": None,
    "last_error": None,
    "next_attempt_at": func.now(),
    "lease_token": None,
    "delivered_at": None,
}


async def replay_event(connection: Connection, event: NewEvent) -> bool:
    """Deliver an event again: a new series of attempts under its old id.

    ``body`` is for an event that has left the log; one that is still there keeps its own. It goes
    to ``url``, for the endpoint may have another one by now, and the secret that signs is the
    present one. An attempt under way is not recorded any more. Returns False for an event that
    its endpoint has switched off (410), which stays as it is.
    """
    table = webhook_events.c
    inserted = _insert_event(event)
    anew = inserted.on_conflict_do_update(
        index_elements=[table.id],
        set_={**_ANEW, "url": inserted.excluded.url},
        where=table.status != DeliveryStatus.DISABLED,
    ).returning(table.id)
    written = (await connection.execute(anew)).first() is not None
    if written:
        await _wake_senders(connection)
    return written


async def replay_logged_events(
    connection: Connection, job_id: uuid.UUID, endpoint_id: uuid.UUID
) -> list[str]:
    """Deliver again what an endpoint's log has of a job but its progress, to the endpoint's present
    URL; return the ids."""
    table = webhook_events.c
    present_url = (
        select(webhook_endpoints.c.url)
        .where(webhook_endpoints.c.id == endpoint_id)
        .scalar_subquery()
    )
    statement = (
        update(webhook_events)
        .where(
            table.endpoint_id == endpoint_id,
            table.job_id == job_id,
            table.event_type != EventType.JOB_PROGRESS,
            table.status != DeliveryStatus.DISABLED,
        )
        .values({**_ANEW, "url": present_url})
        .returning(table.id)
    )
    written = [*(await connection.execute(statement)).scalars()]
    await _wake_senders(connection)
    return sorted(written)


async def list_deliveries(
    connection: Connection, account_id: uuid.UUID, *, job_id: uuid.UUID | None = None
) -> list[Delivery]:
    """Return the account's last deliveries, newest first; of one job if ``job_id`` is given."""
    table = webhook_events.c
    query = (
        select(*columns(Delivery))
        .where(table.account_id == account_id)
        .order_by(table.created_at.desc(), table.id.desc())
        .limit(DELIVERY_LOG_SIZE)
    )
    if job_id is not None:
        query = query.where(table.job_id == job_id)
    return await read(connection, Delivery, query)


_LEASE = text(
    "SELECT * FROM lease_webhook_events(:ahead, :lease, :overlap, :per_endpoint, :per_account,"
    " :most, :most_strained, CAST(:strained AS text[]))"
)
"""Round robin over the endpoints; the function and its reasons are in functions.sql."""


@dataclass(frozen=True, slots=True)
class DeliveryShares:
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
    """Attempts recorded before this one."""
    current_secret: bytes | None
    """Encrypted; None before the account's first use."""
    previous_secret: bytes | None
    """Encrypted; only while it still signs."""


async def lease_due(
    database: Database,
    shares: DeliveryShares,
    *,
    lease: timedelta,
    ahead: timedelta,
    strained: Iterable[str] = (),
) -> list[LeasedEvent]:
    """Take due events, the endpoints in turn. Senders lease one after the other, never twice."""
    rows = await database.query(
        _LEASE,
        **asdict(shares),
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


_REQUEUE = text(
    """
    UPDATE webhook_events AS event
       SET lease_token = NULL, next_attempt_at = now() + :ahead,
           status = CASE WHEN attempts = 0 THEN 'in_flight' ELSE 'pending_retry' END
      FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS uuid[])) AS held(id, token)
     WHERE event.id = held.id AND event.lease_token = held.token
    """
)


async def requeue(connection: Connection, held: Sequence[LeasedEvent], *, ahead: timedelta) -> None:
    """Let other senders have these events at once; no attempt is counted."""
    values: dict[str, Any] = {
        "ids": [event.id for event in held],
        "tokens": [event.token for event in held],
        "ahead": ahead,
    }
    await connection.execute(_REQUEUE, values)


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
       -- By the newest of these it is known when the next one may follow.
       AND (event.event_type <> 'job.progress' OR event.created_at < now() - interval '10 s')
    """
)


async def trim_logs(connection: Connection, accounts: Iterable[uuid.UUID] | None = None) -> int:
    """Forget ended deliveries beyond the newest DELIVERY_LOG_SIZE; return how many.

    Of ``accounts``, or of all. Events that are owed or switched off are never forgotten.
    """
    values = {
        "accounts": None if accounts is None else list(accounts),
        "kept": DELIVERY_LOG_SIZE,
    }
    return (await connection.execute(_TRIM, values)).rowcount
