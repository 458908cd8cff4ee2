"""A month's usage as CSV that a spreadsheet shows as it is and never runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from serve_app.api.envelope import timestamp
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
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet take a cell for a formula, full-width forms included.

https://owasp.org/www-community/attacks/CSV_Injection
"""


_FORMULA_IN_NEXT_CELL = re.compile("([;\r\n][ \u00a0\ufeff]*)(?=[=+@＝＋－＠-])")
"""Where the comma writes decimals, spreadsheets take a semicolon for the end of a cell; and the
quotes are not where they then look for them, so that a line end is the end of a row."""


def usage_csv(lines: Iterable[JobUsage]) -> str:
    """A header and a line a job; every cell quoted, text that looks like a formula defused."""
    target = io.StringIO(newline="")
    writer = csv.writer(target, quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerow(
            [
                line.job_id,
                timestamp(line.created_at),
                harmless(line.file_name),
                line.tier,
                line.billable_seconds,
                *(line.charges[stage] for stage in StageName),
                line.total_cents,
            ]
        )
    return target.getvalue()


def harmless(cell: str) -> str:
    """``cell``, with an apostrophe before what a spreadsheet would run."""
    cell = _FORMULA_IN_NEXT_CELL.sub(r"\1'", cell)
    return f"'{cell}" if cell.lstrip(" \u00a0\ufeff").startswith(_FORMULA_STARTS) else cell
