"""A watch on a job that is made again: its results are the old ones or the new ones, never some of
each, and the new ones exactly when the rerun is completed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

_BASIS = """
    SELECT j.id::text, j.state, s.stage, s.timings
      FROM jobs j JOIN stages s ON s.job_id = j.id
     WHERE j.id::text = ANY(%s) AND s.stage = ANY(%s)
"""


@dataclass(slots=True)
class ExchangeWatch:
    """What it was made in is measured to the microsecond, so that each version has its own."""

    database_url: str
    job_id: str
    stages: Sequence[str]
    before: dict[str, Any] | None = field(init=False)
    """Stage to what the first version's making took; None where the database did not answer."""

    def __post_init__(self) -> None:
        found = self._read(self.job_id)
        self.before = found and found[self.job_id][1]

    def _read(self, *job_ids: str) -> dict[str, tuple[str, dict[str, Any]]] | None:
        """Job to its state and timings, of one moment."""
        read: dict[str, tuple[str, dict[str, Any]]] = {}
        try:
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                connection.execute("SET default_transaction_read_only = on")
                rows = connection.execute(_BASIS, [list(job_ids), list(self.stages)]).fetchall()
        except psycopg.OperationalError:  # it is down just now
            return None
        for job_id, state, stage, timings in rows:
            read.setdefault(job_id, (state, {}))[1][stage] = timings
        return read

    def violations(self, rerun_id: str) -> Iterator[str]:
        """Look once."""
        found = self._read(self.job_id, rerun_id)
        if found is None or self.before is None:
            return
        (_, shown), (state, kept) = found[self.job_id], found[rerun_id]
        if state == "completed":
            if kept != self.before or any(shown[at] == self.before[at] for at in self.stages):
                yield f"rerun {rerun_id} is completed and its results are not exchanged"
        elif shown != self.before:
            yield f"rerun {rerun_id} is {state} and its results are there"
