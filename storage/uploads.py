"""Files that a job waits for: one row a slot (``media``, ``audio``, ``track-N``).

``arriving_until`` marks a PUT under way, the writer's token and deadline a resumable upload. Both
move on only while bytes arrive, so that a dead process blocks nothing for long.

Beside a file that browsers cannot play lies its preview, pending, made or failed: a row a job.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, exists, func, literal_column, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection
from storage.records import columns, read, read_one
from storage.tables import Upload, jobs, previews, uploads
from storage.types import JobState, PreviewStatus, Tier
from storage.work import Held, queue

__all__ = ["Upload"]

MEDIA_SLOT = "media"
AUDIO_SLOT = "audio"
TRACK_SLOT = "track-"
JOBS_PREFIX = "jobs"
ERASED_PREFIX = "erased"
"""Of an object for each job that was erased, with the time: a restore erases them again."""
"""The folder of the object store that holds a folder a job."""

_AT_ONCE = 100
_LOOK_LOCK = 0x7661735F6C6F6F6B
"""Held while uploads are leased that may have come directly ("vas_look")."""
"""Bounds the transaction, which locks their accounts until it ends."""

MOST_LATE = timedelta(hours=6)
"""How long an upload that began in time may go on: the largest file at 40 Mbit/s."""


SHORTEST_PAUSE_SECONDS = 1
LONGEST_PAUSE_SECONDS = 10

_ONE_SECOND: ColumnElement[timedelta] = literal_column("interval '1 second'")

_AGE_SHARE = 60
"""A job that has waited a minute is looked at every second, one of ten minutes every ten."""


def source_prefix(job_id: uuid.UUID) -> str:
    """Return where a job's media lie in the object store."""
    return f"{JOBS_PREFIX}/{job_id}/source"


def preview_key(job_id: uuid.UUID, muted: Sequence[tuple[int, int]] = ()) -> str:
    """Return where the preview of a job's media lies: beside the source, so that it goes with it.

    One with other intervals of silence is another object, whoever is still making the one before.
    """
    silence = f"-{hashlib.sha256(repr([*muted]).encode()).hexdigest()[:16]}" if muted else ""
    return f"{source_prefix(job_id)}/preview{silence}.mp4"


async def list_uploads(connection: Connection, job_id: uuid.UUID) -> list[Upload]:
    """Return all files that the job was created with."""
    query = select(*columns(Upload)).where(uploads.c.job_id == job_id).order_by(uploads.c.slot)
    return await read(connection, Upload, query)


async def find_upload(connection: Connection, job_id: uuid.UUID, slot: str) -> Upload | None:
    """Return one of the job's files, or None."""
    return await read_one(connection, Upload, select(*columns(Upload)).where(_is(job_id, slot)))


def _is(job_id: uuid.UUID, slot: str) -> ColumnElement[bool]:
    return (uploads.c.job_id == job_id) & (uploads.c.slot == slot)


def _awaited() -> ColumnElement[bool]:
    """The file's job still takes uploads; joins ``jobs``."""
    return (jobs.c.id == uploads.c.job_id) & (jobs.c.state == JobState.AWAITING_UPLOAD)


async def _change(
    connection: Connection,
    job_id: uuid.UUID,
    slot: str,
    *conditions: ColumnElement[bool],
    **values: object,
) -> bool:
    """Change the file's row if the conditions hold; return whether they did."""
    statement = update(uploads).where(_is(job_id, slot), *conditions).values(values)
    return (await connection.execute(statement)).rowcount == 1


async def complete_upload(
    connection: Connection,
    job_id: uuid.UUID,
    slot: str,
    received_bytes: int,
    *,
    object_key: str | None = None,
) -> bool:
    """Record a complete file; return whether every file of the job is now there.

    ``object_key`` replaces the row's. The caller holds the job's lock, so that only one of two
    files can be the last.
    """
    values: dict[str, object] = {"received_bytes": received_bytes, "completed_at": func.now()}
    if object_key is not None:
        values["object_key"] = object_key
    await _change(connection, job_id, slot, **values)
    missing = select(func.count()).where(
        uploads.c.job_id == job_id, uploads.c.completed_at.is_(None)
    )
    return (await connection.execute(missing)).scalar_one() == 0


async def keep_arriving(
    connection: Connection, job_id: uuid.UUID, slot: str, *, lease: timedelta, arriving: bool
) -> bool:
    """Return a PUT's heartbeat; False once the job takes no upload any more.

    ``arriving``: bytes came since the last one; only then is ``arriving_until`` extended. Several
    PUTs of one file may run; it is the latest of theirs.
    """
    known = uploads.c.arriving_until
    until = func.greatest(known, func.now() + lease) if arriving else known
    return await _change(connection, job_id, slot, _awaited(), arriving_until=until)


