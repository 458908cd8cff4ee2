"""Comments that people write about places in a job's media; and who edits its transcript now."""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import Select, delete, func, insert, select, update

from storage.audit import current_actor, record
from storage.database import Connection
from storage.keys import fingerprint
from storage.records import columns, read, read_one
from storage.tables import Comment, comments, jobs, sessions, users
from storage.types import ActorKind

MOST_COMMENTS = 1000
"""Of a job."""
EDITING = timedelta(seconds=45)
"""How long a session counts as editing after its last notice."""


def _comments(job_id: uuid.UUID) -> Select[tuple[object, ...]]:
    return (
        select(*columns(Comment, "author"), users.c.email.label("author"))
        .outerjoin(users, users.c.id == comments.c.made_by)
        .where(comments.c.job_id == job_id)
    )


async def list_comments(connection: Connection, job_id: uuid.UUID) -> list[Comment]:
    """Return a job's comments by their places."""
    query = _comments(job_id).order_by(comments.c.time_ms, comments.c.created_at, comments.c.id)
    return await read(connection, Comment, query)


async def add_comment(
    connection: Connection, account_id: uuid.UUID, job_id: uuid.UUID, time_ms: int, words: str
) -> Comment | None:
    """Add what the current actor writes; None where the job was erased, or has MOST_COMMENTS."""
    # One after the other: those that are added at the same time count, and none outlives a job.
    own = jobs.c.id == job_id, jobs.c.erased_at.is_(None)
    kept = await connection.execute(select(jobs.c.id).where(*own).with_for_update())
    count = select(func.count()).where(comments.c.job_id == job_id)
    if kept.first() is None or (await connection.execute(count)).scalar_one() >= MOST_COMMENTS:
        return None
    actor, comment_id = current_actor(), uuid.uuid4()
    made_by = actor.id if actor.kind is ActorKind.USER else None
    values = {"id": comment_id, "job_id": job_id, "time_ms": time_ms, "text": words}
    await connection.execute(insert(comments).values(values | {"made_by": made_by}))
    await record(connection, account_id, "addComment", job_id=job_id)
    return await read_one(connection, Comment, _comments(job_id).where(comments.c.id == comment_id))


async def resolve_comment(
    connection: Connection,
    account_id: uuid.UUID,
    job_id: uuid.UUID,
    comment_id: uuid.UUID,
    *,
    resolved: bool,
) -> Comment | None:
    """Mark it as resolved or open again; None where the job has no such comment."""
    own = comments.c.job_id == job_id, comments.c.id == comment_id
    resolved_at = func.coalesce(comments.c.resolved_at, func.now()) if resolved else None
    await connection.execute(update(comments).where(*own).values(resolved_at=resolved_at))
    changed = await read_one(
        connection, Comment, _comments(job_id).where(comments.c.id == comment_id)
    )
    if changed is not None:
        await record(connection, account_id, "changeComment", job_id=job_id)
    return changed


async def delete_comment(
    connection: Connection, account_id: uuid.UUID, job_id: uuid.UUID, comment_id: uuid.UUID
) -> Comment | None:
    """Delete it; None where the job has no such comment."""
    found = await read_one(
        connection, Comment, _comments(job_id).where(comments.c.id == comment_id)
    )
    if found is not None:
        await connection.execute(delete(comments).where(comments.c.id == comment_id))
        await record(connection, account_id, "deleteComment", job_id=job_id)
    return found


async def note_editing(connection: Connection, session: str, job_id: uuid.UUID) -> list[str]:
    """Note that a session edits a job's transcript; return who else does."""
    own = sessions.c.token_sha256 == fingerprint(session)
    await connection.execute(
        update(sessions)
        .where(own)
        .values(editing_job_id=job_id, editing_until=func.now() + EDITING)
    )
    others = (
        select(func.coalesce(users.c.email, "somebody else"))
        .select_from(sessions)
        .outerjoin(users, users.c.id == sessions.c.user_id)
        .where(
            sessions.c.editing_job_id == job_id,
            sessions.c.editing_until > func.now(),
            ~own,
        )
        .distinct()
    )
    return sorted((await connection.execute(others)).scalars())
