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


def groups(markdown: str) -> tuple[Group, ...]:
    """The groups of ``specification.md``, each behind the comment with its name and its keys."""
    return tuple(
        _group(section.partition("\n")[0].strip("# "), *part.partition("-->")[::2])
        for section in markdown.split("\n## ")
        for part in section.split("<!-- ")[1:]
    )


def _group(heading: str, label: str, text: str) -> Group:
    name, _, named = label.strip().partition(": ")
    lines = text.strip().splitlines()
    if lines[0].startswith("|"):
        header, rows = lines[0], lines[2:]
    elif _ITEM.match(lines[0]):
        header, rows = "", lines
    else:
        return Group(name, heading, None, dict.fromkeys(named.split(), " ".join(lines)))
    if named and not named.startswith("@"):
        keys = named.split()
    elif header:
        keys = [key_of(cells(row)[int(named[1:] or 0)]) for row in rows]
    else:
        keys = [str(number) for number, _ in enumerate(rows, 1)]
    return Group(name, heading, header, dict(zip(keys, rows, strict=True)))


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
