"""Why a download failed, as sentences for clients, and whether trying again may help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import httpx

from pipelines.net.connection_rules import (
    BlockedAddressError,
    NameResolutionError,
    RequestTooLongError,
    ResponseHeadersTooLargeError,
    TlsError,
)
from pipelines.net.fetch_responses import retry_after_seconds
from pipelines.types import StageCode, StageError

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be others the next time."""

_REASONS = {
    401: "it needs a download token, or the one given is not accepted",
    403: "it needs a download token, or the link has expired",
    404: "the file is not there, or the link has expired",
    410: "the file is not there any more",
}

_LASTING: tuple[tuple[type[httpx.TransportError], str], ...] = (
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

_MENDABLE: tuple[tuple[type[httpx.TransportError], str], ...] = (
    (NameResolutionError, "The source's host name cannot be resolved."),
    (httpx.ConnectTimeout, "The source does not answer."),
    (httpx.ConnectError, "The source cannot be reached."),
    (httpx.TimeoutException, "The source stopped sending."),
    (httpx.TransportError, "The connection to the source broke."),
)
"""In this order: the first that fits says it."""


class BrokenDownloadError(Exception):
    """An attempt failed in a way that another one may mend."""

    def __init__(self, sentence: str, wait_seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.wait_seconds = wait_seconds


def fail(sentence: str) -> NoReturn:
    """The download fails for good."""
    raise StageError(StageCode.FETCH_FAILED, sentence)


def refuse_status(response: httpx.Response) -> NoReturn:
    """Raise BrokenDownloadError for a status that may pass, StageError for any other."""
    status = response.status_code
    reason = f": {_REASONS[status]}" if status in _REASONS else ""
    sentence = f"The source answered with status {status}{reason}."
    if status in _PASSING:
        raise BrokenDownloadError(sentence, retry_after_seconds(response.headers))
    fail(sentence)


@contextmanager
def failures_of_transport() -> Iterator[None]:
    """Errors of httpx as BrokenDownloadError or StageError; all others as they are."""
    try:
        yield
    except httpx.TransportError as error:
        raise _judged_failure(error) from error


def _judged_failure(error: httpx.TransportError) -> Exception:
    for kind, sentence in _LASTING:
        if isinstance(error, kind):
            return StageError(StageCode.FETCH_FAILED, sentence)
    return BrokenDownloadError(next(text for kind, text in _MENDABLE if isinstance(error, kind)))
