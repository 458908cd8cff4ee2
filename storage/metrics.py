"""Metrics and lists of the whole database, at a cost that does not grow with it.

Unfinished jobs, open events and accounts are counted by indexes that hold only
those. The ledger only grows, so it is summed once, and then what has been added.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import text

from storage.database import Connection, Database, run
from storage.types import LEDGER_SIGNS, UNFINISHED_STATES, LedgerKind, StageName

_COUNTS = text(
    """
    SELECT (SELECT coalesce(json_object_agg(state, jobs), '{}')
              FROM (SELECT state, count(*) AS jobs FROM jobs
                     WHERE completed_at IS NULL GROUP BY state) AS unfinished
           ) AS unfinished_jobs,
           (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8
              FROM jobs WHERE state = 'queued') AS queue_age_seconds,
           (SELECT count(*) FROM webhook_events
             WHERE status IN ('in_flight', 'pending_retry')) AS open_webhooks,
           coalesce(sum(balance_cents), 0)::bigint AS balance_cents,
           coalesce(sum(held_cents), 0)::bigint AS held_cents
      FROM accounts
    """
)

_SETTLED = text(
    """
    WITH newest AS (
        SELECT id, created_at FROM ledger_entries
         WHERE id > :after ORDER BY id DESC LIMIT 200000
    ), settling AS (
        SELECT min(id) AS first FROM newest
         WHERE created_at >= now() - make_interval(secs => :seconds)
    )
    SELECT coalesce(max(id), :after)::bigint AS last_id
      FROM newest, settling WHERE first IS NULL OR id < first
    """
)

_LEDGER = text(
    """
    SELECT kind, count(*) AS entries,
           sum(CASE WHEN balance_delta_cents = 0 THEN hold_delta_cents
                    ELSE balance_delta_cents END)::bigint AS cents,
           sum(balance_delta_cents)::bigint AS balance, sum(hold_delta_cents)::bigint AS held
      FROM ledger_entries WHERE id > :after AND id <= :last GROUP BY kind
    """
)

_MISMATCH = text(
    """
    SELECT (stored.balance - :balance - coalesce(sum(balance_delta_cents), 0))::bigint AS balance,
           (stored.held - :held - coalesce(sum(hold_delta_cents), 0))::bigint AS held
      FROM (SELECT coalesce(sum(balance_cents), 0) AS balance,
                   coalesce(sum(held_cents), 0) AS held FROM accounts) AS stored
      LEFT JOIN ledger_entries ON id > :after
     GROUP BY stored.balance, stored.held
    """
)

_ENTRIES_AT_ONCE = 500_000
"""Bounds each statement, however long the ledger is at the first count."""

SETTLING_SECONDS = 60.0
"""Entries are numbered before they are committed: one with a lower number may appear until every
transaction open at that moment has ended. None takes so long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The database at one moment."""

    unfinished_jobs: dict[str, int]
    """Every unfinished state, with 0 where there is none."""
    queue_age_seconds: float
    open_webhooks: int
    balance_cents: int
    held_cents: int


async def count_now(database: Database) -> Counts:
    """Count what is unfinished, and sum up what accounts own."""
    [row] = await database.query(_COUNTS)
    none = {str(state): 0 for state in UNFINISHED_STATES}
    return Counts(**row | {"unfinished_jobs": none | row["unfinished_jobs"]})


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """The ledger's entries up to a number: how many of each kind, and their sum.

    Sums are of what the kind is about: cents charged, held, released, granted, all
    positive; adjustments with their sign.
    """

    last_id: int = 0
    by_kind: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {str(kind): (0, 0) for kind in LedgerKind}
    )
    balance_cents: int = 0
    held_cents: int = 0
    """What these entries add up to, for all accounts together."""


async def count_ledger(
    database: Database, known: LedgerTotals, *, settling_seconds: float = SETTLING_SECONDS
) -> LedgerTotals:
    """``known`` with what has been added since, but for the last minute's entries."""
    [settled] = await database.query(_SETTLED, after=known.last_id, seconds=settling_seconds)
    last_id: int = settled["last_id"]
    while known.last_id < last_id:
        known = await _count_some(database, known, min(last_id, known.last_id + _ENTRIES_AT_ONCE))
    return known


async def _count_some(database: Database, known: LedgerTotals, last_id: int) -> LedgerTotals:
    by_kind = dict(known.by_kind)
    balance, held = known.balance_cents, known.held_cents
    for row in await database.query(_LEDGER, after=known.last_id, last=last_id):
        kind = LedgerKind(row["kind"])
        entries, cents = by_kind[kind]
        sign = -1 if -1 in LEDGER_SIGNS.get(kind, ()) else 1  # -1: negative by nature
        by_kind[kind] = (entries + row["entries"], cents + sign * row["cents"])
        balance, held = balance + row["balance"], held + row["held"]
    return LedgerTotals(last_id, by_kind, balance, held)


