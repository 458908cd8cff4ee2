"""One attempt at a delivery: the request, what its outcome means, and reused connections."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from pipelines.net import safe_http
from pipelines.net.addresses import AddressPolicy
from serve_app import __version__
from serve_app.api.urls import address_policy
from serve_app.settings import Settings
from storage.types import DeliveryStatus

ACKNOWLEDGE_SECONDS = 10.0
CAPTURED_BYTES = 4096
USER_AGENT = f"VideoAnalysisService-Webhooks/{__version__}"
# The sender's own limits are what counts.
LIMITS = safe_http.TransportLimits(max_connections=10_000)

# The most telling class first: some of these are kinds of a later one.
_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    # A URL that the client cannot read leads nowhere; it was refused when the job was made.
    (httpx.InvalidURL, "blocked_address"),
    (safe_http.BlockedAddressError, "blocked_address"),
    (safe_http.NameResolutionError, "dns"),
    (safe_http.TlsError, "tls"),
    # In TLS 1.3 the server may refuse the client after the client's side of the handshake.
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (httpx.TimeoutException, "timeout"),
    (httpx.HTTPError, "connection"),
)

BACKOFF_SECONDS = (10, 20, 40, 80, 160, 320, 600)
"""Between the attempts, one after the other."""

ATTEMPTS = len(BACKOFF_SECONDS) + 1

JITTER = 0.1
"""The largest part of a pause by which it is prolonged."""

LONGEST_PAUSE_SECONDS = 600.0

FINAL_FAILURES = frozenset({"redirect", "blocked_address"})

GONE = 410
TOO_MANY_REQUESTS = 429
KEPT_SECONDS = 5.0
KEPT_AN_ENDPOINT = 16
ENDPOINTS_KEPT = 32
"""Endpoints without a delivery under way whose connections are kept."""

_LIMITS = replace(LIMITS, kept_connections=KEPT_AN_ENDPOINT, kept_seconds=KEPT_SECONDS)

Lookup = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt. ``status_code`` is 0 where nothing answered."""

    status_code: int
    latency_ms: int
    failure: str | None
    """None if delivered, else the failure's class, e.g. ``http_5xx: 503``."""
    body: str = ""
    retry_after: str | None = None

    @property
    def delivered(self) -> bool:
        return self.failure is None


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """Address policy, trusted authorities, name resolver and deadline of deliveries."""

    policy: AddressPolicy
    trust: ssl.SSLContext
    resolver: safe_http.AsyncResolver = safe_http.system_addresses_async
    deadline_seconds: float = ACKNOWLEDGE_SECONDS

    def transport(self, limits: safe_http.TransportLimits = LIMITS) -> safe_http.AsyncSafeTransport:
        """Return a transport with these options, to be closed by the caller."""
        return safe_http.AsyncSafeTransport(
            policy=self.policy,
            limits=self.bounded(limits),
            ssl_context=self.trust,
            resolver=self.resolver,
        )

    def bounded(self, limits: safe_http.TransportLimits) -> safe_http.TransportLimits:
        """``limits`` with the deadline of a whole delivery for each of its steps."""
        steps: dict[str, Any] = {
            f"{step}_seconds": self.deadline_seconds
            for step in ("connect", "read", "write", "header", "total")
        }
        return replace(limits, **steps)


def delivery_options(
    settings: Settings, resolver: safe_http.AsyncResolver = safe_http.system_addresses_async
) -> DeliveryOptions:
    """Return the options of ``settings``. Raises OSError for an authority file that cannot be
    read."""
    authorities = settings.webhook_ca_file
    trust = safe_http.tls_context() if authorities is None else _trust_with(authorities)
    return DeliveryOptions(address_policy(settings), trust, resolver)


@functools.lru_cache(maxsize=4)
def _trust_with(authorities: Path) -> ssl.SSLContext:
    """The public authorities and those in the file; read once a process."""
    trust = httpx.create_ssl_context(verify=True, trust_env=False)
    trust.load_verify_locations(cafile=authorities)
    return trust


@dataclass(slots=True)
class _Seen:
    """The response received so far; it counts even where the rest does not arrive."""

    status: int = 0
    retry_after: str | None = None
    body: bytearray = field(default_factory=bytearray)

    def text(self) -> str:
        return bytes(self.body[:CAPTURED_BYTES]).decode("utf-8", errors="replace")


async def send_event(
    url: str,
    headers: dict[str, str],
    content: bytes,
    *,
    options: DeliveryOptions,
    transport: safe_http.AsyncSafeTransport | None = None,
) -> Outcome:
    """POST a signed event once. Never raises for what the endpoint or the network does.

    From resolving the name to the last captured byte of the answer it all has to
    happen within the options' deadline. ``transport`` has these options and stays open;
    without it the connection is used once.
    """
    seen = _Seen()
    broken: str | None = None
    sent = {"Content-Type": "application/json", "User-Agent": USER_AGENT} | headers
    started = time.monotonic()
    try:
        async with asyncio.timeout(options.deadline_seconds):
            if transport is not None:
                await _exchange(url, sent, content, transport, seen)
            else:
                async with options.transport() as own:
                    await _exchange(url, sent, content, own, seen)
    except tuple(kind for kind, _name in _FAILURES) as error:
        broken = next(name for kind, name in _FAILURES if isinstance(error, kind))
    latency_ms = round((time.monotonic() - started) * 1000)
    failure = _failure(seen.status, broken)
    # PostgreSQL's text holds no NUL.
    return Outcome(
        seen.status, latency_ms, failure, seen.text().replace("\0", "�"), seen.retry_after
    )


