"""What an account used and paid, read from the ledger. Months are calendar months in UTC."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import text

from storage.database import Connection
from storage.types import LedgerKind, StageName, Tier


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC."""

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """The month that ``moment`` falls in."""
        at = moment.astimezone(UTC)
        return cls(at.year, at.month)

    @classmethod
    def parse(cls, text_: str) -> Month:
        """From ``YYYY-MM``; raises ValueError."""
        parsed = date.fromisoformat(f"{text_}-01")
        return cls(parsed.year, parsed.month)

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment that is not in it any more."""
        following = self.year * 12 + self.number
        return datetime(following // 12, following % 12 + 1, 1, tzinfo=UTC)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What a job counts towards a month, and what it was charged in it."""

    job_id: uuid.UUID
    created_at: datetime
    file_name: str
    tier: Tier
    billable_seconds: int
    """0 in a month in which the job was charged but not counted."""
    charges: dict[StageName, int]

    @property
    def total_cents(self) -> int:
        return sum(self.charges.values())


@dataclass(frozen=True, slots=True)
class StageUsage:
    """A stage's charges in a month."""

    stage: StageName
    jobs: int
    amount_cents: int


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What was charged on a day (UTC), and for how many jobs."""

    day: date
    cents: int
    jobs: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry with the balance and the open holds after it."""

    id: int
    created_at: datetime
    kind: LedgerKind
    balance_delta_cents: int
    hold_delta_cents: int
    balance_cents: int
    held_cents: int
    job_id: uuid.UUID | None
    stage: str | None
    reason: str


_JOBS = text(
    """
    WITH charges AS (
        SELECT job_id, jsonb_object_agg(stage, -balance_delta_cents) AS by_stage
          FROM ledger_entries
         WHERE account_id = :account AND kind = 'charge'
           AND created_at >= :start AND created_at < :end
         GROUP BY job_id
    )
    SELECT j.id AS job_id, j.created_at, j.file_name, j.tier,
           CASE WHEN j.quoted_at >= :start AND j.quoted_at < :end
                THEN j.billable_seconds ELSE 0 END AS billable_seconds,
           coalesce(charges.by_stage, '{}') AS charges
      FROM jobs j LEFT JOIN charges ON charges.job_id = j.id
     WHERE j.account_id = :account
       AND (charges.job_id IS NOT NULL
            OR (j.quoted_at >= :start AND j.quoted_at < :end AND j.charged_cents > 0))
     ORDER BY j.created_at, j.id
    """
)
_STAGES = text(
    """
    SELECT stage, count(*) AS jobs, -sum(balance_delta_cents) AS amount_cents
      FROM ledger_entries
     WHERE account_id = :account AND kind = 'charge'
       AND created_at >= :start AND created_at < :end
     GROUP BY stage
    """
)
_DAYS = text(
    """
    SELECT (created_at AT TIME ZONE 'UTC')::date AS day,
           (-sum(balance_delta_cents))::bigint AS cents, count(DISTINCT job_id) AS jobs
      FROM ledger_entries
     WHERE account_id = :account AND kind = 'charge'
       AND created_at >= :start AND created_at < :end
     GROUP BY day ORDER BY day
    """
)
_ENTRIES = text(
    """
    SELECT * FROM (
        SELECT id, created_at, kind, balance_delta_cents, hold_delta_cents,
               (sum(balance_delta_cents) OVER so_far)::bigint AS balance_cents,
               (sum(hold_delta_cents) OVER so_far)::bigint AS held_cents,
               job_id, stage, reason
          FROM ledger_entries WHERE account_id = :account
        WINDOW so_far AS (ORDER BY id)
    ) AS entries ORDER BY id DESC LIMIT :most
    """
)


async def list_job_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[JobUsage]:
    """The jobs that were charged in, or count towards, a month; oldest first."""
    rows = await connection.execute(_JOBS, _in_month(account_id, month))
    return [_job_usage(dict(row)) for row in rows.mappings()]


async def list_stage_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[StageUsage]:
    """Charges of a month, stage by stage, in the stages' order; stages without one are left out."""
    rows = (await connection.execute(_STAGES, _in_month(account_id, month))).mappings()
    found = {row["stage"]: row for row in rows}
    return [
        StageUsage(stage, found[stage]["jobs"], int(found[stage]["amount_cents"]))
        for stage in StageName
        if stage in found
    ]


async def list_day_usage(
    connection: Connection, account_id: uuid.UUID, month: Month
) -> list[DayUsage]:
    """The days of a month on which something was charged."""
    rows = await connection.execute(_DAYS, _in_month(account_id, month))
    return [DayUsage(**row) for row in rows.mappings()]


async def list_entries(
    connection: Connection, account_id: uuid.UUID, *, limit: int
) -> list[LedgerEntry]:
    """The account's last entries, newest first."""
    rows = await connection.execute(_ENTRIES, {"account": account_id, "most": limit})
    return [LedgerEntry(**dict(row) | {"kind": LedgerKind(row["kind"])}) for row in rows.mappings()]


def _in_month(account_id: uuid.UUID, month: Month) -> dict[str, object]:
    return {"account": account_id, "start": month.start, "end": month.end}


def _job_usage(row: dict[str, Any]) -> JobUsage:
    charges = {stage: int(row["charges"].get(stage, 0)) for stage in StageName}
    return JobUsage(**row | {"tier": Tier(row["tier"]), "charges": charges})
