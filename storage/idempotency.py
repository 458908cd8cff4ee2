"""Remembered answers of creations: the first one is given again for 24 hours."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import idempotency_records

MEMORY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a key stands for: one operation of one account."""

    account_id: uuid.UUID
    operation: str
    key: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The first answer, to the byte."""

    body_sha256: bytes
    status: int
    headers: dict[str, str]
    body: bytes


async def try_lock(connection: AsyncConnection, slot: Slot) -> bool:
    """Take the slot for this transaction; False while another request holds it.

    The lock dies with its transaction: a request that is cut off leaves no
    key that is in progress for ever.
    """
    name = f"{slot.account_id}\n{slot.operation}\n{slot.key}".encode()
    number = int.from_bytes(hashlib.sha256(name).digest()[:8], signed=True)
    query = text("SELECT pg_try_advisory_xact_lock(:number)")
    return bool((await connection.execute(query, {"number": number})).scalar_one())


async def find_answer(connection: AsyncConnection, slot: Slot) -> StoredAnswer | None:
    """The remembered answer, unless its time is over."""
    table = idempotency_records.c
    query = select(table.body_sha256, table.status, table.headers, table.body).where(
        table.account_id == slot.account_id,
        table.operation == slot.operation,
        table.key == slot.key,
        table.created_at > func.now() - MEMORY,
    )
    row = (await connection.execute(query)).first()
    return None if row is None else StoredAnswer(*row)


async def store_answer(connection: AsyncConnection, slot: Slot, answer: StoredAnswer) -> None:
    """Remember an answer, in place of one whose time is over."""
    values = {
        "body_sha256": answer.body_sha256,
        "status": answer.status,
        "headers": answer.headers,
        "body": answer.body,
        "created_at": func.now(),
    }
    statement = insert(idempotency_records).values(
        account_id=slot.account_id, operation=slot.operation, key=slot.key, **values
    )
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["account_id", "operation", "key"], set_=values
        )
    )


async def forget_old(connection: AsyncConnection) -> None:
    """Drop answers whose time is over."""
    table = idempotency_records
    await connection.execute(delete(table).where(table.c.created_at <= func.now() - MEMORY))
