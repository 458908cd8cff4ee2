"""What every request passes: authentication, rate limits, remembered answers of creations."""

from __future__ import annotations

import functools
import hashlib
import re
import uuid
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import TextClause, Uuid, bindparam, delete, func, literal_column, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert

from storage.database import Connection, Database, Row
from storage.job_records import JOB_QUERY, JobRecord, job_record
from storage.keys import fingerprint
from storage.tables import idempotency_records, jobs

WINDOW_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Window:
    """A bucket's count in its current one-minute window, this request included."""

    used: int
    resets_at: int
    """Unix seconds."""
    now: float
    """The database's clock, Unix seconds: the one that all replicas share."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The account behind a valid key, and the request's rate-limit window."""

    account_id: uuid.UUID
    key_id: uuid.UUID
    suspended: bool
    window: Window


_MINUTE = f"floor(extract(epoch FROM clock_timestamp()) / {WINDOW_SECONDS})::bigint"
# A statement that waited for its row may carry an older minute than the row has
# by now; it counts in the row's minute and never turns the window back.
_COUNT = """
    ON CONFLICT (bucket) DO UPDATE
       SET used = CASE WHEN r.minute >= excluded.minute THEN r.used + 1 ELSE 1 END,
           minute = greatest(r.minute, excluded.minute)
    RETURNING used, minute
"""
_CALLER = f"""
    WITH caller AS (
        SELECT k.id AS key_id, k.account_id, a.suspended_at IS NOT NULL AS suspended,
               k.last_used_at > now() - interval '1 hour' AS noted
          FROM api_keys k JOIN accounts a ON a.id = k.account_id
         WHERE k.secret_sha256 = :fingerprint AND k.status = 'active'
           AND (k.expires_at IS NULL OR k.expires_at > now())
    ), counted AS (
        INSERT INTO rate_limits AS r (bucket, minute, used)
        SELECT account_id || ':' || :bucket, {_MINUTE}, 1 FROM caller
        {_COUNT}
    ), used AS (
        UPDATE api_keys k SET last_used_at = now() FROM caller
         WHERE k.id = caller.key_id AND caller.noted IS NOT TRUE
    )
"""  # noqa: S608  (constants of this module)
_AUTHENTICATE = text(
    f"""
    {_CALLER}
    SELECT caller.account_id, caller.key_id, caller.suspended, counted.used, counted.minute,
           extract(epoch FROM clock_timestamp())::float8 AS now
      FROM caller, counted
    """  # noqa: S608
)
_WITH_JOB = f"""
    {_CALLER}
    SELECT caller.account_id AS caller_id, caller.key_id, caller.suspended,
           counted.used, counted.minute, extract(epoch FROM clock_timestamp())::float8 AS now,
           job.*
      FROM caller CROSS JOIN counted LEFT JOIN LATERAL ({{job}}) AS job ON true
"""  # noqa: S608
_COUNT_ONLY = text(
    f"""
    INSERT INTO rate_limits AS r (bucket, minute, used) VALUES (:bucket, {_MINUTE}, 1)
    {_COUNT}, extract(epoch FROM clock_timestamp())::float8 AS now
    """  # noqa: S608
)


async def authenticate_and_count(database: Database, secret: str, bucket: str) -> Caller | None:
    """Return the caller behind an active, unexpired key; None, counting nothing, for any other
    string.

    Looked up by the secret's hash, so that timing reveals nothing about a guess.
    """
    rows = await database.query(_AUTHENTICATE, fingerprint=fingerprint(secret), bucket=bucket)
    if not rows:
        return None
    row = rows[0]
    return Caller(row["account_id"], row["key_id"], row["suspended"], _window(row))


async def authenticate_count_and_read(
    database: Database, secret: str, bucket: str, job_id: uuid.UUID
) -> tuple[Caller, JobRecord | None] | None:
    """As ``authenticate_and_count``, with the caller's job in the same statement.

    One round trip instead of two for polling, the most frequent request. The job is None where it
    is missing or another account's, in the same time.
    """
    statement, constants = _with_job()
    rows = await database.query(
        statement, fingerprint=fingerprint(secret), bucket=bucket, job_id=job_id, **constants
    )
    if not rows:
        return None
    row = rows[0]
    caller = Caller(row["caller_id"], row["key_id"], row["suspended"], _window(row))
    return caller, None if row["id"] is None else job_record(row)


@functools.cache
def _with_job() -> tuple[TextClause, dict[str, Any]]:
    own = JOB_QUERY.where(
        jobs.c.id == bindparam("job_id", type_=Uuid),
        jobs.c.account_id == literal_column("caller.account_id"),
    )
    make_dialect: Any = postgresql.dialect
    compiled = own.compile(dialect=make_dialect(paramstyle="named"))
    constants = {name: value for name, value in compiled.params.items() if name != "job_id"}
    # text() does not see a parameter with a cast behind it.
    job = re.sub(r"(:\w+)::(\w+)", r"CAST(\1 AS \2)", str(compiled))
    return text(_WITH_JOB.replace("{job}", job)), constants


async def count_request(database: Database, bucket: str) -> Window:
    """Count a request in a bucket that belongs to no account (``ip:<address>``)."""
    [row] = await database.query(_COUNT_ONLY, bucket=bucket)
    return _window(row)


def _window(row: Row) -> Window:
    return Window(row["used"], (row["minute"] + 1) * WINDOW_SECONDS, row["now"])


async def forget_old_windows(connection: Connection) -> None:
    """Delete buckets unused for ten minutes."""
    await connection.execute(
        text(f"DELETE FROM rate_limits WHERE minute < {_MINUTE} - 10")  # noqa: S608
    )


MEMORY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
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


async def try_lock_key(connection: Connection, slot: IdempotencyKey) -> bool:
    """Take the slot for this transaction; False while another request holds it.

    The lock dies with its transaction: a request that is cut off leaves no
    key that is in progress without end.
    """
    name = f"{slot.account_id}\n{slot.operation}\n{slot.key}".encode()
    number = int.from_bytes(hashlib.sha256(name).digest()[:8], signed=True)
    query = text("SELECT pg_try_advisory_xact_lock(:number)")
    return bool((await connection.execute(query, {"number": number})).scalar_one())


async def find_answer(connection: Connection, slot: IdempotencyKey) -> StoredAnswer | None:
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


async def store_answer(connection: Connection, slot: IdempotencyKey, answer: StoredAnswer) -> None:
    """Remember an answer, in place of one whose time is over."""
    values = asdict(answer) | {"created_at": func.now()}
    statement = insert(idempotency_records).values(
        account_id=slot.account_id, operation=slot.operation, key=slot.key, **values
    )
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["account_id", "operation", "key"], set_=values
        )
    )


async def forget_old_answers(connection: Connection) -> None:
    """Drop answers whose time is over."""
    table = idempotency_records
    await connection.execute(delete(table).where(table.c.created_at <= func.now() - MEMORY))
