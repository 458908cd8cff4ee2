"""Archives: buckets of clients, and what became of each of their objects.

Whoever works on an archive changes it only while that work is its own. An object's state, its job
and the archive's counts change together.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import case, delete, func, insert, select, update

from storage.audit import record
from storage.database import Connection
from storage.keys import lock_account
from storage.records import columns, from_row, read, read_one
from storage.tables import Archive, ArchiveObject, accounts, archive_objects, archives, jobs
from storage.types import ArchiveState, JobState, Member, ObjectState
from storage.work import Held, WorkLostError, end, extend, put_off, queue

__all__ = ["Archive", "ArchiveObject"]

MOST_ARCHIVES = 100
"""Of an account."""
KIND = "archive"
LEASE = timedelta(seconds=30)
"""Of a step's work: of a runner that is lost nobody has the archive until then."""
_SUSPENDED_PAUSE = timedelta(seconds=15)
"""Until it is looked again whether an archive's account is suspended still."""
_REMOVED_AT_ONCE = 5000
_RETRIED_AT_ONCE = 50_000
_UNFETCHED = "FETCH_FAILED"
RETRIED_CODES = (_UNFETCHED, "CANCELLED")
"""What an archive that is resumed tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject(Member):
    """An object of a page of the list, and what it is refused for, if anything."""

    key_sha256: bytes
    error_code: str | None = None
    error_message: str | None = None

    @property
    def state(self) -> ObjectState:
        return ObjectState.WAITING if self.error_code is None else ObjectState.REFUSED


def key_digest(key: bytes) -> bytes:
    """Return what an object is known by."""
    return hashlib.sha256(key).digest()


async def add_archive(
    connection: Connection, account_id: uuid.UUID, values: Mapping[str, object]
) -> Archive | None:
    """Return the archive with these columns; None where the account has MOST_ARCHIVES already."""
    # The lock makes concurrent additions of one account count one after the other.
    await lock_account(connection, account_id)
    if len(await list_archives(connection, account_id)) >= MOST_ARCHIVES:
        return None
    own = {"id": uuid.uuid4(), "account_id": account_id, "list_after": b""}
    statement = insert(archives).values({**values, **own}).returning(*columns(Archive))
    [added] = await read(connection, Archive, statement)
    await queue(connection, KIND, added.id, account_id=account_id)
    await record(connection, account_id, "createArchive", target=added.id)
    return added


async def list_archives(
    connection: Connection, account_id: uuid.UUID, archive_id: uuid.UUID | None = None
) -> list[Archive]:
    """Return the account's archives, the oldest first; only the one with this id, if given."""
    query = select(*columns(Archive)).where(
        archives.c.account_id == account_id, archives.c.removed_at.is_(None)
    )
    if archive_id is not None:
        query = query.where(archives.c.id == archive_id)
    query = query.order_by(archives.c.created_at, archives.c.id)
    return await read(connection, Archive, query)


async def find_access(connection: Connection, archive_id: uuid.UUID) -> str | None:
    """Return the encrypted credentials; None where there are none, or no such archive any more."""
    query = select(archives.c.sealed_access).where(archives.c.id == archive_id)
    return (await connection.execute(query)).scalar_one_or_none()


async def list_objects(
    connection: Connection,
    archive_id: uuid.UUID,
    *,
    limit: int,
    after: int = 0,
    state: ObjectState | None = None,
) -> list[ArchiveObject]:
    """Return objects in the order in which they were found, behind the position ``after``."""
    query = select(*columns(ArchiveObject)).where(
        archive_objects.c.archive_id == archive_id, archive_objects.c.position > after
    )
    if state is not None:
        query = query.where(archive_objects.c.state == state)
    query = query.order_by(archive_objects.c.position).limit(limit)
    return await read(connection, ArchiveObject, query)


