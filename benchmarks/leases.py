"""What a lease costs with 100,000 jobs waiting: by turns of accounts, and by the time of creation.

    .venv/bin/python -m benchmarks.leases [--jobs 100000] [--accounts 1000] [--leases 2000]

Both sides lease from the same table in one run, in turns of 100, each lease in a transaction of its
own as a runner makes it. ``oldest`` is the statement of the version before. The last line is JSON:
medians of the seconds of a transaction on both sides, and their ratio; the same of the server's
own time for the statement (EXPLAIN ANALYZE) apart, without the commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from storage import jobs
from storage.database import Database, embedded_postgres, migrate

LEASE = timedelta(minutes=30)
TURN = 100
UPLOAD = '{"kind": "upload"}'
"""The source of every job."""
BY_TURNS = str(jobs.LEASE.compile(dialect=Database("postgresql://x").engine.dialect))
OLDEST = """
    UPDATE jobs
       SET state = 'processing', lease_token = %(token)s, lease_expires_at = now() + %(lease)s,
           lease_count = lease_count + 1, started_at = coalesce(started_at, now())
     WHERE id = (SELECT id FROM jobs WHERE state = 'queued'
                  ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
SIDES = {"turns": BY_TURNS, "oldest": OLDEST}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--leases", type=int, default=2000, help="a side")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="vas-bench-") as folder,
        embedded_postgres(Path(folder) / "pg") as url,
    ):
        migrate(url)
        result = measure(url, options.jobs, options.accounts, options.leases)
    print(json.dumps(result))


def measure(url: str, waiting: int, accounts: int, leases: int) -> dict[str, Any]:
    """Seconds of both sides, in turns."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=2) as connection:
        queue_up(connection, waiting, accounts)
        took: dict[str, list[float]] = {side: [] for side in SIDES}
        server: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(2 * leases // TURN):
            side = list(SIDES)[turn % 2]
            for number in range(TURN):
                values = {"token": uuid.uuid4(), "lease": LEASE}
                if number % 10 == 0:
                    server[side].append(explained(connection, SIDES[side], values))
                    continue
                began = time.perf_counter()
                with connection.transaction():
                    [_] = connection.execute(SIDES[side], values).fetchall()
                took[side].append(time.perf_counter() - began)
        [arrival] = connection.execute(
            "SELECT count(*) FROM jobs WHERE state = 'queued'"
        ).fetchone() or (0,)
    medians = {side: statistics.median(took[side]) for side in SIDES}
    servers = {side: statistics.median(server[side]) for side in SIDES}
    return {
        "waiting": waiting,
        "accounts": accounts,
        "left": arrival,
        "transaction_seconds": medians,
        "transaction_ratio": round(medians["turns"] / medians["oldest"], 3),
        "statement_seconds": servers,
        "statement_ratio": round(servers["turns"] / servers["oldest"], 3),
    }


def queue_up(connection: psycopg.Connection[Any], waiting: int, accounts: int) -> None:
    """Jobs of accounts whose backlogs differ: the first has about a quarter of all."""
    connection.execute(
        "INSERT INTO accounts (id, name)"
        " SELECT gen_random_uuid(), 'a' || n FROM generate_series(1, %s) AS n",
        (accounts,),
    )
    connection.execute(
        "WITH numbered AS (SELECT id, row_number() OVER () - 1 AS n FROM accounts)"
        " INSERT INTO jobs (id, account_id, state, processing_mode, tier, file_name, source,"
        "   created_at)"
        " SELECT gen_random_uuid(), numbered.id, 'queued', 'all', 'standard', 'a.mp4',"
        "   %(source)s,"
        "   now() + n_job * interval '1 ms'"
        " FROM generate_series(1, %(waiting)s) AS n_job JOIN numbered"
        "   ON numbered.n = CASE WHEN n_job %% 4 = 0 THEN 0 ELSE n_job %% %(accounts)s END",
        {"waiting": waiting, "accounts": accounts, "source": UPLOAD},
    )
    connection.execute("VACUUM ANALYZE jobs")


def explained(connection: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> float:
    """Seconds that the server takes for the statement."""
    row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).fetchone()
    assert row is not None
    return float(row[0][0]["Execution Time"]) / 1000


if __name__ == "__main__":
    main()
