"""Media of an account that are the same in part: keys to find them by, and what was found.

Keys are mixed with the account's id, so that looking up those of one account reads no other's. A
job is compared once it has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import LargeBinary, bindparam, delete, exists, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection
from storage.records import from_row
from storage.tables import (
    StoredDuplicate,
    archive_objects,
    duplicates,
    fingerprint_keys,
    jobs,
    transcripts,
)
from storage.types import Cause, ResultChange, StageName
from storage.work import Held, end, is_queued, queue

__all__ = ["StoredDuplicate"]

KIND = "duplicates"
MOST_CANDIDATES = 20
"""Jobs that a job is compared with: those with most keys in common."""
_LEAST_KEYS = 2
_KEYS_AT_ONCE = 5_000
_MOST_ROWS = 20_000
"""With keys in common, of so many keys: what is in every file, a jingle, finds no more."""
MOST_PAIRS = 50_000
"""Of an archive."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredPrints:
    """Fingerprints of a job's media."""

    duration_ms: int
    shots: bytes | None
    sounds: Mapping[int, bytes]
    """By track."""
    version: str
    """Another one with every change of the results."""


def mixed(account_id: uuid.UUID, kind: str, keys: Keys) -> list[int]:
    """Return keys of an account and a kind as they are stored: SplitMix64, 32 bits of it."""
    seed = (account_id.int ^ (account_id.int >> 64)) & (1 << 64) - 1
    mixing = np.unique(keys).astype(np.uint64) << np.uint64(1) | np.uint64(kind == "sound")
    mixing = mixing * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixing = (mixing ^ (mixing >> np.uint64(shift))) * np.uint64(factor)
    found: list[int] = (mixing >> np.uint64(32)).astype(np.uint32).view(np.int32).tolist()
    return found


async def store_keys(
    connection: Connection,
    job_id: uuid.UUID,
    account_id: uuid.UUID,
    kind: str,
    parts: Sequence[Keys],
) -> None:
    """In the place of what there is of the kind; a job that has ended is due to be compared."""
    await connection.execute(delete(fingerprint_keys).filter_by(job_id=job_id, kind=kind))
    rows = [
        {"part": part, "keys": mixed(account_id, kind, keys)}
        for part, keys in enumerate(parts)
        if len(keys)
    ]
    every = {"job_id": job_id, "account_id": account_id, "kind": kind}
    if rows:
        await connection.execute(insert(fingerprint_keys), [row | every for row in rows])
    await queue_comparison(connection, job_id)


async def queue_comparison(connection: Connection, job_id: uuid.UUID) -> None:
    """Have a job compared that has ended and has keys, unless it is a rerun, whose results go to
    another."""
    has_keys = exists().where(fingerprint_keys.c.job_id == jobs.c.id)
    query = select(has_keys).where(
        jobs.c.id == job_id, jobs.c.completed_at.is_not(None), jobs.c.rerun_of.is_(None)
    )
    if await connection.scalar(query):
        await queue(connection, KIND, job_id)


async def store_sounds(
    connection: Connection, job_id: uuid.UUID, prints: Mapping[int, bytes]
) -> None:
    """Of the job's tracks, by index."""
    statement = (
        update(transcripts)
        .where(transcripts.c.job_id == job_id, transcripts.c.track_index == bindparam("index"))
        .values(sound_print=bindparam("found", type_=LargeBinary))
    )
    if prints:
        rows = [{"index": index, "found": found} for index, found in prints.items()]
        await connection.execute(statement, rows)


async def find_prints(connection: Connection, job_id: uuid.UUID) -> StoredPrints | None:
    """Return None of a job that is erased, or there is none."""
    found = (await connection.execute(_PRINTS, {"job_id": job_id})).one_or_none()
    if found is None:
        return None
    query = select(transcripts.c.track_index, transcripts.c.sound_print).where(
        transcripts.c.job_id == job_id, transcripts.c.sound_print.is_not(None)
    )
    sounds = {row.track_index: row.sound_print for row in await connection.execute(query)}
    return StoredPrints(found.duration_ms or 0, found.fingerprints, sounds, found.version)


