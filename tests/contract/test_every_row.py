"""No row of the specification without a test, and no row here that the specification has not."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.contract.spec_rows import COVERED, GROUPS, NO_RULES, NOT_YET, ROWS
from tests.contract.spec_text import Block, blocks
from tests.places import PROJECT

SPECIFICATION = PROJECT.parent / "shared" / "spec" / "api-v1.md"
beside_the_specification = pytest.mark.skipif(
    not SPECIFICATION.is_file(), reason="the specification is not beside the project"
)


def test_every_row_of_the_specification_has_a_test() -> None:
    """Rows that must wait for a later issue stand in NOT_YET, each until its first test."""
    for path in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.contract.{path.stem}")
    without_test = set(ROWS) - set(COVERED)
    assert sorted(without_test - set(NOT_YET)) == [], "rows without a test"
    assert sorted(set(NOT_YET) - without_test) == [], "take these out of NOT_YET"


def test_row_ids_are_unique() -> None:
    assert len(ROWS) == sum(len(group.rows) for group in GROUPS)


@beside_the_specification
def test_the_tables_and_lists_are_the_specifications_own() -> None:
    """A row that is added, dropped or changed over there shows here."""
    found = [
        block
        for block in blocks(SPECIFICATION.read_text(encoding="utf-8"))
        if block.heading not in NO_RULES
    ]
    transcribed = [
        Block(group.heading, group.header, tuple(group.rows.values()))
        for group in GROUPS
        if group.header is not None
    ]
    assert sorted(map(repr, transcribed)) == sorted(map(repr, found))


@beside_the_specification
def test_the_sentences_are_the_specifications_own() -> None:
    sections = _sections(SPECIFICATION.read_text(encoding="utf-8"))
    for group in GROUPS:
        if group.header is None:
            for key, sentence in group.rows.items():
                assert sentence in sections[group.heading], f"{group.name}/{key}"


def _sections(markdown: str) -> dict[str, str]:
    """Heading to the text below it, up to the next heading of any level."""
    sections: dict[str, str] = {}
    for part in f"\n{markdown}".split("\n#"):
        heading, _, body = part.partition("\n")
        sections[heading.lstrip("# ")] = " ".join(body.split())
    return sections
