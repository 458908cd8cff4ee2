"""Webhook events, written in the transaction that ends the job, and the log of their delivery."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import webhook_events
from storage.types import DeliveryStatus, EventType

DELIVERY_LOG_SIZE = 100

EVENTS_CHANNEL = "vas_webhook_events"
"""NOTIFY channel that wakes idle senders."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event and how its delivery stands."""

    id: str
    job_id: uuid.UUID
    event_type: str
    url: str
    status: str
    attempts: int
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime


def event_id(job_id: uuid.UUID, event_type: EventType) -> str:
    """The event's ``webhook-id``: one of a kind a job."""
    return f"{job_id}:{event_type}"


async def add_event(
    connection: AsyncConnection,
    *,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    event_type: EventType,
    url: str,
    body: bytes,
) -> None:
    """Write an event; a second one of the same kind for a job is the first one."""
    statement = (
        insert(webhook_events)
        .values(
            id=event_id(job_id, event_type),
            account_id=account_id,
            job_id=job_id,
            event_type=event_type,
            url=url,
            body=body,
        )
        .on_conflict_do_nothing()
    )
    await connection.execute(statement)
    await _wake_senders(connection)


async def _wake_senders(connection: AsyncConnection) -> None:
    await connection.execute(text(f"NOTIFY {EVENTS_CHANNEL}"))


async def replay_event(
    connection: AsyncConnection,
    *,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    event_type: EventType,
    url: str,
    body: bytes,
) -> bool:
    """Deliver an event again: a new series of attempts under its old id.

    ``body`` and ``url`` are for an event that has left the log; one that is still there
    keeps its own. An attempt under way is not recorded any more. Returns False for an
    event that its endpoint has switched off (410), which stays as it is.
    """
    table = webhook_events.c
    fresh = insert(webhook_events).values(
        id=event_id(job_id, event_type),
        account_id=account_id,
        job_id=job_id,
        event_type=event_type,
        url=url,
        body=body,
    )
    anew = fresh.on_conflict_do_update(
        index_elements=[table.id],
        set_={
            "status": DeliveryStatus.IN_FLIGHT,
            "attempts": 0,
            "last_status": None,
            "last_error": None,
            "next_attempt_at": func.now(),
            "lease_token": None,
            "delivered_at": None,
        },
        where=table.status != DeliveryStatus.DISABLED,
    ).returning(table.id)
    written = (await connection.execute(anew)).first() is not None
    if written:
        await _wake_senders(connection)
    return written


async def list_deliveries(
    connection: AsyncConnection, account_id: uuid.UUID, *, job_id: uuid.UUID | None = None
) -> list[Delivery]:
    """The account's last deliveries, newest first; of one job if ``job_id`` is given."""
    table = webhook_events.c
    query = (
        select(*[table[name] for name in Delivery.__dataclass_fields__])
        .where(table.account_id == account_id)
        .order_by(table.created_at.desc(), table.id.desc())
        .limit(DELIVERY_LOG_SIZE)
    )
    if job_id is not None:
        query = query.where(table.job_id == job_id)
    return [Delivery(**row) for row in (await connection.execute(query)).mappings()]
