"""Results as published: scene lists and transcripts, JSON documents as the API shows them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import scene_lists, transcripts
from storage.types import StageStatus


@dataclass(frozen=True, slots=True)
class TrackTranscript:
    """The transcript of one track; ``document`` is None where transcription failed."""

    track_index: int
    track_name: str
    status: StageStatus
    error_code: str | None
    language: str | None
    document: dict[str, Any] | None


async def store_scenes(
    connection: AsyncConnection, job_id: uuid.UUID, scenes: list[dict[str, Any]]
) -> None:
    """Publish the scenes of a job, once."""
    await connection.execute(
        insert(scene_lists).values(job_id=job_id, scenes=scenes, scene_count=len(scenes))
    )


async def get_scenes(connection: AsyncConnection, job_id: uuid.UUID) -> list[dict[str, Any]]:
    """The scenes of a job whose vision stage completed."""
    query = select(scene_lists.c.scenes).where(scene_lists.c.job_id == job_id)
    scenes: list[dict[str, Any]] = (await connection.execute(query)).scalar_one()
    return scenes


async def store_transcripts(
    connection: AsyncConnection, job_id: uuid.UUID, tracks: list[TrackTranscript]
) -> None:
    """Publish the transcripts of all tracks of a job, once."""
    rows = [
        {
            "job_id": job_id,
            "track_index": track.track_index,
            "track_name": track.track_name,
            "status": track.status,
            "error_code": track.error_code,
            "language": track.language,
            "document": track.document,
        }
        for track in tracks
    ]
    for row in rows:
        if row["document"] is None:
            del row["document"]
        await connection.execute(insert(transcripts).values(row))


async def list_transcripts(connection: AsyncConnection, job_id: uuid.UUID) -> list[TrackTranscript]:
    """All tracks of a job by index; empty before the transcript stage completed."""
    query = (
        select(*[transcripts.c[name] for name in TrackTranscript.__dataclass_fields__])
        .where(transcripts.c.job_id == job_id)
        .order_by(transcripts.c.track_index)
    )
    rows = (await connection.execute(query)).mappings()
    return [TrackTranscript(**{**row, "status": StageStatus(row["status"])}) for row in rows]


async def find_thumbnail_key(
    connection: AsyncConnection, job_id: uuid.UUID, index: int
) -> str | None:
    """The object key of a scene's still; None without such a scene."""
    scene = scene_lists.c.scenes[index]
    query = select(scene["thumbnailKey"].astext).where(scene_lists.c.job_id == job_id)
    key: str | None = (await connection.execute(query)).scalar_one_or_none()
    return key