async def _exchange(
    url: str,
    headers: dict[str, str],
    content: bytes,
    transport: safe_http.AsyncSafeTransport,
    seen: _Seen,
) -> None:
    """The request and the first CAPTURED_BYTES of its answer; a longer rest is never read."""
    # The transport by itself: a client would stumble over a Location it cannot read.
    response = await _response(url, headers, content, transport)
    seen.status = response.status_code
    seen.retry_after = response.headers.get("retry-after")
    try:
        async for chunk in response.aiter_raw():
            seen.body += chunk
            if len(seen.body) >= CAPTURED_BYTES:
                break
    finally:
        await response.aclose()


async def _response(
    url: str, headers: dict[str, str], content: bytes, transport: safe_http.AsyncSafeTransport
) -> httpx.Response:
    """Return the answer, up to its headers.

    A kept connection may turn out to have been closed by the endpoint, just then or
    while it was idle. That is no failure of the endpoint, so the next one is tried, and in the end
    a new one, whose failure counts.
    """
    while True:
        connected = False

        async def note(event: str, _info: dict[str, object]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"

        request = httpx.Request(
            "POST", url, headers=headers, content=content, extensions={"trace": note}
        )
        try:
            return await transport.handle_async_request(request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            if connected:
                raise


def _failure(status: int, broken: str | None) -> str | None:
    """Return the failure's class; an error status counts whether its body arrived or not."""
    if 300 <= status < 400:
        return "redirect"
    if 400 <= status < 600:
        return f"http_{status // 100}xx: {status}"
    if status >= 600:
        return "connection"  # no status of HTTP: whatever answers there is no web server
    return broken


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the event stands after the attempt, and how long it now waits, if it does."""

    status: DeliveryStatus
    pause_seconds: float | None = None


def judge(outcome: Outcome, *, attempts_before: int, chance: float, now: datetime) -> Verdict:
    """Return the rules in their order. ``chance`` in [0, 1) decides the jitter; ``now`` is
    aware."""
    if outcome.delivered:
        return Verdict(DeliveryStatus.DELIVERED)
    if outcome.status_code == GONE:
        return Verdict(DeliveryStatus.DISABLED)
    refused = 400 <= outcome.status_code < 500 and outcome.status_code != TOO_MANY_REQUESTS
    is_final = refused or outcome.failure in FINAL_FAILURES
    if is_final or attempts_before + 1 >= ATTEMPTS:
        return Verdict(DeliveryStatus.FAILED)
    pause = pause_seconds(attempts_before, chance)
    wished = retry_after_seconds(outcome.retry_after, now)
    return Verdict(
        DeliveryStatus.PENDING_RETRY, min(max(pause, wished or 0.0), LONGEST_PAUSE_SECONDS)
    )


def pause_seconds(attempts_before: int, chance: float) -> float:
    """Return the pause after the attempt that ``attempts_before`` others preceded, its jitter
    included."""
    pause = BACKOFF_SECONDS[attempts_before] * (1 + JITTER * chance)
    return min(pause, LONGEST_PAUSE_SECONDS)


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """``Retry-After`` (RFC 9110, 10.2.3): seconds or an HTTP date; None if it is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_PAUSE_SECONDS)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=now.tzinfo)
    return min(max((date - now).total_seconds(), 0.0), LONGEST_PAUSE_SECONDS)


def error_text(outcome: Outcome) -> str | None:
    """``lastError``: the failure's class, and below it what the endpoint answered."""
    if outcome.failure is None:
        return None
    return f"{outcome.failure}\n{outcome.body}" if outcome.body else outcome.failure


@dataclass(slots=True)
class _Kept:
    transport: safe_http.AsyncSafeTransport
    users: int = 0
    expiry: asyncio.TimerHandle | None = None


class Connections:
    """One transport an endpoint; they are never shared by two accounts."""

    def __init__(self, options: DeliveryOptions) -> None:
        self._options = options
        self._kept: dict[str, _Kept] = {}
        self._idle = 0
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, endpoint: str) -> AsyncIterator[safe_http.AsyncSafeTransport]:
        """The endpoint's transport, for one delivery."""
        kept = self._kept.get(endpoint)
        if kept is None:
            kept = self._kept[endpoint] = _Kept(self._options.transport(_LIMITS))
        elif kept.expiry is not None:
            kept.expiry.cancel()
            kept.expiry = None
            self._idle -= 1
        kept.users += 1
        try:
            yield kept.transport
        finally:
            kept.users -= 1
            if kept.users == 0:
                # Keep what is idle now, for a while and within bounds.
                self._idle += 1
                wait = KEPT_SECONDS if self._idle <= ENDPOINTS_KEPT else 0.0
                loop = asyncio.get_running_loop()
                kept.expiry = loop.call_later(wait, self._expire, endpoint)

    def _expire(self, endpoint: str) -> None:
        self._idle -= 1
        task = asyncio.ensure_future(self._kept.pop(endpoint).transport.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close everything; no delivery may be under options."""
        for endpoint, kept in list(self._kept.items()):
            if kept.expiry is not None:
                kept.expiry.cancel()
                self._expire(endpoint)
        await asyncio.gather(*self._closing, return_exceptions=True)


class SharedResolver:
    """An ``AsyncResolver`` that shares a lookup under way among concurrent callers."""

    def __init__(self, *, threads: int, lookup: Lookup = safe_http.system_addresses) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(threads, "webhook-names")
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Addresses of ``host``; raises OSError where it has none."""
        name = (host, port)
        running = self._running.get(name)
        if running is None:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, self._lookup, host, port)
            self._running[name] = running
            running.add_done_callback(lambda _: self._running.pop(name))
        # A cancelled caller must not cancel the lookup of the others.
        return await asyncio.shield(running)

    def close(self) -> None:
        """Start no more lookups; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