_VERSION = """concat(scene_lists.xmin, (SELECT string_agg(t.xmin::text, ' ' ORDER BY track_index)
                          FROM transcripts t WHERE t.job_id = jobs.id)) AS version"""
_PRINTS = text(
    f"SELECT duration_ms, fingerprints, {_VERSION}"  # noqa: S608 - a constant
    " FROM jobs LEFT JOIN scene_lists ON job_id = id WHERE id = :job_id AND erased_at IS NULL"
)
_LOCKED_VERSIONS = text(
    f"SELECT id, {_VERSION}"  # noqa: S608 - a constant
    " FROM jobs LEFT JOIN scene_lists ON job_id = id"
    " WHERE id = ANY(:ids) AND erased_at IS NULL ORDER BY id FOR NO KEY UPDATE OF jobs"
)


async def find_candidates(
    connection: Connection, held: Held, probes: Mapping[str, Keys]
) -> list[uuid.UUID]:
    """Other jobs of the account with keys in common, most of them first."""
    counts = dict[uuid.UUID, int]()
    for kind, keys in probes.items():
        every = mixed(held.account_id, kind, keys)
        for first in range(0, len(every), _KEYS_AT_ONCE):
            values = {
                "job_id": held.subject_id,
                "account_id": held.account_id,
                "kind": kind,
                "keys": every[first : first + _KEYS_AT_ONCE],
                "most": _MOST_ROWS,
            }
            for row in await connection.execute(_CANDIDATES, values):
                counts[row.job_id] = counts.get(row.job_id, 0) + row.keys_met
    ranked = sorted(counts, key=lambda each: (-counts[each], each))
    return [each for each in ranked if counts[each] >= _LEAST_KEYS][:MOST_CANDIDATES]


_CANDIDATES = text(
    """
    SELECT met.job_id, count(*) AS keys_met
      FROM (SELECT job_id, keys FROM fingerprint_keys
             WHERE keys && CAST(:keys AS int[]) AND account_id = :account_id
               AND kind = :kind AND job_id <> :job_id LIMIT :most) AS met
      JOIN jobs ON jobs.id = met.job_id AND jobs.rerun_of IS NULL AND jobs.erased_at IS NULL
           AND jobs.account_id = :account_id
     CROSS JOIN unnest(met.keys) AS each
      JOIN (SELECT DISTINCT unnest(CAST(:keys AS int[])) AS key) AS wanted ON wanted.key = each
     GROUP BY met.job_id
    """
)


async def replace_duplicates(
    connection: Connection,
    held: Held,
    found: Iterable[StoredDuplicate],
    versions: Mapping[uuid.UUID, str],
) -> None:
    """What the job has in common with others, in the place of what was found before.

    ``versions`` are those that were compared. Where one of them has changed since, what it has in
    common is left out, and the job is due once more; what was erased is left out. Raises
    WorkLostError.
    """
    job_id = held.subject_id
    ids = sorted({job_id, *versions})
    locked = {row.id: row for row in await connection.execute(_LOCKED_VERSIONS, {"ids": ids})}
    await end(connection, held)
    same = {each for each, row in locked.items() if row.version == versions.get(each)}
    if (locked.keys() & versions.keys()) - same:
        await queue(connection, KIND, job_id)
    await forget(connection, job_id)
    rows = [
        asdict(each) | {"job_id": job_id}
        if job_id < each.other_id
        else asdict(each.swapped(job_id)) | {"job_id": each.other_id}
        for each in found
        if {job_id, each.other_id} <= same
    ]
    if rows:
        await connection.execute(insert(duplicates).on_conflict_do_nothing(), rows)


async def forget(connection: Connection, job_id: uuid.UUID) -> None:
    """Delete what was found of a job."""
    either = or_(duplicates.c.job_id == job_id, duplicates.c.other_id == job_id)
    await connection.execute(delete(duplicates).where(either))


