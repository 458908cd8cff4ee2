"""Files that a job waits for: one row a slot (``media``, ``audio``, ``track-N``)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import uploads

MEDIA_SLOT = "media"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was announced, and what of it has arrived."""

    job_id: uuid.UUID
    slot: str
    file_name: str
    object_key: str
    declared_bytes: int | None
    received_bytes: int | None
    completed_at: datetime | None


async def insert_upload(connection: AsyncConnection, upload: Upload) -> None:
    """Announce a file."""
    await connection.execute(
        insert(uploads).values(
            {name: getattr(upload, name) for name in Upload.__dataclass_fields__}
        )
    )


async def list_uploads(connection: AsyncConnection, job_id: uuid.UUID) -> list[Upload]:
    """All files that the job was created with."""
    query = (
        select(*[uploads.c[name] for name in Upload.__dataclass_fields__])
        .where(uploads.c.job_id == job_id)
        .order_by(uploads.c.slot)
    )
    return [Upload(**row) for row in (await connection.execute(query)).mappings()]


async def complete_upload(
    connection: AsyncConnection, job_id: uuid.UUID, slot: str, received_bytes: int
) -> bool:
    """Record a complete file; return whether every file of the job is now there.

    The caller holds the job's lock, so that two last files cannot both be last.
    """
    await connection.execute(
        update(uploads)
        .where(uploads.c.job_id == job_id, uploads.c.slot == slot)
        .values(received_bytes=received_bytes, completed_at=func.now())
    )
    missing = select(func.count()).where(
        uploads.c.job_id == job_id, uploads.c.completed_at.is_(None)
    )
    return (await connection.execute(missing)).scalar_one() == 0
