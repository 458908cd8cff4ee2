"""Headers of responses, by name, and which of them a response always carries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serve_app.discovery.components_forms import Schema, integer, text

RATE_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")

HEADERS: dict[str, tuple[str, Schema]] = {
    "X-Request-Id": (
        "The id of this request, also in the body.",
        text(pattern="^req_[0-9a-f]{32}$"),
    ),
    "X-RateLimit-Limit": ("Requests allowed per minute in this bucket.", integer(minimum=1)),
    "X-RateLimit-Remaining": ("Requests left in this minute.", integer(minimum=0)),
    "X-RateLimit-Reset": ("When the minute ends, Unix seconds.", integer(minimum=0)),
    "Retry-After": ("Seconds to wait before the next try.", integer(minimum=1)),
    "Location": ("The job.", text(format="uri")),
    "Link": ("Related addresses (RFC 8288), e.g. the next page.", text()),
    "Deprecation": ("`true`: the operation is deprecated.", text(const="true")),
    "Idempotent-Replayed": (
        "`true` where this is the answer to an earlier request with the same key.",
        text(const="true"),
    ),
    "Cache-Control": ("How long the answer may be kept.", text()),
    "ETag": ("Of this version of the document.", text(pattern='^"[0-9a-f]{32}"$')),
    "Content-Disposition": ("Name of the file, on caption and text files.", text()),
    "WWW-Authenticate": ("The scheme to authenticate with.", text(const="Bearer")),
}


def header_components() -> dict[str, Any]:
    """``components.headers``."""
    return {
        name: {"description": description, "required": True, "schema": schema}
        for name, (description, schema) in HEADERS.items()
    }


def headers_of(always: Iterable[str], sometimes: Iterable[str] = ()) -> dict[str, Any]:
    """A response's headers: references to those it always has, copies of the others."""
    shown: dict[str, Any] = {name: {"$ref": f"#/components/headers/{name}"} for name in always}
    for name in sometimes:
        description, schema = HEADERS[name]
        shown[name] = {"description": description, "required": False, "schema": schema}
    return shown
