"""One attempt at delivering an event: what came back, as the delivery log words it."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass

import httpx

from pipelines.sources.safe_http import (
    AsyncSafeTransport,
    BlockedAddressError,
    NameResolutionError,
    TlsError,
    TransportLimits,
)
from serve_app import __version__
from serve_app.http.urls import address_policy
from serve_app.settings import Settings

ACKNOWLEDGE_SECONDS = 10.0
CAPTURED_BYTES = 4096
USER_AGENT = f"VideoAnalysisService-Webhooks/{__version__}"
LIMITS = TransportLimits(
    connect_seconds=ACKNOWLEDGE_SECONDS,
    read_seconds=ACKNOWLEDGE_SECONDS,
    write_seconds=ACKNOWLEDGE_SECONDS,
    header_seconds=ACKNOWLEDGE_SECONDS,
    total_seconds=ACKNOWLEDGE_SECONDS,
)

# The most telling class first: each is a kind of connection error.
_FAILURES: tuple[tuple[type[httpx.HTTPError], str], ...] = (
    (BlockedAddressError, "blocked_address"),
    (NameResolutionError, "dns"),
    (TlsError, "tls"),
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


async def send_event(
    url: str,
    headers: dict[str, str],
    content: bytes,
    *,
    settings: Settings,
    ssl_context: ssl.SSLContext | None = None,
) -> Outcome:
    """POST a signed event once. Never raises for what the endpoint or the network does."""
    transport = AsyncSafeTransport(
        policy=address_policy(settings), limits=LIMITS, ssl_context=ssl_context
    )
    sent = {"Content-Type": "application/json", "User-Agent": USER_AGENT} | headers
    started = time.monotonic()
    try:
        # The transport by itself: a client would stumble over a Location it cannot read.
        async with transport:
            request = httpx.Request("POST", url, headers=sent, content=content)
            response = await transport.handle_async_request(request)
            try:
                body = await _captured(response)
            finally:
                await response.aclose()
            status = response.status_code
            retry_after = response.headers.get("retry-after")
    except httpx.HTTPError as error:
        return Outcome(0, _since(started), _failure_of(error))
    return Outcome(status, _since(started), _failure_by_status(status), body, retry_after)


async def _captured(response: httpx.Response) -> str:
    """The first bytes of the answer; the rest of a long one is never read."""
    captured = bytearray()
    async for chunk in response.aiter_raw():
        captured += chunk
        if len(captured) >= CAPTURED_BYTES:
            break
    return bytes(captured[:CAPTURED_BYTES]).decode("utf-8", errors="replace").replace("\0", "�")


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def _failure_of(error: httpx.HTTPError) -> str:
    return next(name for kind, name in _FAILURES if isinstance(error, kind))


def _failure_by_status(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return "redirect"
    return f"http_{status // 100}xx: {status}"
