"""What the headers of a download say. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from urllib.parse import unquote

import httpx

_CONTENT_RANGE = re.compile(
    r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE
)
_STRONG_ETAG = re.compile(r'"[^"\s]*"')
_MAX_NAME_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class ContentRange:
    """The part of a file that a 206 response carries: offsets of its first and last byte."""

    first: int
    last: int
    total_bytes: int | None


def content_range(headers: httpx.Headers) -> ContentRange | None:
    """``Content-Range``; None where it is missing or makes no sense."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first, last, total)


def declared_bytes(headers: httpx.Headers) -> int | None:
    """``Content-Length``; None where the length is not known beforehand."""
    text = headers.get("content-length", "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def is_encoded(headers: httpx.Headers) -> bool:
    """Whether the body is compressed, although it was asked for as it is."""
    return headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}


def validator(headers: httpx.Headers) -> str | None:
    """What ``If-Range`` may carry: a strong entity tag, else the time of the last change.

    A weak tag says that two files are alike, not that their bytes can be joined
    (RFC 9110, section 13.1.5).
    """
    tag = headers.get("etag", "").strip()
    if _STRONG_ETAG.fullmatch(tag):
        return str(tag)
    return headers.get("last-modified") or None


def retry_after_seconds(headers: httpx.Headers) -> float:
    """``Retry-After`` in seconds; 0 where it is missing or a date."""
    text = headers.get("retry-after", "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0.0


def content_type(headers: httpx.Headers) -> str | None:
    """The media type alone, lower case; None where it is missing."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()[:255] or None


def file_name_hint(headers: httpx.Headers, target: str) -> str | None:
    """A name for the file: from ``Content-Disposition``, else the last part of the path.

    The last path component alone, without control characters, at most 255
    characters; None where nothing is left. ``target`` is the request target.
    """
    for name in (_disposition_name(headers), unquote(target.partition("?")[0])):
        plain = _plain_name(name)
        if plain:
            return plain
    return None


def _disposition_name(headers: httpx.Headers) -> str:
    """The ``filename`` or ``filename*`` parameter (RFC 6266), read as a MIME parameter is."""
    message = Message()
    message["Content-Disposition"] = headers.get("content-disposition", "")
    try:
        return message.get_filename("")
    except (TypeError, ValueError, LookupError):
        # Parameters in parts, some of them without a number, are more than email can sort.
        return ""


def _plain_name(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    printable = "".join(character for character in last if character.isprintable())
    shortened = printable.strip()[-_MAX_NAME_CHARACTERS:]
    return "" if shortened in {".", ".."} else shortened
