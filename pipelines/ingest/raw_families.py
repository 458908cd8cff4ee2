"""Camera RAW families by what stands in their files, and their decoders' command lines.

Standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

RAW_FAMILY_NAMES = ("r3d", "braw", "arri")

_HEAD_BYTES = 64
_INDEX_BYTES = 1 << 20
_MOST_BOXES = 64
_BRAW_CODECS = re.compile(rb"stsd.{12}(brxq|brhq|brst|brlt|brvn|brvl|brs2)", re.DOTALL)
"""Sample entries of Blackmagic RAW: constant bit rates and constant qualities."""


def command_words(command: str) -> list[str]:
    """The command's words; raises ValueError where it cannot be run or names no files."""
    words = shlex.split(command)
    for place in ("{input}", "{output}"):
        if not any(place in word for word in words):
            raise ValueError(f"the command {command!r} does not contain {place}")
    return words


def family_of(path: Path) -> str | None:
    """``r3d``, ``braw`` or ``arri`` where the file begins like one of them; else None."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if head[4:8] in (b"RED1", b"RED2"):
            return "r3d"
        if head[:4] in (b"ARRI", b"IRRA"):
            return "arri"
        if head[4:8] in (b"ftyp", b"wide", b"mdat", b"moov", b"free", b"skip"):
            return "braw" if _BRAW_CODECS.search(_index(file)) else None
    return None


def _index(file: BinaryIO) -> bytes:
    """The beginning of a QuickTime file's ``moov`` box; empty if there is none."""
    for kind, at in _boxes(file):
        if kind == b"moov":
            file.seek(at)
            return file.read(_INDEX_BYTES)
    return b""


def _boxes(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Kind and place of the first top-level boxes."""
    at = 0
    for _ in range(_MOST_BOXES):
        file.seek(at)
        header = file.read(16)
        size = int.from_bytes(header[:4], "big")
        if size == 1 and len(header) == 16:
            size = int.from_bytes(header[8:], "big")
        if len(header) < 8 or size < 8:
            return
        yield header[4:8], at
        at += size