async def take_writer(
    connection: Connection, job_id: uuid.UUID, slot: str, token: uuid.UUID, *, lease: timedelta
) -> bool:
    """Take the lease to append to a resumable upload; False if another request holds it.

    A writer whose deadline passed is replaced. False also where the job takes no upload any more.
    """
    free = or_(uploads.c.writer_token.is_(None), uploads.c.writer_expires_at < func.now())
    held = {"writer_token": token, "writer_expires_at": func.now() + lease}
    alive = uploads.c.terminated_at.is_(None)
    return await _change(connection, job_id, slot, free, alive, _awaited(), **held)


async def keep_writer(
    connection: Connection,
    job_id: uuid.UUID,
    slot: str,
    token: uuid.UUID,
    *,
    lease: timedelta,
    arriving: bool,
) -> bool:
    """Return the writer's heartbeat; False once it was replaced or the job takes no upload any
    more."""
    # A writer without progress keeps its lease only until another request takes it.
    deadline = func.now() + lease if arriving else uploads.c.writer_expires_at
    own = uploads.c.writer_token == token
    return await _change(connection, job_id, slot, own, _awaited(), writer_expires_at=deadline)


async def release_writer(
    connection: Connection, job_id: uuid.UUID, slot: str, token: uuid.UUID
) -> None:
    """Release the lease; does nothing for a writer that was replaced."""
    own = uploads.c.writer_token == token
    await _change(connection, job_id, slot, own, writer_token=None, writer_expires_at=None)


async def set_unverified(
    connection: Connection, job_id: uuid.UUID, slot: str, token: uuid.UUID, offset_bytes: int | None
) -> bool:
    """Set the offset from which bytes do not count yet; None once all do. False if replaced."""
    own = uploads.c.writer_token == token
    return await _change(connection, job_id, slot, own, unverified_from_bytes=offset_bytes)


async def set_resumable_length(
    connection: Connection, job_id: uuid.UUID, slot: str, size_bytes: int
) -> bool:
    """Fix the length that was left open; False if another one is fixed already."""
    known = func.coalesce(uploads.c.declared_bytes, uploads.c.resumable_bytes)
    fits = or_(known.is_(None), known == size_bytes)
    return await _change(connection, job_id, slot, fits, resumable_bytes=size_bytes)


async def terminate_upload(
    connection: Connection, job_id: uuid.UUID, slot: str, token: uuid.UUID
) -> bool:
    """Terminate a resumable upload for its client; False if its writer was replaced meanwhile."""
    gone = ("received_bytes", "completed_at", "resumable_bytes", "unverified_from_bytes")
    values = {"terminated_at": func.now(), **dict.fromkeys(gone)}
    own = uploads.c.writer_token == token
    return await _change(connection, job_id, slot, own, _awaited(), **values)


async def list_lost_writers(
    connection: Connection, *, lost_after: timedelta, limit: int
) -> list[Upload]:
    """Resumable uploads whose lease ran out longer than ``lost_after`` ago."""
    lost = uploads.c.writer_expires_at < func.now() - lost_after
    query = (
        select(*columns(Upload))
        .where(uploads.c.writer_token.is_not(None), lost)
        .order_by(uploads.c.writer_expires_at)
        .limit(limit)
    )
    return await read(connection, Upload, query)


async def forget_writer(
    connection: Connection, job_id: uuid.UUID, slot: str, *, lost_after: timedelta
) -> bool:
    """Remove a writer that ``list_lost_writers`` returned; False if it came back."""
    lost = uploads.c.writer_expires_at < func.now() - lost_after
    return await _change(connection, job_id, slot, lost, writer_token=None, writer_expires_at=None)


async def list_expired_jobs(
    connection: Connection,
    *,
    grace: timedelta = timedelta(0),
    among: Collection[uuid.UUID] | None = None,
) -> list[uuid.UUID]:
    """Up to 100 jobs whose upload time has been over for ``grace`` without their files.

    A file that is still coming in holds its job open, up to MOST_LATE.
    """
    in_flight = exists().where(
        uploads.c.job_id == jobs.c.id,
        or_(uploads.c.arriving_until > func.now(), uploads.c.writer_expires_at > func.now()),
    )
    query = (
        select(jobs.c.id)
        .where(
            jobs.c.state == JobState.AWAITING_UPLOAD,
            jobs.c.upload_expires_at < func.now() - grace,
            or_(~in_flight, jobs.c.upload_expires_at < func.now() - MOST_LATE),
            true() if among is None else jobs.c.id.in_(among),
        )
        .order_by(jobs.c.upload_expires_at)
        .limit(_AT_ONCE)
    )
    return list((await connection.execute(query)).scalars())


@dataclass(frozen=True, slots=True)
class AwaitedUpload:
    """A file that may have been uploaded directly."""

    job_id: uuid.UUID
    slot: str
    tier: Tier
    look_after: datetime


