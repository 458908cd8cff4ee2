"""Numbers that lie in the database, recorded every few seconds by whoever runs jobs.

Every runner records all of them, so dashboards take the maximum, not the sum.
"""

from __future__ import annotations

import asyncio

from serve_app.observability.metrics import (
    ACCOUNTS_CENTS,
    JOBS,
    LEDGER_CENTS,
    LEDGER_ENTRIES,
    LEVEL_SECONDS,
    QUEUE_AGE,
    WEBHOOKS_OPEN,
    Metrics,
)
from storage.database import Database
from storage.metrics import Counts, LedgerTotals, count_ledger, count_now


class DatabaseMetrics:
    """Counts again and again; the ledger only from where the last count ended."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._ledger = LedgerTotals()

    async def take_and_wait(self) -> None:
        """Measure, then pause."""
        await self.take()
        await asyncio.sleep(LEVEL_SECONDS)

    async def take(self) -> None:
        """Count and record."""
        self._record_counts(await count_now(self._database))
        self._ledger = await count_ledger(self._database, self._ledger)
        for kind, (entries, cents) in self._ledger.by_kind.items():
            self._metrics.record(LEDGER_ENTRIES, entries, {"kind": kind})
            self._metrics.record(LEDGER_CENTS, cents, {"kind": kind})

    def _record_counts(self, counts: Counts) -> None:
        record = self._metrics.record
        for state, jobs in counts.unfinished_jobs.items():
            record(JOBS, jobs, {"state": state})
        record(QUEUE_AGE, counts.queue_age_seconds, {})
        record(WEBHOOKS_OPEN, counts.open_webhooks, {})
        record(ACCOUNTS_CENTS, counts.balance_cents, {"part": "balance"})
        record(ACCOUNTS_CENTS, counts.held_cents, {"part": "held"})
