"""One attempt at delivering an event: what came back, as the delivery log words it."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from pipelines.net.addresses import AddressPolicy
from pipelines.net.safe_http import (
    AsyncResolver,
    AsyncSafeTransport,
    BlockedAddressError,
    NameResolutionError,
    TlsError,
    TransportLimits,
    system_addresses_async,
    tls_context,
)
from serve_app import __version__
from serve_app.api.urls import address_policy
from serve_app.settings import Settings

ACKNOWLEDGE_SECONDS = 10.0
CAPTURED_BYTES = 4096
USER_AGENT = f"VideoAnalysisService-Webhooks/{__version__}"
LIMITS = TransportLimits(max_connections=10_000)  # the sender's own limits are what counts

# The most telling class first: some of these are kinds of a later one.
_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    # A URL that the client cannot read leads nowhere; it was refused when the job was made.
    (httpx.InvalidURL, "blocked_address"),
    (BlockedAddressError, "blocked_address"),
    (NameResolutionError, "dns"),
    (TlsError, "tls"),
    # In TLS 1.3 the server may refuse the client after the client's side of the handshake.
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (httpx.TimeoutException, "timeout"),
    (httpx.HTTPError, "connection"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt. ``status_code`` is 0 where nothing answered."""

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
class Way:
    """How deliveries leave: whom they may reach, whom they trust, who resolves names."""

    policy: AddressPolicy
    trust: ssl.SSLContext
    resolver: AsyncResolver = system_addresses_async
    deadline_seconds: float = ACKNOWLEDGE_SECONDS

    def transport(self, limits: TransportLimits = LIMITS) -> AsyncSafeTransport:
        """Connections of this way, to be closed by the caller."""
        return AsyncSafeTransport(
            policy=self.policy,
            limits=self.bounded(limits),
            ssl_context=self.trust,
            resolver=self.resolver,
        )

    def bounded(self, limits: TransportLimits) -> TransportLimits:
        """``limits`` with the deadline of a whole delivery for each of its steps."""
        seconds = self.deadline_seconds
        return replace(
            limits,
            connect_seconds=seconds,
            read_seconds=seconds,
            write_seconds=seconds,
            header_seconds=seconds,
            total_seconds=seconds,
        )


def delivery_way(settings: Settings, resolver: AsyncResolver = system_addresses_async) -> Way:
    """The way that ``settings`` allow. Raises OSError for an authority file that cannot be read."""
    authorities = settings.webhook_ca_file
    trust = tls_context() if authorities is None else _trust_with(authorities)
    return Way(address_policy(settings), trust, resolver)


@functools.lru_cache(maxsize=4)
def _trust_with(authorities: Path) -> ssl.SSLContext:
    """The public authorities and those in the file; read once a process."""
    trust = httpx.create_ssl_context(verify=True, trust_env=False)
    trust.load_verify_locations(cafile=authorities)
    return trust


@dataclass(slots=True)
class _Seen:
    """What has come so far; it counts even where the rest never comes."""

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
    way: Way,
    transport: AsyncSafeTransport | None = None,
) -> Outcome:
    """POST a signed event once. Never raises for what the endpoint or the network does.

    From resolving the name to the last captured byte of the answer it all has to
    happen within the way's deadline. ``transport`` is of that way and stays open;
    without it the connection is used once.
    """
    seen = _Seen()
    broken: str | None = None
    sent = {"Content-Type": "application/json", "User-Agent": USER_AGENT} | headers
    started = time.monotonic()
    try:
        async with asyncio.timeout(way.deadline_seconds):
            if transport is not None:
                await _exchange(url, sent, content, transport, seen)
            else:
                async with way.transport() as own:
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
    transport: AsyncSafeTransport,
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
    url: str, headers: dict[str, str], content: bytes, transport: AsyncSafeTransport
) -> httpx.Response:
    """The answer, up to its headers.

    A kept connection may turn out to have been closed by the endpoint, just then or
    while it was idle. That says nothing of the endpoint, so the next one is tried,
    and in the end a fresh one, whose failure counts.
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
    """The class of what came: a status that says no says so whether its body came or not."""
    if 300 <= status < 400:
        return "redirect"
    if 400 <= status < 600:
        return f"http_{status // 100}xx: {status}"
    if status >= 600:
        return "connection"  # no status of HTTP: whatever answers there is no web server
    return broken
