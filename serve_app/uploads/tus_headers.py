"""The headers of tus 1.0.0, read to the letter: pure functions over header fields.

Source: https://tus.io/protocols/resumable-upload, sections Headers, Checksum
and Creation (Upload-Defer-Length).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

VERSION = "1.0.0"
EXTENSIONS = ("checksum", "expiration", "termination")
PATCH_TYPE = "application/offset+octet-stream"
CHECKSUM_MISMATCH = 460

_MOST_DIGITS = 16
"""Beyond any file, within 64 bits."""

Hasher = Callable[[], Any]
ALGORITHMS: dict[str, Hasher] = {
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
}
"""Names that Upload-Checksum may give; the protocol demands sha1."""


class HeaderError(ValueError):
    """A header is missing or malformed: ``400``. ``name`` is the header's."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}.")
        self.name = name


class ContentTypeError(ValueError):
    """The body of a PATCH is not ``application/offset+octet-stream``: ``415``."""


class Fields(Protocol):
    """Header fields as starlette has them; a name may stand several times."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """What Upload-Checksum promises of a PATCH's body."""

    algorithm: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Patch:
    """The headers of a PATCH. ``length_bytes`` is the whole upload's, where it is told."""

    offset_bytes: int
    length_bytes: int | None
    checksum: Checksum | None


def speaks_our_version(fields: Fields) -> bool:
    """Whether ``Tus-Resumable`` names the version that we speak."""
    return fields.getlist("tus-resumable") == [VERSION]


def parse_patch(fields: Fields) -> Patch:
    """The headers of a PATCH; raises ContentTypeError, HeaderError."""
    if _single(fields, "Content-Type") != PATCH_TYPE:
        raise ContentTypeError(f"The Content-Type must be {PATCH_TYPE}.")
    offset = _single(fields, "Upload-Offset")
    if offset is None:
        raise HeaderError("Upload-Offset", "is missing")
    length = _single(fields, "Upload-Length")
    checksum = _single(fields, "Upload-Checksum")
    return Patch(
        parse_size("Upload-Offset", offset),
        None if length is None else parse_size("Upload-Length", length),
        None if checksum is None else parse_checksum(checksum),
    )


def parse_size(name: str, text: str) -> int:
    """A non-negative decimal integer; raises HeaderError."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise HeaderError(name, "must be a non-negative integer")
    return int(text)


def parse_checksum(text: str) -> Checksum:
    """``<algorithm> <base64 of the digest>``; raises HeaderError."""
    algorithm, separator, encoded = text.partition(" ")
    if not separator:
        raise HeaderError("Upload-Checksum", "must be an algorithm, a space and Base64")
    if algorithm not in ALGORITHMS:
        raise HeaderError("Upload-Checksum", f"must be one of {', '.join(ALGORITHMS)}")
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise HeaderError("Upload-Checksum", "is not Base64") from None
    if len(digest) != ALGORITHMS[algorithm]().digest_size:
        raise HeaderError("Upload-Checksum", f"does not have the length of {algorithm}")
    return Checksum(algorithm, digest)


def _single(fields: Fields, name: str) -> str | None:
    values = fields.getlist(name)
    if len(values) > 1:
        raise HeaderError(name, "stands more than once")
    return values[0].strip() if values else None
