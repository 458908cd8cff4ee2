"""Vectors of what is spoken, described and shown, beside the search rows, where the server has
pgvector.

The tables are no part of the migrations: a runner makes them as soon as the server has the
extension and lets our role use it, and fills them. A row's vectors go with the row, and so with its
job. They are of one model; those of another are not compared, and replaced by and by.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from storage.database import Connection, Database
from storage.types import SearchKind

KINDS = (SearchKind.TRANSCRIPT, SearchKind.SCENE)
"""Kinds of rows that have sentences, and so a vector."""

EXACT_MOST = 20_000
"""With more vectors of an account the index is searched, which finds nearly all of the nearest."""

_LOCK = 0x7661735F76656374
"""Advisory lock of the runner that makes the table or vectors ("vas_vect")."""
_SHORT_CHARACTERS = 40
"""A text shorter than this is read with the beginning of the one after it."""

Vectors = npt.NDArray[np.float32]
"""Unit vectors, one a row."""


TEXTS, STILLS = "search_vectors", "still_vectors"
"""Tables: of the texts of rows, and of the stills of the scenes that rows describe."""
_NUMBERS = {TEXTS: 512, STILLS: 768}
"""How many a vector of the table has."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What the vector of a row is made of."""

    row_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Still:
    """What the vector of a scene's row is made of: an object of a picture."""

    row_id: int
    key: str | None


class NoVectorsError(Exception):
    """The server has no table of vectors."""


class Near(NamedTuple):
    """A row, and the cosine of the angle to what is sought."""

    row_id: int
    similarity: float


async def make_tables(connection: Connection) -> bool:
    """Make the tables of vectors if they are missing; False where the server does not allow it.

    A table for vectors of another length, of an earlier version, gives way: they are made again.
    """
    missing = " OR ".join(
        f"{_numbers(table)} IS DISTINCT FROM {_NUMBERS[table]}" for table in _NUMBERS
    )
    if not await _holds(connection, missing):
        return True
    await connection.execute(text("SET LOCAL lock_timeout = '1s'"))
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if not await _holds(connection, missing):
        return True
    if await _holds(connection, "NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector')"):
        available = "EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector')"
        if not await _holds(connection, available):
            return False
        try:
            async with connection.begin_nested():
                await connection.execute(text("CREATE EXTENSION vector"))
        except DBAPIError as error:
            if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
                return False
            raise
    if not await _holds(connection, "to_regtype('halfvec') IS NOT NULL"):
        return False
    for table, numbers in _NUMBERS.items():
        if await _holds(connection, f"{_numbers(table)} <> {numbers}"):
            await connection.execute(text(f"DROP TABLE {table}"))
        for statement in _table(table, numbers):
            await connection.execute(text(statement))
    return True


def _numbers(table: str) -> str:
    """SQL of how many numbers a vector of the table has; null without the table."""
    return (
        "(SELECT atttypmod FROM pg_attribute"  # noqa: S608  (constants of this module)
        f" WHERE attrelid = to_regclass('{table}') AND attname = 'embedding')"
    )


async def _holds(connection: Connection, condition: str) -> bool:
    return bool((await connection.execute(text(f"SELECT {condition}"))).scalar_one())


def index_statement(table: str) -> str:
    """Makes the index of the nearest."""
    return (
        f"CREATE INDEX IF NOT EXISTS ix_{table}_embedding ON {table}"
        " USING hnsw (embedding halfvec_cosine_ops)"
    )


def _table(table: str, numbers: int) -> Iterator[str]:
    yield f"""
    CREATE TABLE IF NOT EXISTS {table} (
        row_id bigint PRIMARY KEY REFERENCES search_rows ON DELETE CASCADE,
        account_id uuid NOT NULL,
        model text NOT NULL,
        embedding halfvec({numbers}) NOT NULL
    )
    """
    # Vectors do not shrink by compression, and lie beside their row, not in a table of their own.
    yield f"ALTER TABLE {table} ALTER COLUMN embedding SET STORAGE PLAIN"
    yield f"CREATE INDEX IF NOT EXISTS ix_{table}_account_id ON {table} (account_id, model)"
    yield index_statement(table)


