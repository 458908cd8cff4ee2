"""Voices that an account has named, and what speakers of its jobs sound like."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import delete, func, insert, select, update

from storage.audit import record
from storage.database import Connection
from storage.keys import lock_account
from storage.records import columns, read
from storage.results import name_speaker
from storage.tables import Voice, speaker_voices, voices

MOST_VOICES = 500
"""Of an account."""
MOST_SAMPLES = 20
"""Of a voice; 8 MB of vectors are compared at most."""


@dataclass(frozen=True, slots=True)
class VoiceSample:
    """What a named voice sounds like in one job."""

    voice_id: uuid.UUID
    name: str
    vector: npt.NDArray[np.float32]
    """Of unit length, shape (dimensions,)."""


async def keep_voices(
    connection: Connection,
    job_id: uuid.UUID,
    track_index: int,
    found: Sequence[tuple[str, Sequence[float]]],
    model: str,
) -> None:
    """Keep what the speakers of a track sound like, by their ids, as long as its transcript.

    ``model`` names what made the vectors: only those of one model can be compared.
    """
    rows = [
        {
            "job_id": job_id,
            "track_index": track_index,
            "speaker_id": speaker_id,
            "model": model,
            "vector": np.asarray(vector, "<f4").tobytes(),
        }
        for speaker_id, vector in found
    ]
    if rows:
        await connection.execute(insert(speaker_voices).values(rows))


async def list_speakers(
    connection: Connection, job_id: uuid.UUID
) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """Return what the speakers of a job's first track sound like, by their ids: unit vectors."""
    query = (
        select(speaker_voices.c.speaker_id, speaker_voices.c.vector)
        .where(speaker_voices.c.job_id == job_id, speaker_voices.c.track_index == 0)
        .order_by(speaker_voices.c.speaker_id)
    )
    return [
        (row.speaker_id, np.frombuffer(row.vector, "<f4"))
        for row in await connection.execute(query)
    ]


async def list_samples(
    connection: Connection, account_id: uuid.UUID, model: str
) -> list[VoiceSample]:
    """Return all of an account's that were made by ``model``."""
    query = (
        select(voices.c.id, voices.c.name, speaker_voices.c.vector)
        .join(speaker_voices, speaker_voices.c.voice_id == voices.c.id)
        .where(voices.c.account_id == account_id, speaker_voices.c.model == model)
        .order_by(voices.c.created_at, voices.c.id)
    )
    return [
        VoiceSample(row.id, row.name, np.frombuffer(row.vector, "<f4"))
        for row in await connection.execute(query)
    ]


async def list_voices(
    connection: Connection, account_id: uuid.UUID, voice_id: uuid.UUID | None = None
) -> list[Voice]:
    """Return the account's voices, the oldest first; only the one with this id, if given."""
    samples = (
        select(func.count())
        .where(speaker_voices.c.voice_id == voices.c.id)
        .correlate(voices)
        .scalar_subquery()
    )
    query = (
        select(*columns(Voice), samples.label("samples"))
        .where(voices.c.account_id == account_id)
        .order_by(voices.c.created_at, voices.c.id)
    )
    if voice_id is not None:
        query = query.where(voices.c.id == voice_id)
    return await read(connection, Voice, query)


async def find_or_add_voice(
    connection: Connection, account_id: uuid.UUID, name: str
) -> Voice | None:
    """Return the account's voice of that name, added if there is none; None where it has
    MOST_VOICES."""
    # The lock makes concurrent additions of one account count one after the other.
    await lock_account(connection, account_id)
    there = await list_voices(connection, account_id)
    found = next((each for each in there if each.name == name), None)
    if found is not None or len(there) >= MOST_VOICES:
        return found
    voice_id = uuid.uuid4()
    values = {"id": voice_id, "account_id": account_id, "name": name}
    await connection.execute(insert(voices).values(values))
    [added] = await list_voices(connection, account_id, voice_id)
    return added


async def learn_voice(
    connection: Connection, voice: Voice, job_id: uuid.UUID, track_index: int, speaker_id: str
) -> bool:
    """Learn the voice from a speaker, and name that one so; False where its vector is not kept."""
    row = {"job_id": job_id, "track_index": track_index, "speaker_id": speaker_id}
    learnt = update(speaker_voices).filter_by(**row).values(voice_id=voice.id)
    if (await connection.execute(learnt)).rowcount == 0:
        return False
    await name_speaker(connection, job_id, track_index, speaker_id, voice.name, voice.id)
    return True


async def delete_voice(connection: Connection, account_id: uuid.UUID, voice_id: uuid.UUID) -> bool:
    """With the names that it gave to speakers, none of which it is learnt from any more; False
    without such a voice."""
    statement = delete(voices).where(voices.c.account_id == account_id, voices.c.id == voice_id)
    deleted = (await connection.execute(statement)).rowcount == 1
    if deleted:
        await record(connection, account_id, "deleteVoice", target=voice_id)
    return deleted
