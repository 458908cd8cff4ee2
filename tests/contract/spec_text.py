"""Reads the specification's Markdown: tables, lists and sentences as rows with stable ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOT_OF_A_KEY = re.compile(r"[^A-Za-z0-9._]+")
_CAMEL = re.compile(r"[a-z][A-Z]")
_ITEM = re.compile(r"(?:[0-9]+\.|-) ")


@dataclass(frozen=True, slots=True)
class Block:
    """A table (``header`` is its first line) or a list (``header`` is empty) under a heading."""

    heading: str
    header: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one table, one list or one sentence: key to verbatim text."""

    name: str
    heading: str
    header: str | None
    """As a Block's; None for sentences."""
    rows: dict[str, str]


def table(name: str, heading: str, text: str, *, column: int = 0, keys: str = "") -> Group:
    """Rows of a table, its header line first; keys are one column's, or ``keys`` in order."""
    header, *lines = [line.strip() for line in text.strip().splitlines()]
    names = keys.split() or [key_of(cells(line)[column]) for line in lines]
    return Group(name, heading, header, dict(zip(names, lines, strict=True)))


def items(name: str, heading: str, text: str) -> Group:
    """Items of a numbered or bulleted list, by their position from 1."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return Group(name, heading, "", {str(number): line for number, line in enumerate(lines, 1)})


def sentences(name: str, heading: str, text: str, keys: str) -> Group:
    """Rows that one sentence states: the names in ``keys``, which all stand in it."""
    found = " ".join(text.split())
    return Group(name, heading, None, dict.fromkeys(keys.split(), found))


def cells(line: str) -> list[str]:
    """The cells of a table's line."""
    return [cell.strip() for cell in line.strip().strip("|").split(" |")]


def key_of(cell: str) -> str:
    """A cell as the last part of an id: code as it is, words in lower case with hyphens."""
    is_code = "`" in cell or _CAMEL.search(cell)
    text = cell if is_code else cell.lower()
    return _NOT_OF_A_KEY.sub("-", text.replace("`", "")).strip("-")


def blocks(markdown: str) -> list[Block]:
    """Every table and every list of a document, in order."""
    found: list[Block] = []
    heading = ""
    lines: list[str] = []
    for raw in [*markdown.splitlines(), ""]:
        line = raw.strip()
        if line.startswith("|") or _ITEM.match(line):
            lines.append(line)
            continue
        if lines:
            found.append(_block(heading, lines))
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
    return found


def _block(heading: str, lines: list[str]) -> Block:
    if lines[0].startswith("|"):
        return Block(heading, lines[0], tuple(lines[2:]))
    return Block(heading, "", tuple(lines))
