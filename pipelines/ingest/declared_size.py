"""How long a file says it is, in bytes. Runs in the confined child process; standard library only.

A file whose end is missing reads like one that simply ends: demuxers stop without a word.
But most containers write down how many bytes follow. Only that evidence counts here: a
duration in a header proves nothing, recorders and joiners of files leave wrong ones behind.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_MOST_BOXES = 1_000_000
_UNKNOWN_32 = 0xFFFFFFFF
_EBML_SEGMENT = bytes.fromhex("18538067")
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_MXF_HEADER_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
_HEAD_BYTES = 64 << 10


def declared_bytes(path: Path) -> int | None:
    """The length that the container says the file has; None where it does not say."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        rule = next((rule for fits, rule in _RULES if fits(head)), None)
        return None if rule is None else rule(head, file)


def _riff(head: bytes, _: BinaryIO) -> int | None:
    (size,) = struct.unpack_from("<I", head, 4)
    if head[:4] == b"RIFF":
        return None if size in (0, _UNKNOWN_32) else size + 8
    at = head.find(b"ds64")
    if at < 0 or at + 16 > len(head):
        return None
    return int(struct.unpack_from("<Q", head, at + 8)[0]) + 8


def _form(head: bytes, _: BinaryIO) -> int | None:
    (size,) = struct.unpack_from(">I", head, 4)
    return None if size in (0, _UNKNOWN_32) else int(size) + 8


def _matroska(head: bytes, _: BinaryIO) -> int | None:
    at = head.find(_EBML_SEGMENT)
    if at < 0 or at + 12 > len(head):
        return None
    first = head[at + 4]
    length = 9 - first.bit_length()
    if length > 8:
        return None
    field = int.from_bytes(head[at + 4 : at + 4 + length], "big")
    size = field & ((1 << 7 * length) - 1)
    unknown = size == (1 << 7 * length) - 1
    return None if unknown else at + 4 + length + size


def _boxes(_: bytes, file: BinaryIO) -> int | None:
    """The end of the last top-level box (ISO 14496-12, 4.2)."""
    length = file.seek(0, io.SEEK_END)
    at = 0
    for _count in range(_MOST_BOXES):
        if at + 8 > length:
            return at
        file.seek(at)
        header = file.read(16)
        size = int.from_bytes(header[:4], "big")
        if size == 1 and len(header) == 16:
            size = int.from_bytes(header[8:], "big")
        if size == 0:
            return length
        if size < 8:
            return None
        at += size
    return None


def _asf(head: bytes, _: BinaryIO) -> int | None:
    at = head.find(_ASF_FILE_PROPERTIES)
    if at < 0 or at + 48 > len(head):
        return None
    return int(struct.unpack_from("<Q", head, at + 40)[0]) or None


def _mxf(head: bytes, _: BinaryIO) -> int | None:
    """Where the footer begins (SMPTE ST 377-1, 7.1): a whole file is longer than that."""
    at = 17 + (head[16] & 0x7F if head[16] & 0x80 else 0)
    if at + 32 > len(head):
        return None
    (footer,) = struct.unpack_from(">Q", head, at + 24)
    return int(footer) + 1 if footer else None


_Rule = Callable[[bytes, BinaryIO], int | None]
_RULES: tuple[tuple[Callable[[bytes], bool], _Rule], ...] = (
    (lambda head: head[:4] in (b"RIFF", b"RF64") and len(head) >= 12, _riff),
    (lambda head: head[:4] == b"FORM" and len(head) >= 12, _form),
    (lambda head: head[:4] == b"\x1aE\xdf\xa3", _matroska),
    (lambda head: head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"), _boxes),
    (lambda head: head[:16] == _ASF_HEADER, _asf),
    (lambda head: head[:13] == _MXF_HEADER_PARTITION and len(head) > 64, _mxf),
)
