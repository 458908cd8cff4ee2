"""Fetching a source by its URL into the object store: checked, bounded, resumed.

Every connection goes through ``safe_http``; every redirect is checked like the first URL. A broken
download is resumed if the source can show that the file is still the same, else it starts over.
Response headers decide which failures are final and which are tried again. Error messages name
neither hosts nor addresses nor credentials.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import BinaryIO, NoReturn
from urllib.parse import unquote

import httpx

from pipelines.collection import BucketAccess
from pipelines.execution.chain import Control
from pipelines.markup import is_web_page, page_refusal
from pipelines.net import addresses, buckets, safe_http
from pipelines.types import StageCode, StageError
from storage.objects import ObjectStore

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
    """Return whether the body is compressed, although ``identity`` was requested."""
    return headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}


def validator(headers: httpx.Headers) -> str | None:
    """Return what ``If-Range`` may carry: a strong entity tag, else the time of the last change.

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
    """Return the media type alone, lower case; None where it is missing."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()[:255] or None


def file_name_hint(headers: httpx.Headers, target: str) -> str | None:
    """Return a name for the file: from ``Content-Disposition``, else the last part of the path.

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
    """Return the ``filename`` or ``filename*`` parameter (RFC 6266), read as a MIME parameter
    is."""
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
        safe_http.BlockedAddressError,
        "The source, or a redirect from it, leads to an address that is not allowed.",
    ),
    (
        safe_http.TlsError,
        "No secure connection to the source: its certificate or its TLS is not accepted.",
    ),
    (safe_http.ResponseHeadersTooLargeError, "The source sends more headers than are accepted."),
    (safe_http.RequestTooLongError, "The download took longer than it may."),
    (httpx.LocalProtocolError, "The source cannot be asked for with this URL and token."),
    (httpx.UnsupportedProtocol, "The source cannot be asked for with this URL."),
)