async def change_archive(
    connection: Connection,
    account_id: uuid.UUID,
    archive_id: uuid.UUID,
    changes: Mapping[str, object],
    action: str = "changeArchive",
) -> Archive | None:
    """Change columns; it is due at once. None if the account has no such archive."""
    values = dict(changes)
    if "watch_seconds" in values:
        watch = values["watch_seconds"]
        values["next_list_at"] = None if watch is None else _in_seconds(watch)
        if watch is not None:
            completed = archives.c.state == ArchiveState.COMPLETED
            values["state"] = case((completed, ArchiveState.ACTIVE), else_=archives.c.state)
    statement = (
        update(archives)
        .where(
            archives.c.id == archive_id,
            archives.c.account_id == account_id,
            archives.c.removed_at.is_(None),
        )
        .values(due_at=func.now(), **values)
        .returning(*columns(Archive))
    )
    changed = await read_one(connection, Archive, statement)
    if changed is None:
        return None
    await queue(connection, KIND, archive_id, account_id=account_id)
    await record(connection, account_id, action, target=archive_id)
    return changed


async def pause_archive(connection: Connection, archive: Archive) -> Archive | None:
    """Active no more; one that is not stays as it is. None if it was removed."""
    if archive.state is not ArchiveState.ACTIVE:
        return archive
    return await change_archive(
        connection, archive.account_id, archive.id, {"state": ArchiveState.PAUSED}, "pauseArchive"
    )


async def resume_archive(connection: Connection, archive: Archive) -> Archive | None:
    """Active again, from where it was, or with another list; None if it was removed.

    What could not be fetched is tried again, also of jobs that ended while it was paused.
    """
    values: dict[str, object] = {
        "state": ArchiveState.ACTIVE,
        "error_code": None,
        "error_message": None,
        "failures": 0,
        "list_after": func.coalesce(archives.c.list_after, b""),
        "next_list_at": None,
    }
    resumed = await change_archive(
        connection, archive.account_id, archive.id, values, "resumeArchive"
    )
    if resumed is not None:
        await settle_objects(connection, archive.id, unfetched=ObjectState.FAILED)
        await _retry_objects(connection, archive.id)
        [resumed] = await list_archives(connection, archive.account_id, archive.id)
    return resumed


async def _retry_objects(connection: Connection, archive_id: uuid.UUID) -> None:
    """Have the objects tried again that could not be fetched; the caller has locked the archive."""
    failed = (
        select(archive_objects.c.key_sha256)
        .where(
            archive_objects.c.archive_id == archive_id,
            archive_objects.c.state == ObjectState.FAILED,
            archive_objects.c.error_code.in_(RETRIED_CODES),
            archive_objects.c.key.is_not(None),
        )
        .limit(_RETRIED_AT_ONCE)
    )
    statement = (
        update(archive_objects)
        .where(archive_objects.c.archive_id == archive_id, archive_objects.c.key_sha256.in_(failed))
        .values(state=ObjectState.WAITING, error_code=None, error_message=None)
    )
    count = (await connection.execute(statement)).rowcount
    await _count(connection, archive_id, Counter(waiting=count, failed=-count))


async def remove_archives(
    connection: Connection, account_id: uuid.UUID, archive_id: uuid.UUID | None = None
) -> None:
    """Forget credentials and options at once, objects soon; of all the account's without an id."""
    statement = update(archives).where(
        archives.c.account_id == account_id, archives.c.removed_at.is_(None)
    )
    if archive_id is not None:
        statement = statement.where(archives.c.id == archive_id)
        await record(connection, account_id, "deleteArchive", target=archive_id)
    statement = statement.values(
        url="",
        patterns=[],
        sealed_access=None,
        options={},
        vocabulary=None,
        error_message=None,
        list_after=None,
        removed_at=func.now(),
        due_at=func.now(),
    )
    removed = (await connection.execute(statement.returning(archives.c.id))).scalars()
    for each in sorted(removed):
        await queue(connection, KIND, each, account_id=account_id)


