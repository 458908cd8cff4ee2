"""Downloads: what response headers state, and which failures are final or worth a retry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import NoReturn
from urllib.parse import unquote

import httpx

from pipelines.net.buckets import SENTENCES, problem_of
from pipelines.net.safe_connections import (
    BlockedAddressError,
    NameResolutionError,
    RequestTooLongError,
    ResponseHeadersTooLargeError,
    TlsError,
)
from pipelines.types import StageCode, StageError

_CONTENT_RANGE = re.compile(
    r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE
)
_STRONG_ETAG = re.compile(r'"[^"\s]*"')
_MAX_NAME_CHARACTERS = 255
_ERROR_BYTES = 16 << 10
"""Of a bucket's answer, where its code stands."""


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
    """Whether the body is compressed, although ``identity`` was requested."""
    return headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}


def validator(headers: httpx.Headers) -> str | None:
    """What ``If-Range`` may carry: a strong entity tag, else the time of the last change.

    A weak tag does not mean that bytes can be joined (RFC 9110, section 13.1.5).
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
        last = re.split(r"[/\\]", name)[-1]
        printable = "".join(character for character in last if character.isprintable())
        shortened = printable.strip()[-_MAX_NAME_CHARACTERS:]
        if shortened not in {"", ".", ".."}:
            return shortened
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


_RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""May be different the next time."""

_REASONS = {
    401: "it needs a download token, or the one given is not accepted",
    403: "it needs a download token, or the link has expired",
    404: "the file is not there, or the link has expired",
    410: "the file is not there any more",
}

_FINAL: tuple[tuple[type[httpx.TransportError], str], ...] = (
    (
        BlockedAddressError,
        "The source, or a redirect from it, leads to an address that is not allowed.",
    ),
    (TlsError, "No secure connection to the source: its certificate or its TLS is not accepted."),
    (ResponseHeadersTooLargeError, "The source sends more headers than are accepted."),
    (RequestTooLongError, "The download took longer than it may."),
    (httpx.LocalProtocolError, "The source cannot be asked for with this URL and token."),
    (httpx.UnsupportedProtocol, "The source cannot be asked for with this URL."),
)

_RETRYABLE: tuple[tuple[type[httpx.TransportError], str], ...] = (
    (NameResolutionError, "The source's host name cannot be resolved."),
    (httpx.ConnectTimeout, "The source does not answer."),
    (httpx.ConnectError, "The source cannot be reached."),
    (httpx.TimeoutException, "The source stopped sending."),
    (httpx.TransportError, "The connection to the source broke."),
)
"""In this order: the first that fits counts."""


class BrokenDownloadError(Exception):
    """An attempt failed; another may succeed. ``is_useless``: what came before it has to go."""

    def __init__(
        self, sentence: str, wait_seconds: float = 0.0, *, is_useless: bool = False
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.wait_seconds = wait_seconds
        self.is_useless = is_useless


def fail(sentence: str) -> NoReturn:
    """The download fails for good."""
    raise StageError(StageCode.FETCH_FAILED, sentence)


def refuse_status(response: httpx.Response, *, of_bucket: bool = False) -> NoReturn:
    """Raise BrokenDownloadError for a status that may pass, StageError for any other."""
    status = response.status_code
    reason = f": {_REASONS[status]}" if status in _REASONS else ""
    sentence = f"The source answered with status {status}{reason}."
    if status in _RETRYABLE_STATUSES:
        raise BrokenDownloadError(sentence, retry_after_seconds(response.headers))
    if of_bucket:
        with failures_of_transport():
            sentence = SENTENCES[problem_of(status, next(response.iter_raw(_ERROR_BYTES), b""))]
    fail(sentence)


@contextmanager
def failures_of_transport() -> Iterator[None]:
    """Errors of httpx as BrokenDownloadError or StageError; all others as they are."""
    try:
        yield
    except httpx.TransportError as error:
        for kind, sentence in _FINAL:
            if isinstance(error, kind):
                raise StageError(StageCode.FETCH_FAILED, sentence) from error
        sentence = next(text for kind, text in _RETRYABLE if isinstance(error, kind))
        raise BrokenDownloadError(sentence) from error
