"""Pages from templates, and the files that they load: compressed, versioned, from here alone."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve_app import __version__
from serve_app.api.envelope import templates
from serve_app.errors import CATALOGUE, ApiError, ErrorCode, invalid
from storage.keys import display_key

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
STATIC_PATH = "/dashboard/static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    # Forms from a page without a referrer have the origin `null`; other sites get no more than it.
    "Referrer-Policy": "strict-origin",
    "X-Robots-Tag": "noindex",
    "Vary": "Accept-Encoding, Cookie",
}
_SMALLEST_COMPRESSED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load, as it lies and compressed."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Return all of them by their path below ``static``."""
    return {
        path.relative_to(STATIC).as_posix(): _static_file(path)
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }


def _static_file(path: Path) -> StaticFile:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    compressed = gzip.compress(content, compresslevel=9, mtime=0)
    return StaticFile(content, compressed, MEDIA_TYPES[path.suffix], etag)


@lru_cache(maxsize=1)
def static_version() -> str:
    """Changes with any of the files. It stands in their addresses, modules' imports included."""
    digests = "".join(name + file.etag for name, file in static_files().items())
    return hashlib.sha256(digests.encode()).hexdigest()[:12]


def takes_gzip(request: Request) -> bool:
    """Return whether the answer may be compressed."""
    offered = request.headers.get("accept-encoding", "").lower().split(",")
    return any(part.split(";")[0].strip() == "gzip" for part in offered)


async def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a template as an answer; ``viewer`` or ``operator`` is in it who is signed in, or
    neither.

    It is rendered in a thread, where other requests are answered meanwhile.
    """
    values |= {
        "viewer": getattr(request.state, "viewer", None),
        "operator": getattr(request.state, "operator", None),
        "static": f"{STATIC_PATH}/{static_version()}",
        "version": __version__,
        "pictures": request.app.state.context.pictures,
    }
    content = await run_in_threadpool(_rendered, template, values, takes_gzip(request))
    # Of gzip: no text begins so.
    is_compressed = content.startswith(b"\x1f\x8b")
    headers = HEADERS | ({"Content-Encoding": "gzip"} if is_compressed else {})
    return Response(content, status_code=status, media_type="text/html", headers=headers)


def _rendered(template: str, values: dict[str, Any], compress: bool) -> bytes:
    content = _PAGES.get_template(template).render(values).encode()
    if compress and len(content) >= _SMALLEST_COMPRESSED_BYTES:
        return gzip.compress(content, compresslevel=5)
    return content


_CLEAR = (ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND)
"""The message is enough; the catalogue's remedies are for programs."""


async def error_page(request: Request, error: ApiError) -> Response:
    """Return a refusal as a page: what happened, and what to do."""
    shown = await page(
        request,
        "error.html",
        status=error.status,
        error=error,
        remedy=None if error.code in _CLEAR else CATALOGUE[error.code].remedy,
    )
    shown.headers.update(error.headers)
    return shown


def clock(seconds: float | None) -> str:
    """Return a length or a place in media: ``1:02:03``, ``2:05``."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def length(seconds: int) -> str:
    """Return how much was analysed, in words: ``2 h 05 min``, ``4 min 8 s``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest} s"


def wait(seconds: int) -> str:
    """Return how long something waits, in one unit: ``40 s``, ``12 min``, ``5 h``, ``3 d``."""
    for unit, size_seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_seconds:
            return f"{seconds // size_seconds} {unit}"
    return f"{seconds} s"


def dollars(cents: int) -> str:
    """US cents as people write dollars."""
    sign = "−" if cents < 0 else ""
    return f"{sign}${abs(cents) // 100:,}.{abs(cents) % 100:02}"


def moment(at: datetime | str) -> str:
    """Return a point in time to the minute, in UTC; scripts show it in the reader's zone."""
    parsed = datetime.fromisoformat(at) if isinstance(at, str) else at
    return parsed.astimezone(UTC).strftime("%d %b %Y, %H:%M UTC").removeprefix("0")


def about(seconds: float) -> str:
    """Return how long something will take about, in words: ``about 40 min``, ``about 2 h``."""
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes < 10:
        return f"about {math.ceil(minutes)} min"
    if minutes < 90:
        return f"about {math.ceil(minutes / 5) * 5} min"
    return f"about {math.ceil(minutes / 30) / 2:g} h"


def days(first: str, last: str, zone: str) -> tuple[datetime | None, datetime | None]:
    """Return when the first day begins and the last one is over, in the reader's time zone, else in
    UTC; raises INVALID_REQUEST."""
    place: tzinfo = UTC
    with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
        place = ZoneInfo(zone)
    moments: list[datetime | None] = []
    for text, further in ((first, 0), (last, 1)):
        try:
            day = date.fromisoformat(text) + timedelta(days=further) if text else None
        except (ValueError, OverflowError):
            raise invalid("There is no such day.", "from") from None
        moments.append(None if day is None else datetime.combine(day, time(), place))
    return moments[0], moments[1]


def size(count: int) -> str:
    """Return bytes in a unit that fits."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def host(url: str) -> str:
    """Of an address, all that is shown of it: the rest may be a secret."""
    return urlsplit(url).hostname or ""


def phrase(name: str) -> str:
    """Return an operation's name as words: ``editTranscript`` is ``Edit transcript``."""
    return (
        re.sub("[A-Z]", lambda found: f" {found[0].lower()}", name).replace("_", " ").capitalize()
    )


_PAGES = templates(FOLDER / "templates")
_FILTERS = (about, clock, display_key, dollars, host, moment, phrase, size, wait)
_PAGES.filters |= {each.__name__: each for each in _FILTERS} | {"length_in_words": length}
