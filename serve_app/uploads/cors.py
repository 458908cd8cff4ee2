"""Uploads from web pages: a signed address needs no cookie and no key, so any origin may use it."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

_EXPOSED = (
    "Location, Retry-After, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, "
    "Tus-Version, Upload-Defer-Length, Upload-Expires, Upload-Length, Upload-Offset, X-Request-Id"
)
_SENT = (
    "Content-Type, Tus-Resumable, Upload-Checksum, Upload-Length, Upload-Offset, "
    "X-HTTP-Method-Override, X-Request-Id, X-Requested-With"
)

ANY_ORIGIN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": _EXPOSED,
}
"""On every answer of an upload's address."""


def preflight(methods: str) -> dict[str, str]:
    """What a browser asks for before it sends such a request."""
    return ANY_ORIGIN | {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": _SENT,
        "Access-Control-Max-Age": "86400",
    }


async def put_options(request: Request) -> Response:
    """The preflight of a plain PUT."""
    return Response(status_code=204, headers=preflight("PUT, OPTIONS") | {"Allow": "PUT, OPTIONS"})