_RETRYABLE: tuple[tuple[type[httpx.TransportError], str], ...] = (
    (safe_http.NameResolutionError, "The source's host name cannot be resolved."),
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
            body = next(response.iter_raw(_ERROR_BYTES), b"")
            sentence = buckets.problem_of(status, body).sentence
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


_CHECK_SECONDS = 0.5
"""How often the control is checked for a stop, and receives progress."""

_LONGEST_PAUSE_SECONDS = 60.0
_RENEWING_BYTES = 1 << 20
"""New bytes after which the count of failed attempts starts again."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What one fetch may take."""

    max_bytes: int = 20 << 30
    total_seconds: float = 6 * 3600.0
    """Attempts, redirects and pauses included."""
    idle_seconds: float = 60.0
    idle_bytes: int = 16 << 10
    """Fewer bytes than this in ``idle_seconds`` count as standing still."""
    connect_seconds: float = 15.0
    header_seconds: float = 60.0
    header_bytes: int = 64 << 10
    max_redirects: int = 5
    attempts: int = 6
    """Failed attempts in a row; every MiB of new bytes starts the count again."""
    backoff_seconds: float = 1.0
    """Pause before the second attempt; doubled for each further one, 60 s at most."""

    def of_one_request(self) -> safe_http.TransportLimits:
        """Return the same for a single request."""
        return safe_http.TransportLimits(
            connect_seconds=self.connect_seconds,
            read_seconds=self.idle_seconds,
            write_seconds=self.idle_seconds,
            header_seconds=self.header_seconds,
            total_seconds=self.total_seconds,
            header_bytes=self.header_bytes,
        )


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """What was fetched. ``final_url`` may carry a signature: not for clients or logs."""

    size_bytes: int
    final_url: str
    file_name_hint: str | None
    content_type: str | None


def fetch(
    url: str,
    *,
    store: ObjectStore,
    key: str,
    limits: FetchLimits,
    policy: addresses.AddressPolicy,
    token: str | None = None,
    provider: str | None = None,
    access: BucketAccess = buckets.PUBLIC_ACCESS,
    control: Control,
    resolver: safe_http.Resolver = safe_http.system_addresses,
    ssl_context: ssl.SSLContext | None = None,
) -> FetchedSource:
    """Store what lies at ``url`` under ``key``; memory does not grow with its size.

    ``token`` goes to the first origin as a bearer token and nowhere else. ``provider`` (``gdrive``,
    ``dropbox``): the URL is a share link of theirs. ``access`` is how an address in a bucket
    (s3://, gs://) is read. Raises StageError: VALIDATION_FAILED where the file is larger than
    allowed, FETCH_FAILED for all else; and what ``control`` raises, within two seconds. Nothing is
    stored then. ``control`` receives progress where the source declares the size.
    """
    watch = _Watch(control, limits.total_seconds)
    watch()
    of_bucket = buckets.is_bucket_address(url)
    if of_bucket:
        reader = buckets.BucketReader(policy, limits.of_one_request(), resolver, ssl_context, watch)
        url, token, provider = _signed_url(url, access, reader), None, None
    first = _first_url(url, provider=provider, token=token, policy=policy)
    with safe_http.SafeTransport(
        policy=policy,
        limits=limits.of_one_request(),
        resolver=resolver,
        ssl_context=ssl_context,
        watch=watch,
    ) as transport:
        download = _Download(
            first, transport, limits, policy, token, bool(provider), of_bucket, watch
        )
        return download.into(store, key)


class _StartOverError(Exception):
    """What was received so far is of no use."""


class _Watch:
    """Ends the fetch when the control requires it or its time is up; reports progress."""

    def __init__(self, control: Control, total_seconds: float) -> None:
        self._control = control
        self._ends = time.monotonic() + total_seconds
        self._next_check = 0.0
        self._next_report = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._ends:
            fail("The download took longer than it may.")
        if now >= self._next_check:
            self._control.check()
            self._next_check = time.monotonic() + _CHECK_SECONDS

    def report(self, fraction: float) -> None:
        """Report the fraction received, at most every _CHECK_SECONDS."""
        now = time.monotonic()
        if now >= self._next_report:
            self._control.progress(min(1.0, fraction))
            self._next_report = now + _CHECK_SECONDS

    def pause(self, seconds: float) -> None:
        """Wait, checking meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self()
            time.sleep(min(left, _CHECK_SECONDS / 2))


@dataclass(slots=True)
class _Download:
    """One fetch with all its attempts."""

    first: addresses.ParsedUrl
    transport: safe_http.SafeTransport
    limits: FetchLimits
    policy: addresses.AddressPolicy
    token: str | None
    is_share_link: bool
    of_bucket: bool
    watch: _Watch
    received: int = 0
    total: int | None = None
    validator: str | None = None

    def into(self, store: ObjectStore, key: str) -> FetchedSource:
        """Attempts until one comes to the end; each goes on where the one before broke off.

        Where that cannot be, a new object is begun, since not every store can rewind one.
        """
        failures = furthest = 0
        while True:
            try:
                with store.writer(key) as sink:
                    while True:
                        try:
                            return self._attempt(sink)
                        except BrokenDownloadError as broken:
                            if self.received - furthest >= _RENEWING_BYTES:
                                failures = 0
                            furthest = max(furthest, self.received)
                            failures += 1
                            if failures >= self.limits.attempts:
                                fail(broken.sentence)
                            backoff = self.limits.backoff_seconds * 2.0 ** (failures - 1)
                            wait_seconds = max(backoff, broken.wait_seconds)
                            self.watch.pause(min(wait_seconds, _LONGEST_PAUSE_SECONDS))
                            if broken.is_useless or (self.received and self.validator is None):
                                raise _StartOverError from broken
            except _StartOverError:
                self.received, self.total, self.validator = 0, None, None

    def _attempt(self, sink: BinaryIO) -> FetchedSource:
        url, response = self._follow()
        with closing(response):
            self._accept(response)
            self._receive(response, sink)
        return FetchedSource(
            size_bytes=self.received,
            final_url=url.url,
            file_name_hint=file_name_hint(response.headers, url.target),
            content_type=content_type(response.headers),
        )

    def _follow(self) -> tuple[addresses.ParsedUrl, httpx.Response]:
        """Return the first response that is no redirect, and where it came from."""
        url = self.first
        headers = {
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
            "User-Agent": "video-analysis-service",
        }
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.received and self.validator:
            headers["Range"] = f"bytes={self.received}-"
            headers["If-Range"] = self.validator
        for _hop in range(self.limits.max_redirects + 1):
            target = {"target": url.target.encode("ascii")}
            with failures_of_transport():
                response = self.transport.handle_request(
                    httpx.Request("GET", url.url, headers=headers, extensions=target)
                )
            location = response.headers.get("location", "")
            if response.status_code not in _REDIRECTS or not location:
                return url, response
            response.close()
            try:
                url = addresses.check_redirect(url, location, policy=self.policy)
            except addresses.UrlError as error:
                fail(f"The source redirects to a URL that cannot be used: {error}.")
            if url.origin != self.first.origin:
                headers.pop("Authorization", None)
        return fail(f"The source redirects more than {self.limits.max_redirects} times.")

    def _accept(self, response: httpx.Response) -> None:
        """Check status and headers; keep the size and what a resume needs. The response to a
        request for the rest must be exactly that, of the same file."""
        if response.status_code in {200, 416} and self.received:
            raise BrokenDownloadError(
                "The source cannot resume a broken download.", is_useless=True
            )
        if response.status_code != (206 if self.received else 200):
            refuse_status(response, of_bucket=self.of_bucket)
        if is_encoded(response.headers):
            fail("The source sends the file compressed although it was not asked to.")
        if self.is_share_link and content_type(response.headers) == "text/html":
            fail("The share link leads to a web page: the file is not shared with everyone.")
        if not self.received:
            self.total = declared_bytes(response.headers)
            self.validator = validator(response.headers)
        else:
            part = content_range(response.headers)
            if part is None or part.first != self.received:
                sentence = "The source resumes at another place than it was asked to."
                raise BrokenDownloadError(sentence, is_useless=True)
            same_total = self.total is None or part.total_bytes in {None, self.total}
            if not same_total or validator(response.headers) not in {None, self.validator}:
                sentence = "The file at the source changes while it is downloaded."
                raise BrokenDownloadError(sentence, is_useless=True)
            self.total = self.total or part.total_bytes
        self._check_size(self.total or 0)

    def _receive(self, response: httpx.Response, sink: BinaryIO) -> None:
        window_began, window_bytes = time.monotonic(), 0
        for chunk in _chunks(response):
            self.watch()
            if not self.received and is_web_page(chunk):
                fail(page_refusal(self.first.host))
            self._check_size(self.received + len(chunk))
            sink.write(chunk)
            self.received += len(chunk)
            if self.total:
                self.watch.report(self.received / self.total)
            window_bytes += len(chunk)
            now = time.monotonic()
            if now - window_began >= self.limits.idle_seconds:
                if window_bytes < self.limits.idle_bytes:
                    raise BrokenDownloadError("The source sends too slowly.")
                window_began, window_bytes = now, 0
        if self.total is not None and self.received > self.total:
            raise BrokenDownloadError("The source sends more than it declared.", is_useless=True)
        if self.total is not None and self.received < self.total:
            raise BrokenDownloadError("The source ended the download early.")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.limits.max_bytes:
            raise StageError(
                StageCode.VALIDATION_FAILED,
                f"The source is larger than the limit of {self.limits.max_bytes} bytes.",
            )


def _first_url(
    url: str, *, provider: str | None, token: str | None, policy: addresses.AddressPolicy
) -> addresses.ParsedUrl:
    if token is not None and not _TOKEN.fullmatch(token):
        fail("The download token holds characters that no token may hold.")
    try:
        first = addresses.check_url_text(url, policy=policy)
        if provider is None:
            return first
        if provider not in [*addresses.Provider]:
            raise addresses.InvalidUrlError("its provider is not known")
        direct = addresses.direct_download_url(
            first.url, addresses.Provider(provider), has_token=token is not None
        )
        return addresses.check_url_text(direct, policy=policy)
    except addresses.UrlError as error:
        fail(f"The source's URL cannot be used: {error}.")


def _signed_url(url: str, access: BucketAccess, reader: buckets.BucketReader) -> str:
    """Return where an object of a bucket can be fetched for as long as a fetch may take."""
    try:
        scheme, name, key = buckets.split_bucket_address(url)
        buckets.check_bucket(bucket := buckets.ClientBucket(scheme, name, access), reader.policy)
    except addresses.UrlError as error:
        fail(f"The source's URL cannot be used: {error}.")
    try:
        return reader.located(bucket).url(key)
    except buckets.BucketError as error:
        if not error.may_pass:
            fail(str(error))
        return bucket.url(key)  # where it is away, the download tries again


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    """Yield the body as it comes; failures of the connection alone are translated."""
    with failures_of_transport():
        yield from response.iter_raw()
