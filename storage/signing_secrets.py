"""Webhook signing secrets, sealed: one an account, its predecessor kept for a day."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import signing_secrets

OVERLAP = timedelta(hours=24)
"""How long the previous secret goes on signing after a rotation."""


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """An account's secret as stored; ``previous`` only while it still signs."""

    current: bytes
    previous: bytes | None
    created_at: datetime
    rotated_at: datetime | None


async def get_or_create(
    connection: AsyncConnection, account_id: uuid.UUID, fresh: bytes
) -> SealedSecret:
    """The account's secret; ``fresh`` becomes it if it has none. Two first calls agree on one."""
    await connection.execute(
        insert(signing_secrets)
        .values(account_id=account_id, current=fresh)
        .on_conflict_do_nothing()
    )
    return await _read(connection, account_id)


async def rotate(connection: AsyncConnection, account_id: uuid.UUID, fresh: bytes) -> SealedSecret:
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
    return await _read(connection, account_id)


async def find_any_sealed(connection: AsyncConnection) -> bytes | None:
    """Any account's sealed secret: whoever cannot open it has another key than its writer."""
    query = select(signing_secrets.c.current).limit(1)
    sealed: bytes | None = (await connection.execute(query)).scalar_one_or_none()
    return sealed


async def _read(connection: AsyncConnection, account_id: uuid.UUID) -> SealedSecret:
    table = signing_secrets.c
    still_signs = (table.rotated_at > func.now() - OVERLAP).label("still_signs")
    query = select(
        table.current, table.previous, table.created_at, table.rotated_at, still_signs
    ).where(table.account_id == account_id)
    row = (await connection.execute(query)).one()
    previous = row.previous if row.still_signs else None
    return SealedSecret(row.current, previous, row.created_at, row.rotated_at)
