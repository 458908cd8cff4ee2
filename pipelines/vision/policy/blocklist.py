"""An operator's list of blocked pictures: a text file, a hash of 16 hex digits a line.

What follows the hash on its line is a note; empty lines and lines that begin with ``#`` are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_HASH = re.compile(r"[0-9a-fA-F]{16}(?=\s|$)")


class BlocklistError(ValueError):
    """A list of hashes cannot be read; the message says where and why."""


def read_blocklist(path: Path) -> bytes:
    """The list's hashes, packed as ``ContentPolicy`` takes them. Raises BlocklistError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BlocklistError(f"{path} cannot be read: {error}") from error
    return packed(parsed(lines, str(path)))


def parsed(lines: Iterable[str], name: str) -> list[int]:
    """Hashes in order. Raises BlocklistError naming the line."""
    hashes = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _HASH.match(text)
        if found is None:
            raise BlocklistError(f"{name}, line {number}: not a hash of 16 hex digits: {text!r}")
        hashes.append(int(found.group(), 16))
    return hashes


def packed(hashes: Iterable[int]) -> bytes:
    """Hashes as 8 bytes each, sorted, without repeats."""
    return b"".join(value.to_bytes(8, "big") for value in sorted(set(hashes)))