async def ledger_mismatch(database: Database, known: LedgerTotals) -> tuple[int, int]:
    """Cents by which the accounts' balances and holds exceed what their entries add up to.

    One statement sees one moment: entries after ``known`` are added up beside the accounts.
    """
    [row] = await database.query(
        _MISMATCH, after=known.last_id, balance=known.balance_cents, held=known.held_cents
    )
    return row["balance"], row["held"]


# What operators look at. Each query reads an index of what is unfinished, or of what ended within
# the last day, and at most so many rows.

MOST_ROWS = 100
"""Rows of a list."""
MOST_COUNTED = 10_000
"""Jobs that a figure is counted over."""

_OPEN_JOBS = text(
    """
    SELECT state, count(*) AS jobs, min(created_at) AS oldest_at
      FROM jobs WHERE completed_at IS NULL GROUP BY state
    """
)
_LEASED_JOBS = text(
    """
    SELECT j.id AS job_id, j.file_name, a.name AS account, j.started_at, j.lease_expires_at,
           j.lease_count,
           (j.duration_ms / 1000.0)::float8 AS media_seconds,
           coalesce((SELECT json_agg(json_build_object('stage', s.stage, 'progress', s.progress)
                                     ORDER BY s.stage)
              FROM stages s WHERE s.job_id = j.id AND s.status = 'running'), '[]') AS running
      FROM (SELECT * FROM jobs WHERE state = 'processing'
             ORDER BY lease_expires_at LIMIT :most) AS j
      JOIN accounts a ON a.id = j.account_id
     ORDER BY j.started_at, j.id
    """
)
_WAITING_JOBS = text(
    """
    SELECT j.id AS job_id, j.file_name, a.name AS account, j.created_at,
           j.processing_mode AS mode, j.priority, j.lease_count
      FROM (SELECT * FROM jobs WHERE state = 'queued' AND NOT parked
             ORDER BY finish_tag, created_at LIMIT :most) AS j
      JOIN accounts a ON a.id = j.account_id
     ORDER BY j.finish_tag, j.created_at
    """
)
_ACCOUNTS = text(
    """
    SELECT a.id, a.name, a.suspended_at, a.throttled_at, a.balance_cents, a.held_cents,
           (SELECT count(*) FROM jobs j
             WHERE j.account_id = a.id AND j.completed_at IS NULL) AS open_jobs,
           (SELECT count(*) FROM (
                SELECT 1 FROM jobs j WHERE j.account_id = a.id AND j.created_at >= :since
                 ORDER BY j.created_at DESC LIMIT :most_counted) AS counted) AS jobs
      FROM (SELECT * FROM accounts WHERE name >= :first ORDER BY name LIMIT :most) AS a
     ORDER BY a.name
    """
)
_DAY = "completed_at > now() - interval '1 day'"
_STAGE_WORK = text(
    f"""
    WITH ended AS (
        SELECT id, duration_ms FROM jobs WHERE state = 'completed' AND {_DAY}
         ORDER BY completed_at DESC LIMIT :most
    ), work AS (
        SELECT s.stage, e.duration_ms / 1000.0 AS media,
               extract(epoch FROM s.ended_at - s.started_at) AS seconds
          FROM ended e JOIN stages s ON s.job_id = e.id
         WHERE s.status = 'completed' AND s.started_at IS NOT NULL AND e.duration_ms IS NOT NULL
    )
    SELECT stage, count(*) AS jobs, sum(media)::float8 AS media_seconds,
           sum(seconds)::float8 AS work_seconds,
           (percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds))::float8 AS median_seconds,
           max(seconds)::float8 AS longest_seconds
      FROM work GROUP BY stage
    """  # noqa: S608  (constants of this module)
)
INTERVALS = 48
"""Points of a curve."""
_ACTIVITY = text(
    """
    WITH counted AS (
        (SELECT state, created_at, started_at, completed_at, duration_ms FROM jobs
          WHERE state IN ('completed', 'failed')
            AND completed_at > now() - make_interval(hours => :hours)
          ORDER BY completed_at DESC LIMIT :most)
        UNION ALL
        (SELECT state, created_at, started_at, completed_at, duration_ms FROM jobs
          WHERE completed_at IS NULL LIMIT :most)
    )
    SELECT count(*) FILTER (WHERE created_at < b.until
                              AND coalesce(started_at, completed_at, now()) >= b.until) AS waiting,
           count(*) FILTER (WHERE state = 'completed' AND completed_at <@ b.span) AS completed,
           count(*) FILTER (WHERE state = 'failed' AND completed_at <@ b.span) AS failed,
           coalesce(sum(duration_ms / 1000.0) FILTER
               (WHERE state = 'completed' AND completed_at <@ b.span), 0)::float8 AS media_seconds
      FROM (SELECT n, now() - make_interval(secs => :step * n) AS until,
                   tstzrange(now() - make_interval(secs => :step * (n + 1)),
                             now() - make_interval(secs => :step * n)) AS span
              FROM generate_series(:intervals - 1, 0, -1) AS n) AS b
      LEFT JOIN counted ON true
     GROUP BY b.n ORDER BY b.n DESC
    """
)
_FAILED_JOBS = text(
    f"""
    SELECT j.id AS job_id, a.name AS account, j.completed_at, s.stage,
           coalesce(s.error_code, j.error_code) AS code,
           coalesce(s.error_message, j.error_message, '') AS message
      FROM (SELECT * FROM jobs WHERE state = 'failed' AND {_DAY}
             ORDER BY completed_at DESC LIMIT :most) AS j
      JOIN accounts a ON a.id = j.account_id
      LEFT JOIN stages s ON s.job_id = j.id AND s.status = 'failed'
     ORDER BY j.completed_at DESC, j.id, s.stage
    """  # noqa: S608
)
_FAILED_CODES = text(
    f"""
    SELECT error_code AS code, count(*) AS jobs
      FROM (SELECT error_code FROM jobs WHERE state = 'failed' AND {_DAY}
             ORDER BY completed_at DESC LIMIT :most) AS failed
     GROUP BY error_code ORDER BY jobs DESC, code
    """  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Unfinished jobs of a state."""

    state: str
    jobs: int
    oldest_at: datetime | None
    """When the oldest of them was created."""


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that a runner drives."""

    job_id: uuid.UUID
    file_name: str
    account: str
    started_at: datetime
    lease_expires_at: datetime
    lease_count: int
    media_seconds: float | None
    running: list[dict[str, object]]
    """``stage`` and ``progress`` of stages at work."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits for a runner."""

    job_id: uuid.UUID
    file_name: str
    account: str
    created_at: datetime
    mode: str
    priority: str
    lease_count: int


@dataclass(frozen=True, slots=True)
class AccountLine:
    """An account as operators see it; ``jobs`` since a given time, MOST_COUNTED at most."""

    id: uuid.UUID
    name: str
    suspended_at: datetime | None
    throttled_at: datetime | None
    balance_cents: int
    held_cents: int
    open_jobs: int
    jobs: int


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What a stage got done for jobs that completed within the last day."""

    stage: StageName
    jobs: int
    media_seconds: float
    work_seconds: float
    """Wall time on runners, added up; stages run side by side."""
    median_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class FailedStage:
    """A failed stage, or a failure outside of any stage, of the last day."""

    job_id: uuid.UUID
    account: str
    completed_at: datetime
    stage: StageName | None
    code: str
    message: str


async def count_open_jobs(connection: Connection) -> list[OpenJobs]:
    """Return every unfinished state, in the order of a job's life."""
    found = {row["state"]: OpenJobs(**row) for row in await run(connection, _OPEN_JOBS)}
    order = ("awaiting_upload", "queued", "processing")
    return [found.get(state, OpenJobs(state, 0, None)) for state in order]


async def list_leased_jobs(connection: Connection) -> list[LeasedJob]:
    """Return jobs under a lease, the longest at work first."""
    return [LeasedJob(**row) for row in await run(connection, _LEASED_JOBS, most=MOST_ROWS)]


async def list_waiting_jobs(connection: Connection, *, limit: int) -> list[WaitingJob]:
    """Return the jobs that runners take next."""
    return [WaitingJob(**row) for row in await run(connection, _WAITING_JOBS, most=limit)]


async def list_accounts(
    connection: Connection, *, first: str, since: datetime, limit: int
) -> list[AccountLine]:
    """Return accounts by name, from the name ``first`` on; their jobs created ``since``."""
    rows = await run(
        connection, _ACCOUNTS, first=first, since=since, most=limit, most_counted=MOST_COUNTED
    )
    return [AccountLine(**row) for row in rows]


async def list_stage_work(connection: Connection) -> list[StageLoad]:
    """Stages that worked, in their order, over the newest MOST_COUNTED jobs of the day."""
    rows = {row["stage"]: row for row in await run(connection, _STAGE_WORK, most=MOST_COUNTED)}
    return [StageLoad(**rows[stage] | {"stage": stage}) for stage in StageName if stage in rows]


async def list_activity(connection: Connection, hours: int) -> dict[str, list[float]]:
    """Return curves over the last hours, INTERVALS points each, the oldest first: jobs that wait,
    and, of each interval, jobs that completed and failed, and their media in seconds."""
    step = hours * 3600 / INTERVALS
    given = {"hours": hours, "step": step, "intervals": INTERVALS, "most": MOST_COUNTED}
    rows = (await connection.execute(_ACTIVITY, given)).mappings().all()
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


async def list_failures(connection: Connection) -> list[FailedStage]:
    """Of the newest MOST_ROWS jobs that failed within the last day, newest first."""
    rows = await run(connection, _FAILED_JOBS, most=MOST_ROWS)
    return [
        FailedStage(**row | {"stage": row["stage"] and StageName(row["stage"])}) for row in rows
    ]


async def count_failures(connection: Connection) -> dict[str, int]:
    """Return jobs that failed within the last day by code, the most frequent first."""
    rows = await run(connection, _FAILED_CODES, most=MOST_COUNTED)
    return {row["code"]: row["jobs"] for row in rows}