async def follow(connection: Connection, change: ResultChange) -> None:
    """Keep what is looked up of a job, and what was found of it, in step with its results."""
    if change.cause is Cause.RENEWED:
        for stage in change.stages:
            values = {"job_id": change.job_id, "rerun_id": change.rerun_id, "kind": _KINDS[stage]}
            await connection.execute(_FORGET_KEYS, values)
            await connection.execute(_MOVE_KEYS, values)
        await forget(connection, change.job_id)
        await queue_comparison(connection, change.job_id)
    elif change.cause is Cause.ERASED:
        await connection.execute(delete(fingerprint_keys).filter_by(job_id=change.job_id))
        await forget(connection, change.job_id)


_KINDS = {StageName.VISION: "shot", StageName.TRANSCRIPT: "sound"}
_FORGET_KEYS = text("DELETE FROM fingerprint_keys WHERE job_id = :job_id AND kind = :kind")
_MOVE_KEYS = text(
    "UPDATE fingerprint_keys SET job_id = :job_id WHERE job_id = :rerun_id AND kind = :kind"
)


async def is_compared(connection: Connection, job_id: uuid.UUID) -> bool:
    """Return whether nothing of a job that has ended is still to be compared."""
    return not await is_queued(connection, KIND, job_id)


async def list_duplicates(
    connection: Connection,
    job_id: uuid.UUID,
    *,
    kind: str | None = None,
    after: tuple[uuid.UUID, int] | None = None,
    limit: int,
) -> list[tuple[StoredDuplicate, str]]:
    """Of a job, by the other job, with the name of its file."""
    values = {"job_id": job_id, "kind": kind, "limit": limit}
    values |= dict(zip(("other", "after"), after or (uuid.UUID(int=0), -1), strict=True))
    found = list[tuple[StoredDuplicate, str]]()
    for row in (await connection.execute(_LIST, values)).mappings():
        found.append((from_row(StoredDuplicate, row), row["file_name"]))
    return found


_LIST = text(
    """
    WITH both_ways AS (
        SELECT other_id, number, kind, start_ms, end_ms, other_start_ms, other_end_ms,
               track, other_track, score, speed
          FROM duplicates WHERE job_id = :job_id
        UNION ALL
        SELECT job_id, number, kind, other_start_ms, other_end_ms, start_ms, end_ms,
               other_track, track, score, 1 / speed
          FROM duplicates WHERE other_id = :job_id)
    SELECT both_ways.*, jobs.file_name FROM both_ways JOIN jobs ON jobs.id = other_id
     WHERE (CAST(:kind AS text) IS NULL OR kind = :kind)
       AND (other_id, number) > (CAST(:other AS uuid), CAST(:after AS int))
     ORDER BY other_id, number LIMIT :limit
    """
)


async def list_groups(
    connection: Connection, archive_id: uuid.UUID
) -> tuple[list[dict[uuid.UUID, str | None]], bool]:
    """Return jobs of an archive whose files are the same, with their objects' keys, the greatest
    group first; and whether those are all."""
    one, other = archive_objects.alias(), archive_objects.alias()
    query = (
        select(duplicates.c.job_id, one.c.key, duplicates.c.other_id, other.c.key)
        .join(one, (one.c.job_id == duplicates.c.job_id) & (one.c.archive_id == archive_id))
        .join(other, (other.c.job_id == duplicates.c.other_id) & (other.c.archive_id == archive_id))
        .where(duplicates.c.kind == "file")
        .order_by(duplicates.c.job_id, duplicates.c.other_id)
        .limit(MOST_PAIRS)
    )
    pairs = list(await connection.execute(query))
    leaders, keys = dict[uuid.UUID, uuid.UUID](), dict[uuid.UUID, str | None]()

    def leader(job_id: uuid.UUID) -> uuid.UUID:
        while leaders[job_id] != job_id:
            leaders[job_id] = job_id = leaders[leaders[job_id]]
        return job_id

    for first, first_key, second, second_key in pairs:
        for job_id, key in ((first, first_key), (second, second_key)):
            leaders.setdefault(job_id, job_id)
            keys[job_id] = key
        leaders[leader(first)] = leader(second)
    groups = dict[uuid.UUID, dict[uuid.UUID, str | None]]()
    for job_id in sorted(keys):
        groups.setdefault(leader(job_id), {})[job_id] = keys[job_id]
    ordered = sorted(groups.values(), key=lambda group: (-len(group), min(group)))
    return ordered, len(pairs) < MOST_PAIRS