async def rows_without(connection: Connection, model: str, after: int, limit: int) -> list[Passage]:
    """Return the first rows after an id that have sentences and no vector of the model."""
    values = {"model": model, "after": after, "limit": limit, "kinds": list(KINDS)}
    found = await connection.execute(_ROWS_WITHOUT, values)
    return [
        Passage(
            row.id, row.text if len(row.text) >= _SHORT_CHARACTERS else f"{row.text} {row.ahead}"
        )
        for row in found
    ]


_ROWS_WITHOUT = text(
    """
    SELECT id, text, ahead FROM search_rows
     WHERE id > :after AND kind = ANY(:kinds)
       AND NOT EXISTS (SELECT FROM search_vectors v
                        WHERE v.row_id = search_rows.id AND v.model = :model)
     ORDER BY id LIMIT :limit
    """
)


async def stills_without(connection: Connection, model: str, after: int, limit: int) -> list[Still]:
    """Return the first described scenes after a row's id whose still has no vector of the model."""
    values = {"model": model, "after": after, "limit": limit}
    found = await connection.execute(_STILLS_WITHOUT, values)
    return [Still(row.id, row.key) for row in found]


_STILLS_WITHOUT = text(
    """
    WITH missing AS MATERIALIZED (
        SELECT id, job_id, scene_index FROM search_rows
         WHERE id > :after AND kind = 'scene'
           AND NOT EXISTS (SELECT FROM still_vectors v
                            WHERE v.row_id = search_rows.id AND v.model = :model)
         ORDER BY id LIMIT :limit
    )
    SELECT missing.id, seen ->> 'thumbnail_key' AS key
      FROM missing LEFT JOIN scene_lists USING (job_id),
           LATERAL (SELECT coalesce(scenes -> scene_index, overview)) AS each (seen)
     ORDER BY missing.id
    """
)


async def store_vectors(
    connection: Connection,
    model: str,
    row_ids: Sequence[int],
    vectors: Vectors,
    *,
    table: str = TEXTS,
) -> None:
    """In place of those of another model; rows that are gone by now get none."""
    await connection.execute(
        _STORE[table],
        {
            "model": model,
            "ids": list(row_ids),
            "vectors": [_written(vector) for vector in vectors],
        },
    )


_STORE = {
    table: text(
        f"""
    INSERT INTO {table} (row_id, account_id, model, embedding)
    SELECT r.id, r.account_id, :model, given.vector::halfvec
      FROM unnest(CAST(:ids AS bigint[]), CAST(:vectors AS text[])) AS given (id, vector)
      JOIN search_rows r USING (id)
       FOR KEY SHARE OF r
    ON CONFLICT (row_id) DO UPDATE SET model = excluded.model, embedding = excluded.embedding
    """  # noqa: S608  (constants of this module)
    )
    for table in (TEXTS, STILLS)
}


def _written(vector: npt.NDArray[np.float32]) -> str:
    return f"[{','.join(f'{number:.5f}' for number in vector)}]"


async def newest_row(connection: Connection) -> int:
    """Return the greatest id of a row, 0 without any."""
    newest = await connection.execute(text("SELECT coalesce(max(id), 0) FROM search_rows"))
    return int(newest.scalar_one())


async def try_lock(connection: Connection) -> bool:
    """Be the one session that makes vectors, until ``unlock`` or the connection's end."""
    taken = await connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK})
    return bool(taken.scalar_one())


async def unlock(connection: Connection) -> None:
    await connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _LOCK})


async def find_near(
    database: Database,
    account_id: uuid.UUID,
    model: str,
    sought: Vectors,
    *,
    conditions: Sequence[str],
    values: Mapping[str, object],
    newest_id: int = 1 << 62,
    least_similarity: float,
    limit: int,
    table: str = TEXTS,
) -> list[list[Near]] | None:
    """For each vector that is sought the rows up to ``newest_id`` that are nearest, nearest first.

    ``conditions`` are SQL about ``r``, the row, and ``sought.n``, the vector's number from 1, with
    ``values``. None where there is no table.
    """
    try:
        rows = await database.query(
            _near_statement(tuple(conditions), table),
            account_id=account_id,
            model=model,
            sought=[_written(vector) for vector in sought],
            below=newest_id + 1,
            most_distance=1 - least_similarity,
            limit=limit,
            **values,
        )
    except psycopg.errors.UndefinedTable:
        return None
    near: list[list[Near]] = [[] for _ in sought]
    for row in rows:
        near[row["n"] - 1].append(Near(row["id"], 1 - row["distance"]))
    return near


