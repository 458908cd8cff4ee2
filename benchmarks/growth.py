"""What reads and leases cost as the table of jobs grows: flat, or where they begin to rise.

    .venv/bin/python -m benchmarks.growth [--ended 100000 1000000 10000000] [--rounds 300]

Jobs that have ended, three stages each, of 1,000 accounts whose first has a tenth of all, are added
up to each of the sizes. At each of them, with 10,000 jobs waiting: a lease, a job by its id, the
first page of an account's jobs, a page from the middle of them, a page of the failed ones and the
sweep for lost runners, by the functions that the service calls, for the largest account and one of
the small ones in turns. The last line is JSON: medians and p95 in milliseconds, the size of the
database, and each median by that of the smallest size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from benchmarks.leases import UPLOAD, queue_up
from storage import jobs
from storage.database import Connection, Database, embedded_postgres, migrate
from storage.job_records import list_jobs
from storage.types import JobState

ACCOUNTS, WAITING, PAGE = 1000, 10_000, 50
LEASE = timedelta(minutes=30)
OWNERS = text(
    "SELECT account_id, percentile_disc(0.5) WITHIN GROUP (ORDER BY created_at) AS middle,"
    " (array_agg(id))[1] AS job_id FROM jobs"
    " WHERE completed_at IS NOT NULL GROUP BY account_id ORDER BY count(*) DESC"
)
STORED = text("SELECT pg_database_size(current_database()) AS bytes")
Query = Callable[[Connection], Awaitable[object]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="vas-bench-") as folder,
        embedded_postgres(Path(folder) / "pg") as url,
    ):
        migrate(url)
        ended = 0
        for size in options.ended:
            with psycopg.connect(url, autocommit=True) as connection:
                if not ended:
                    queue_up(connection, WAITING, ACCOUNTS)
                    connection.execute(
                        "INSERT INTO stages (job_id, stage, status) SELECT id, stage, 'pending'"
                        " FROM jobs CROSS JOIN"
                        " unnest(ARRAY['ingest', 'vision', 'transcript']) AS stage"
                    )
                add_ended(connection, ended, size)
            ended = size
            rows.append(asyncio.run(measure(url, size, options.rounds)))
            print(json.dumps(rows[-1]), flush=True)
    first = rows[0]["median_ms"]
    growth = {name: round(rows[-1]["median_ms"][name] / first[name], 2) for name in first}
    print(json.dumps({"rows": rows, "growth": growth}))


def add_ended(connection: psycopg.Connection[Any], before: int, until: int) -> None:
    """Jobs number ``before`` to ``until``, oldest first, one in twenty of them failed."""
    connection.execute("SET synchronous_commit = off")
    connection.execute(
        "CREATE TEMPORARY TABLE owners AS"
        " SELECT id, row_number() OVER (ORDER BY name) - 1 AS place FROM accounts"
    )
    for low in range(before, until, 500_000):
        values = {
            "low": low + 1,
            "high": min(low + 500_000, until),
            "accounts": ACCOUNTS,
            "source": UPLOAD,
        }
        connection.execute(
            "WITH added AS ("
            " INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source,"
            "   created_at, started_at, completed_at, cleaned_at, error_code, error_message)"
            " SELECT gen_random_uuid(), owners.id,"
            "   CASE WHEN n %% 20 = 0 THEN 'failed' ELSE 'completed' END, 'all', 'standard',"
            "   'a.mp4', %(source)s, at, at, at, at,"
            "   CASE WHEN n %% 20 = 0 THEN 'INGEST_FAILED' END,"
            "   CASE WHEN n %% 20 = 0 THEN 'It cannot be read.' END"
            " FROM generate_series(%(low)s::int, %(high)s::int) AS n"
            "   CROSS JOIN LATERAL"
            "     (SELECT now() - interval '400 days' + n * interval '3 s') AS t(at)"
            "   JOIN owners ON owners.place = CASE WHEN n %% 10 = 0 THEN 0"
            "     ELSE n %% %(accounts)s END"
            " RETURNING id)"
            " INSERT INTO stages (job_id, stage, status, progress)"
            " SELECT id, stage, 'completed', 1 FROM added"
            "   CROSS JOIN unnest(ARRAY['ingest', 'vision', 'transcript']) AS stage",
            values,
        )
    connection.execute("DROP TABLE owners")
    connection.execute("VACUUM ANALYZE jobs")
    connection.execute("VACUUM ANALYZE stages")


async def measure(url: str, size: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each query, a transaction of its own as in the service."""
    database = Database(url)
    try:
        owners = await database.query(OWNERS)
        took: dict[str, list[float]] = {}
        for number in range(rounds):
            owner = owners[0] if number % 2 else owners[-1 - number % 100]
            chosen = queries(owner["account_id"], owner["middle"], owner["job_id"])
            for name, query in chosen.items():
                began = time.perf_counter()
                async with database.transaction() as connection:
                    await query(connection)
                took.setdefault(name, []).append(1000 * (time.perf_counter() - began))
        [stored] = await database.query(STORED)
    finally:
        await database.close()
    return {
        "ended": size,
        "database_mb": stored["bytes"] // 1_000_000,
        "median_ms": {name: round(statistics.median(times), 2) for name, times in took.items()},
        "p95_ms": {
            name: round(statistics.quantiles(times, n=20)[-1], 2) for name, times in took.items()
        },
    }


def queries(account: uuid.UUID, middle: datetime, job_id: uuid.UUID) -> dict[str, Query]:
    """What is measured, for one account and one of its jobs."""

    def page(**choice: Any) -> Query:
        return lambda connection: list_jobs(connection, account, limit=PAGE, **choice)

    return {
        "lease": lambda connection: jobs.lease_next(connection, lease=LEASE),
        "job": lambda connection: jobs.find_job(connection, job_id, account_id=account),
        "first page": page(),
        "page in the middle": page(after=(middle, uuid.UUID(int=0))),
        "page of failed ones": page(state=JobState.FAILED),
        "page of those under way": page(state=JobState.PROCESSING),
        "sweep": jobs.requeue_lost,
    }


if __name__ == "__main__":
    main()