async def take_archive(connection: Connection, held: Held) -> Archive | None:
    """Return the archive that there is something to do for; None where there is nothing, its
    account is suspended, or it is removed, of whose objects some are deleted then.

    Raises WorkLostError.
    """
    suspended = select(accounts.c.suspended_at.is_not(None)).where(
        accounts.c.id == archives.c.account_id
    )
    query = select(*columns(Archive), suspended.scalar_subquery().label("is_suspended"))
    query = query.where(archives.c.id == held.subject_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    archive = from_row(Archive, row)
    if archive.removed_at is not None:
        if not await _delete_removed(connection, archive.id):
            await put_off(connection, held, timedelta(0))
    elif archive.state is ArchiveState.ACTIVE and not row["is_suspended"]:
        return archive
    elif archive.state is ArchiveState.ACTIVE:
        await put_off(connection, held, _SUSPENDED_PAUSE)
    return None


async def lock_archive(connection: Connection, held: Held) -> Archive:
    """Return the archive, locked. Raises WorkLostError where the work on it is over."""
    query = select(*columns(Archive)).where(
        archives.c.id == held.subject_id,
        archives.c.state == ArchiveState.ACTIVE,
        archives.c.removed_at.is_(None),
    )
    archive = await read_one(connection, Archive, query.with_for_update())
    if archive is None:
        raise WorkLostError(held)
    await extend(connection, held, LEASE)
    return archive


async def release_archive(
    connection: Connection, held: Held, due_seconds: float | None, **values: Any
) -> None:
    """End a step; the archive is due in so many seconds, or when it is listed next, while it is
    active. Raises WorkLostError."""
    due = archives.c.next_list_at if due_seconds is None else _in_seconds(due_seconds)
    statement = (
        update(archives)
        .where(archives.c.id == held.subject_id)
        .values(due_at=func.coalesce(due, archives.c.due_at), **values)
        .returning(archives.c.state, (archives.c.due_at - func.now()).label("pause"))
    )
    released = (await connection.execute(statement)).one()
    if released.state == ArchiveState.ACTIVE:
        await put_off(connection, held, released.pause)
    else:
        await end(connection, held)


def _in_seconds(seconds: Any) -> Any:
    return func.now() + timedelta(seconds=seconds)


async def begin_list(connection: Connection, archive: Archive) -> None:
    """Begin another list of a watched archive whose time has come."""
    await connection.execute(
        update(archives)
        .where(archives.c.id == archive.id, archives.c.list_after.is_(None))
        .where(archives.c.next_list_at <= func.now())
        .values(list_after=b"", next_list_at=None)
    )


async def merge_page(
    connection: Connection,
    archive: Archive,
    page: Iterable[ListedObject],
    after: bytes | None,
    *,
    most_objects: int,
) -> bool:
    """Keep what is new or has changed of a page, and that the list goes on behind ``after``.

    An object has changed where its version has. None: the list is complete. Nothing is kept, and
    False returned, where the account's archives would have more than ``most_objects``. The caller
    has locked the archive.
    """
    listed = {each.key_sha256: each for each in page}
    query = select(*columns(ArchiveObject)).where(
        archive_objects.c.archive_id == archive.id, archive_objects.c.key_sha256.in_(listed)
    )
    known = {each.key_sha256: each for each in await read(connection, ArchiveObject, query)}
    counts: Counter[str] = Counter()
    new, changed = [], []
    for digest, each in listed.items():
        values = {**asdict(each), "archive_id": archive.id, "state": each.state}
        if digest not in known:
            new.append(values)
        elif _has_changed(known[digest], each):
            changed.append(values)
            counts[known[digest].state] -= 1
        else:
            continue
        counts[each.state] += 1
    if new:
        kept = sum(archives.c[f"{state}_objects"] for state in ObjectState)
        own_archives = select(func.sum(kept)).where(
            archives.c.account_id == archive.account_id, archives.c.removed_at.is_(None)
        )
        if (await connection.execute(own_archives)).scalar_one() + len(new) > most_objects:
            return False
        await connection.execute(insert(archive_objects), new)
    for values in changed:
        own = {name: values.pop(name) for name in ("archive_id", "key_sha256")}
        await connection.execute(update(archive_objects).filter_by(**own).values(values))
    await _count(connection, archive.id, counts)
    listing: dict[str, object] = {"list_after": after}
    if after is None:
        watch = archive.watch_seconds
        listing |= {
            "listed_at": func.now(),
            "next_list_at": None if watch is None else _in_seconds(watch),
        }
    await connection.execute(update(archives).where(archives.c.id == archive.id).values(listing))
    return True


def _has_changed(known: ArchiveObject, listed: ListedObject) -> bool:
    if known.state is ObjectState.REFUSED and listed.error_code != known.error_code:
        return True  # by other rules, or another limit
    before = Member("", known.size_bytes, known.etag, known.modified_at)
    return before.version != listed.version


async def settle_objects(
    connection: Connection, archive_id: uuid.UUID, *, unfetched: ObjectState | None = None
) -> bool:
    """Record how the objects ended whose jobs have; the caller has locked the archive.

    Those whose jobs could not fetch them, while their keys are kept, get the state ``unfetched``;
    without one they stay as they are. Whether there are such.
    """
    query = (
        select(*columns(ArchiveObject), jobs.c.state.label("ended"))
        .add_columns(jobs.c.error_code.label("code"), jobs.c.error_message.label("message"))
        .join(jobs, jobs.c.id == archive_objects.c.job_id)
        .where(
            archive_objects.c.archive_id == archive_id,
            archive_objects.c.state == ObjectState.RUNNING,
            jobs.c.completed_at.is_not(None),
        )
    )
    found_unfetched = False
    moved = defaultdict[tuple[ObjectState, str | None, str | None], list[ArchiveObject]](list)
    for row in (await connection.execute(query)).mappings().all():
        state = ObjectState.COMPLETED if row["ended"] == JobState.COMPLETED else ObjectState.FAILED
        code = row["code"] or (None if state is ObjectState.COMPLETED else row["ended"].upper())
        end = state, code, row["message"]
        if code == _UNFETCHED and row["key"] is not None:
            found_unfetched = True
            if unfetched is None:
                continue
            end = (unfetched, None, None) if unfetched is ObjectState.WAITING else end
        moved[end].append(from_row(ArchiveObject, row))
    for (state, code, text), each in moved.items():
        await move_objects(connection, archive_id, each, state, error_code=code, error_message=text)
    return found_unfetched


async def move_objects(
    connection: Connection,
    archive_id: uuid.UUID,
    moved: Collection[ArchiveObject],
    state: ObjectState,
    *,
    job_ids: Sequence[uuid.UUID | None] = (),
    error_code: str | None = None,
    error_message: str | None = None,
) -> None:
    """Set the state of objects, and their jobs if given; the caller has locked the archive."""
    counts: Counter[str] = Counter()
    for index, each in enumerate(moved):
        values: dict[str, object] = {
            "state": state,
            "error_code": error_code,
            "error_message": error_message,
        }
        if job_ids:
            values["job_id"] = job_ids[index]
        own = {"archive_id": archive_id, "key_sha256": each.key_sha256}
        await connection.execute(update(archive_objects).filter_by(**own).values(values))
        counts[each.state] -= 1
        counts[state] += 1
    await _count(connection, archive_id, counts)


async def _count(connection: Connection, archive_id: uuid.UUID, changes: Counter[str]) -> None:
    values = {
        f"{state}_objects": archives.c[f"{state}_objects"] + changes[state]
        for state in ObjectState
        if changes[state]
    }
    if values:
        await connection.execute(update(archives).where(archives.c.id == archive_id).values(values))


async def list_running_jobs(connection: Connection, archive: Archive) -> list[uuid.UUID]:
    """Return jobs of the archive that have not ended, also of what objects were before they
    changed."""
    query = select(jobs.c.id).where(
        jobs.c.account_id == archive.account_id,
        jobs.c.completed_at.is_(None),
        jobs.c.rerun_of.is_(None),
        jobs.c.source[("clips", 0, "archive_id")].astext == str(archive.id),
    )
    return list((await connection.execute(query)).scalars())


async def _delete_removed(connection: Connection, archive_id: uuid.UUID) -> bool:
    """Delete some objects of a removed archive; with the last ones the archive, then True."""
    some = (
        select(archive_objects.c.key_sha256)
        .where(archive_objects.c.archive_id == archive_id)
        .limit(_REMOVED_AT_ONCE)
    )
    own = archive_objects.c.archive_id == archive_id
    gone = await connection.execute(
        delete(archive_objects).where(own, archive_objects.c.key_sha256.in_(some))
    )
    if gone.rowcount == _REMOVED_AT_ONCE:
        return False
    await connection.execute(
        delete(archives).where(archives.c.id == archive_id, archives.c.removed_at.is_not(None))
    )
    return True
