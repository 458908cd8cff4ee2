"""Webhook endpoints of accounts, and who subscribes to an event."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import delete, exists, func, insert, select, update

from storage.audit import record
from storage.database import Connection
from storage.keys import lock_account
from storage.records import columns, read, read_one
from storage.tables import WebhookEndpoint, jobs, webhook_endpoints, webhook_events
from storage.types import DeliveryStatus, EventType

MOST_ENDPOINTS = 10
"""Of an account."""
PROGRESS_SECONDS = 10.0
"""An endpoint gets an event of a job's progress at most this often."""


async def add_endpoint(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    url: str,
    event_types: Sequence[str],
    secret: bytes,
) -> WebhookEndpoint | None:
    """``secret`` is encrypted. None where the account has MOST_ENDPOINTS already."""
    # The lock makes concurrent additions of one account count one after the other.
    await lock_account(connection, account_id)
    if len(await list_endpoints(connection, account_id)) >= MOST_ENDPOINTS:
        return None
    values = {
        "id": uuid.uuid4(),
        "account_id": account_id,
        "url": url,
        "event_types": list(event_types),
        "current": secret,
    }
    statement = insert(webhook_endpoints).values(values).returning(*columns(WebhookEndpoint))
    [added] = await read(connection, WebhookEndpoint, statement)
    await record(connection, account_id, "createWebhookEndpoint", target=added.id)
    return added


async def list_endpoints(
    connection: Connection, account_id: uuid.UUID, endpoint_id: uuid.UUID | None = None
) -> list[WebhookEndpoint]:
    """Return the account's endpoints, the oldest first; only the one with this id, if given."""
    query = select(*columns(WebhookEndpoint)).where(webhook_endpoints.c.account_id == account_id)
    if endpoint_id is not None:
        query = query.where(webhook_endpoints.c.id == endpoint_id)
    query = query.order_by(webhook_endpoints.c.created_at, webhook_endpoints.c.id)
    return await read(connection, WebhookEndpoint, query)


async def change_endpoint(
    connection: Connection,
    account_id: uuid.UUID,
    endpoint_id: uuid.UUID,
    *,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
    secret: bytes | None = None,
) -> WebhookEndpoint | None:
    """Change what is given; None if the account has no such endpoint.

    A new URL gets what is still owed to the old one; the secret before a new one signs on for
    ``webhooks.OVERLAP``.
    """
    given = {"url": url, "event_types": event_types, "current": secret}
    values: dict[str, object] = {k: value for k, value in given.items() if value is not None}
    if secret is not None:
        values |= {"previous": webhook_endpoints.c.current, "rotated_at": func.now()}
    statement = (
        update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.account_id == account_id)
        .values(values or {"url": webhook_endpoints.c.url})
        .returning(*columns(WebhookEndpoint))
    )
    changed = await read_one(connection, WebhookEndpoint, statement)
    if changed is not None and url is not None:
        owed = webhook_events.c.status.in_([DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING_RETRY])
        await connection.execute(
            update(webhook_events)
            .where(webhook_events.c.endpoint_id == endpoint_id, owed)
            .values(url=url)
        )
    if changed is None:
        return None
    action = "changeWebhookEndpoint" if secret is None else "rotateWebhookEndpoint"
    await record(connection, account_id, action, target=endpoint_id)
    return changed


async def delete_endpoint(
    connection: Connection, account_id: uuid.UUID, endpoint_id: uuid.UUID
) -> WebhookEndpoint | None:
    """Delete it with its deliveries; None if the account has no such endpoint."""
    statement = (
        delete(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.account_id == account_id)
        .returning(*columns(WebhookEndpoint))
    )
    deleted = await read_one(connection, WebhookEndpoint, statement)
    if deleted is not None:
        await record(connection, account_id, "deleteWebhookEndpoint", target=endpoint_id)
    return deleted


async def list_subscribers(
    connection: Connection, job_id: uuid.UUID, event_type: EventType
) -> list[tuple[uuid.UUID, str]]:
    """Return id and URL of each endpoint that gets an event of this type of the job now.

    They cannot be deleted before the transaction ends.
    """
    endpoint, event = webhook_endpoints.c, webhook_events.c
    query = (
        select(endpoint.id, endpoint.url)
        .join(jobs, jobs.c.account_id == endpoint.account_id)
        .where(jobs.c.id == job_id, endpoint.event_types.contains([event_type]))
        .with_for_update(of=webhook_endpoints, read=True, key_share=True)
    )
    if event_type is EventType.JOB_PROGRESS:
        lately = exists().where(
            event.endpoint_id == endpoint.id,
            event.job_id == job_id,
            event.event_type == event_type,
            event.created_at > func.now() - timedelta(seconds=PROGRESS_SECONDS),
        )
        query = query.where(~lately)
    return [(row.id, row.url) for row in await connection.execute(query)]


async def drop_progress(
    connection: Connection, job_id: uuid.UUID, endpoint_ids: Collection[uuid.UUID] | None = None
) -> None:
    """Forget events of the job's progress (to these endpoints, or to all), which a later event
    makes pointless; those that are being sent stay."""
    event = webhook_events.c
    of_account = select(webhook_endpoints.c.id).join(
        jobs, (jobs.c.account_id == webhook_endpoints.c.account_id) & (jobs.c.id == job_id)
    )
    await connection.execute(
        delete(webhook_events).where(
            event.endpoint_id.in_(of_account if endpoint_ids is None else endpoint_ids),
            event.job_id == job_id,
            event.event_type == EventType.JOB_PROGRESS,
            event.lease_token.is_(None),
        )
    )