@functools.cache
def _near_statement(conditions: tuple[str, ...], table: str) -> TextClause:
    """Two ways, of which one runs: all vectors of the account, or the index over all accounts.

    OFFSET 0 keeps the planner from the index. A job has few vectors, however many its account has.
    """
    joined = " JOIN search_rows r ON r.id = v.row_id" if conditions else ""
    further = "".join(f" AND {condition}" for condition in conditions)
    candidates = f"""
        SELECT v.row_id AS id, v.embedding <=> sought.vector AS distance
          FROM {table} v{joined}
         WHERE v.account_id = :account_id AND v.model = :model AND v.row_id < :below{further}"""  # noqa: S608
    few = (
        "true"
        if any("job_id" in condition for condition in conditions)
        else (
            f"(SELECT count(*) FROM (SELECT FROM {table} WHERE account_id = :account_id"  # noqa: S608
            f" AND model = :model LIMIT {EXACT_MOST + 1}) AS counted) <= {EXACT_MOST}"
        )
    )
    return text(
        f"""
        WITH few AS MATERIALIZED (SELECT {few} AS are),
        sought AS MATERIALIZED (
            SELECT n, vector::halfvec
              FROM unnest(CAST(:sought AS text[])) WITH ORDINALITY AS given (vector, n)
        )
        SELECT n, id, distance FROM sought CROSS JOIN LATERAL (
            (SELECT * FROM ({candidates} OFFSET 0) AS own
              WHERE (SELECT are FROM few) ORDER BY distance LIMIT :limit)
            UNION ALL
            (SELECT * FROM ({candidates} AND NOT (SELECT are FROM few)
              ORDER BY v.embedding <=> sought.vector LIMIT :limit) AS indexed)
        ) AS near
         WHERE distance <= :most_distance ORDER BY n, distance, id
        """  # noqa: S608  (constants of this project)
    )


async def find_still(
    database: Database, job_id: uuid.UUID, scene_index: int, model: str
) -> tuple[int, Vectors] | None:
    """Return the row of a scene and the unit vector of its still; None where it has none of the
    model yet.

    The vector is 0 where the still cannot be read: such a one is near to nothing.

    Raises NoVectorsError where there is no table.
    """
    try:
        rows = await database.query(_STILL, job_id=job_id, scene_index=scene_index, model=model)
    except psycopg.errors.UndefinedTable as error:
        raise NoVectorsError from error
    return (rows[0]["id"], np.array(rows[0]["numbers"], np.float32)) if rows else None


_STILL = text(
    """
    SELECT r.id, v.embedding::vector::real[] AS numbers
      FROM search_rows r JOIN still_vectors v ON v.row_id = r.id
     WHERE r.job_id = :job_id AND r.kind = 'scene' AND r.scene_index = :scene_index
       AND v.model = :model
    """
)


async def count_vectors(database: Database, job_id: uuid.UUID) -> int:
    """Return how many of the job's rows of speech have one; 0 where there is no table."""
    try:
        return int((await database.query(_COUNT_OF_JOB, job_id=job_id))[0]["count"])
    except psycopg.errors.UndefinedTable:
        return 0


_COUNT_OF_JOB = text(
    """
    SELECT count(*) FROM search_rows r JOIN search_vectors v ON v.row_id = r.id
     WHERE r.job_id = :job_id AND r.kind = 'transcript'
    """
)


async def vectors_of_job(database: Database, job_id: uuid.UUID) -> dict[str, Vectors]:
    """Return the text of each row of speech -> its unit vector; empty without, or with those of two
    models."""
    try:
        rows = await database.query(_OF_JOB, job_id=job_id)
    except psycopg.errors.UndefinedTable:
        return {}
    if len({row["model"] for row in rows}) != 1:
        return {}
    # Two numbers of 16 bits, then halves: as numbers of Python they would take thirty times that.
    return {row["text"]: np.frombuffer(row["sent"], ">f2", offset=4).astype(np.float32)
            for row in rows}  # fmt: skip


_OF_JOB = text(
    """
    SELECT r.text, v.model, halfvec_send(v.embedding) AS sent
      FROM search_rows r JOIN search_vectors v ON v.row_id = r.id
     WHERE r.job_id = :job_id AND r.kind = 'transcript'
    """
)
