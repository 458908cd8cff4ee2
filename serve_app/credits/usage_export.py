"""A month's usage as CSV."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.api.envelope import timestamp
from serve_app.api.spreadsheets import csv_table
from storage.types import StageName
from storage.usage import JobUsage

COLUMNS = (
    "job_id",
    "created_at",
    "file_name",
    "tier",
    "billable_seconds",
    *(f"{stage}_cents" for stage in StageName),
    "total_cents",
)


def usage_csv(lines: Iterable[JobUsage]) -> str:
    """A header and a line a job."""
    return csv_table(
        COLUMNS,
        (
            [
                line.job_id,
                timestamp(line.created_at),
                line.file_name,
                line.tier,
                line.billable_seconds,
                *(line.charges[stage] for stage in StageName),
                line.total_cents,
            ]
            for line in lines
        ),
    )