async def lease_awaited_uploads(connection: Connection, *, limit: int) -> list[AwaitedUpload]:
    """Lease up to ``limit`` uploads that are due to be looked for; sets when they are next due.

    Files being uploaded through the service are left out. Nothing while another process leases.
    """
    if not await connection.scalar(select(func.pg_try_advisory_xact_lock(_LOOK_LOCK))):
        return []
    in_flight = or_(uploads.c.arriving_until > func.now(), uploads.c.writer_expires_at > func.now())
    due = (
        select(uploads.c.job_id, uploads.c.slot, jobs.c.tier, jobs.c.created_at)
        .join(jobs, jobs.c.id == uploads.c.job_id)
        .where(
            jobs.c.state == JobState.AWAITING_UPLOAD,
            uploads.c.completed_at.is_(None),
            func.coalesce(uploads.c.look_after, jobs.c.created_at) <= func.now(),
            in_flight.is_not(True),
        )
        .order_by(func.coalesce(uploads.c.look_after, jobs.c.created_at))
        .limit(limit)
        .cte("due")
    )
    age_seconds = func.extract("epoch", func.now() - due.c.created_at)
    pause = func.least(
        func.greatest(age_seconds / _AGE_SHARE, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS
    )
    statement = (
        update(uploads)
        .where(uploads.c.job_id == due.c.job_id, uploads.c.slot == due.c.slot)
        .values(look_after=func.now() + pause * _ONE_SECOND)
        .returning(uploads.c.job_id, uploads.c.slot, due.c.tier, uploads.c.look_after)
    )
    return await read(connection, AwaitedUpload, statement)


async def list_expired_awaited_uploads(
    connection: Connection, *, grace: timedelta, limit: int
) -> list[tuple[uuid.UUID, str, bool]]:
    """Job and slot of up to ``limit`` files that never came and whose time was over ``grace``
    ago, those longest over first; with each whether it is over for longer than MOST_LATE."""
    query = (
        select(
            uploads.c.job_id,
            uploads.c.slot,
            (jobs.c.upload_expires_at < func.now() - MOST_LATE).label("too_late"),
        )
        .join(jobs, jobs.c.id == uploads.c.job_id)
        .where(
            jobs.c.state == JobState.AWAITING_UPLOAD,
            uploads.c.completed_at.is_(None),
            jobs.c.upload_expires_at < func.now() - grace,
        )
        .order_by(jobs.c.upload_expires_at)
        .limit(limit)
    )
    return [(row.job_id, row.slot, row.too_late) for row in await connection.execute(query)]


async def extend_awaited_upload(
    connection: Connection, item: AwaitedUpload, *, lease: timedelta
) -> AwaitedUpload | None:
    """Extend the lease on an awaited file; None if another process holds it now."""
    statement = (
        update(uploads)
        .where(
            uploads.c.job_id == item.job_id,
            uploads.c.slot == item.slot,
            uploads.c.look_after == item.look_after,
        )
        .values(look_after=func.now() + lease)
        .returning(uploads.c.look_after)
    )
    until = (await connection.execute(statement)).scalar_one_or_none()
    return None if until is None else replace(item, look_after=until)


PREVIEW = "preview"
"""Kind of work."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What became of a job's preview; ``reason`` is why there is none."""

    status: PreviewStatus
    reason: str | None


async def want_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue a preview of the object; one that is pending or ended stays as it is."""
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    new = statement.on_conflict_do_nothing().returning(previews.c.job_id)
    if (await connection.execute(new)).first() is not None:
        await queue(connection, PREVIEW, job_id)


async def want_muted_preview(connection: Connection, job_id: uuid.UUID, source_key: str) -> None:
    """Queue another preview of the object, whatever became of the one before."""
    fresh = {"status": PreviewStatus.WAITING, "reason": None}
    statement = insert(previews).values(job_id=job_id, source_key=source_key)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[previews.c.job_id], set_=fresh)
    )
    await queue(connection, PREVIEW, job_id)


async def find_preview(connection: Connection, job_id: uuid.UUID) -> Preview | None:
    """Return None for media that is played as it is."""
    query = select(previews.c.status, previews.c.reason).where(previews.c.job_id == job_id)
    row = (await connection.execute(query)).first()
    return None if row is None else Preview(PreviewStatus(row.status), row.reason)


async def is_preview_wanted(connection: Connection, held: Held) -> bool:
    """Return whether a preview has somebody to be played to: its job goes on, and its media is
    there."""
    query = select(jobs.c.id).where(
        jobs.c.id == held.subject_id,
        jobs.c.state.not_in((JobState.CANCELLED, JobState.FAILED, JobState.EXPIRED)),
        jobs.c.cleaned_at.is_(None),
        jobs.c.cleaning_after.is_(None),
    )
    return await connection.scalar(query) is not None


async def find_preview_source(connection: Connection, job_id: uuid.UUID) -> str | None:
    """Return the object that a preview is made of; None where none is to be made any more."""
    query = select(previews.c.source_key).where(previews.c.job_id == job_id)
    found: str | None = await connection.scalar(query)
    return found


async def end_preview(
    connection: Connection, job_id: uuid.UUID, status: PreviewStatus, reason: str | None = None
) -> None:
    """Record what became of it."""
    statement = update(previews).where(previews.c.job_id == job_id)
    await connection.execute(statement.values(status=status, reason=reason))
