"""Webhook events, written in the transaction that ends the job."""

from __future__ import annotations

import uuid

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import webhook_events
from storage.types import EventType


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
            id=f"{job_id}:{event_type}",
            account_id=account_id,
            job_id=job_id,
            event_type=event_type,
            url=url,
            body=body,
        )
        .on_conflict_do_nothing()
    )
    await connection.execute(statement)
