"""Answers of bytes, or of the one range of them that is requested (RFC 9110, section 14)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve_app.errors import ApiError, invalid

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


@dataclass(frozen=True, slots=True)
class RangedContent:
    """Bytes to read: ``read(first, count)`` runs in a thread, for at most ``block_bytes``."""

    size_bytes: int
    media_type: str
    read: Callable[[int, int], bytes]
    block_bytes: int = 1 << 20


def ranged_response(
    request: Request, content: RangedContent, headers: dict[str, str], *, refuse_beyond: bool = True
) -> Response:
    """All of it, or the part that ``Range`` requests.

    A range that begins beyond the end raises 416, or gets all too.
    """
    size = content.size_bytes
    found = _find_range(request.headers.get("range", ""), size)
    beyond = found is not None and found[0] >= size
    if beyond and refuse_beyond:
        error = invalid("The range lies beyond the end.")
        known = {"Content-Range": f"bytes */{size}"}
        raise ApiError(error.code, error.message, status=416, headers=known)
    if beyond:
        found = None
    first, end = found or (0, size)
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - first)}
    if found is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    body = _blocks(content, first, end if request.method == "GET" else first)
    status = 200 if found is None else 206
    return StreamingResponse(body, status, headers=headers, media_type=content.media_type)


def _find_range(header: str, size: int) -> tuple[int, int] | None:
    """First byte and end; None for all, as for what is no single range of bytes."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        return max(0, size - int(found[2])), size
    first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    return None if last < first < size else (first, min(last + 1, size))


async def _blocks(content: RangedContent, first: int, end: int) -> AsyncIterator[bytes]:
    for offset in range(first, end, content.block_bytes):
        yield await run_in_threadpool(content.read, offset, min(content.block_bytes, end - offset))
