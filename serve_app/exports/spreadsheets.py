"""Tables as CSV that a spreadsheet shows as they are and never runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet take a cell for a formula, full-width forms included.

https://owasp.org/www-community/attacks/CSV_Injection
"""
_FORMULA_IN_NEXT_CELL = re.compile("([;\r\n][ \u00a0\ufeff]*)(?=[\t=+@＝＋－＠-])")
"""Where the comma writes decimals, spreadsheets take a semicolon for the end of a cell; and the
quotes are not where they then look for them, so that a line end is the end of a row."""


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and a line a row; every cell quoted, text that looks like a formula defused."""
    target = io.StringIO(newline="")
    writer = csv.writer(target, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return target.getvalue()


def harmless(cell: str) -> str:
    """``cell``, with an apostrophe before what a spreadsheet would run."""
    cell = _FORMULA_IN_NEXT_CELL.sub(r"\1'", cell)
    return f"'{cell}" if cell.lstrip(" \u00a0\ufeff").startswith(_FORMULA_STARTS) else cell
