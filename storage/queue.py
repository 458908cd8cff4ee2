"""The queue as accounts share it: an account's rules, and how far a waiting job is from its turn.

Who is next is decided where jobs are queued (the triggers of functions.sql) and leased
(``storage.jobs.lease_next``).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import text, update

from storage.audit import record
from storage.database import Connection, run
from storage.tables import accounts, jobs
from storage.types import Priority

MAX_POSITION = 10_000
"""Waiting jobs are counted up to here: a place further behind is not known exactly."""
_LEAST_EXAMPLES = 3
"""Of completed jobs that a wait is estimated by; of up to 50."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a queued job stands."""

    ahead: int | None
    """Jobs whose turn is before; None beyond MAX_POSITION, and for a parked one."""
    running: int
    mean_seconds: float | None
    """What the last completed jobs took each, from their start; None of too few."""

    @property
    def position(self) -> int | None:
        return None if self.ahead is None else self.ahead + 1

    def start_seconds(self, slots: int) -> float | None:
        """Until its turn comes, with so many jobs run at once; None where that is not known."""
        if self.ahead is None:
            return None
        to_end = max(0, self.ahead + 1 + self.running - slots)
        if to_end == 0:
            return 0.0
        if self.mean_seconds is None:
            return None
        return round(to_end * self.mean_seconds / slots, 1)


_PLACE = text(
    """
    SELECT CASE WHEN NOT job.parked THEN (SELECT count(*) FROM (
               SELECT FROM jobs WHERE state = 'queued' AND NOT parked
                  AND (finish_tag, created_at) < (job.finish_tag, job.created_at)
                LIMIT :most) AS ahead) END AS ahead,
           (SELECT count(*) FROM jobs WHERE state = 'processing') AS running,
           (SELECT CASE WHEN count(*) >= :least THEN avg(seconds) END FROM (
               SELECT extract(epoch FROM completed_at - started_at)::float AS seconds
                 FROM jobs WHERE state = 'completed'
                ORDER BY completed_at DESC LIMIT 50) AS ended) AS mean_seconds
      FROM jobs AS job WHERE job.id = :job_id AND job.state = 'queued'
    """
)


async def find_place(connection: Connection, job_id: uuid.UUID) -> QueuePlace | None:
    """Of a queued job; None once it is not in the queue any more."""
    rows = await run(
        connection, _PLACE, job_id=job_id, most=MAX_POSITION + 1, least=_LEAST_EXAMPLES
    )
    if not rows:
        return None
    place = QueuePlace(**rows[0])
    beyond = place.ahead is not None and place.ahead > MAX_POSITION
    return QueuePlace(None, place.running, place.mean_seconds) if beyond else place


async def set_rules(
    connection: Connection,
    account_id: uuid.UUID,
    *,
    weight: float | None = None,
    max_running_jobs: int | None = None,
    highest_priority: Priority | None = None,
) -> None:
    """Change an account's rules for jobs created from now on.

    None leaves one as it is, 0 running jobs is the default.
    """
    rules = {
        "queue_weight": weight,
        "max_running_jobs": max_running_jobs,
        "highest_priority": highest_priority,
    }
    given = {name: value or None for name, value in rules.items() if value is not None}
    if given:
        await connection.execute(update(accounts).where(accounts.c.id == account_id).values(given))
        detail = " ".join(f"{name}={value}" for name, value in given.items())
        await record(connection, account_id, "limitAccount", detail=detail)


async def set_priority(
    connection: Connection, job_id: uuid.UUID, priority: Priority, weight: float
) -> None:
    """Give a locked job that waits another priority; in the queue it goes behind the others of its
    account that have it."""
    own = update(jobs).where(jobs.c.id == job_id)
    # The queue's trigger places jobs that enter the queue: it leaves and enters again.
    await connection.execute(own.values(priority=priority, queue_weight=weight, finish_tag=None))
    await connection.execute(own.values(state=jobs.c.state))


async def limit_running(connection: Connection, account_id: uuid.UUID, limit: int | None) -> None:
    """Have the limit hold for the account's waiting jobs too.

    More of them are admitted if it grew; those admitted already stay.
    """
    own = {"account_id": account_id}
    waiting = text(
        "UPDATE jobs SET running_limit = :limit"
        " WHERE account_id = :account_id AND completed_at IS NULL"
    )
    await connection.execute(waiting, own | {"limit": limit})
    # A state that is set anew is what the queue's trigger looks at; one by one, in their order.
    parked: bool | None = False
    while parked is False:
        parked = (await connection.execute(_ADMIT, own)).scalar_one_or_none()


_ADMIT = text(
    "UPDATE jobs SET state = state WHERE id = ("
    " SELECT id FROM jobs WHERE account_id = :account_id AND state = 'queued' AND parked"
    " ORDER BY finish_tag, created_at LIMIT 1 FOR UPDATE) RETURNING parked"
)
"""None where no job is parked; true where the next one has to stay so."""
