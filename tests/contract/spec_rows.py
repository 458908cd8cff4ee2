"""Every row of the specification, by id; which test covers it; which rows must wait, and why.

An id is ``<group>/<row>``, e.g. ``error-codes/INVALID_URL``. A test says with
``covers`` or ``covers_each`` which rows it exercises; ``test_every_row`` fails
for a row that no test covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.contract.spec_text import cells, groups
from tests.tables import every

GROUPS = groups(Path(__file__).with_name("specification.md").read_text(encoding="utf-8"))
ROWS: dict[str, str] = {
    f"{group.name}/{key}": text for group in GROUPS for key, text in group.rows.items()
}
"""Row id to the specification's own words."""

NO_RULES = {
    "What the service does": "a summary: every statement of it stands again in a section below",
}
"""Headings whose lists are not rows."""

NOT_YET: dict[str, str] = {}
"""Rows whose behaviour belongs to a later issue: no test may cover one that stands here."""

COVERED: dict[str, list[str]] = {}
"""Row id to the tests that cover it; filled when the test modules are imported."""

Test = TypeVar("Test", bound=Callable[..., Any])


def covers(*row_ids: str) -> Callable[[Test], Test]:
    """Says that a test exercises these rows. KeyError for an id that does not exist."""

    def note(test: Test) -> Test:
        for row_id in row_ids:
            if row_id not in ROWS:
                raise KeyError(f"{row_id} is no row of the specification")
            COVERED.setdefault(row_id, []).append(f"{test.__module__}.{test.__qualname__}")
        return test

    return note


def covers_each(
    group: str, cases: Mapping[str, Any], argument: str = "expected"
) -> Callable[[Test], Test]:
    """One test for several rows of a group, in one item: a case for each row, named after it.

    ``cases`` maps the last part of the row's id to the value of ``argument``.
    """
    ids = [f"{group}/{key}" for key in cases]

    def note(test: Test) -> Test:
        covers(*ids)(test)
        decorated: Any = every(argument, cases.values(), ids=ids)(test)
        return cast("Test", decorated)

    return note


def row_cells(row_id: str) -> list[str]:
    """The cells of a table's row, without their code marks."""
    return [cell.replace("`", "") for cell in cells(ROWS[row_id])]


def rows_of(group: str) -> list[str]:
    """The last parts of the ids of a group, in the specification's order."""
    return [row_id.split("/", 1)[1] for row_id in ROWS if row_id.startswith(f"{group}/")]
