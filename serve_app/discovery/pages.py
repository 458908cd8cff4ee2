"""``/docs``: the reference and the error reference, open to everybody, all assets our own.

The pages are built once a process from the interface document; they hold nothing
of the request, so that one copy serves all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, FastAPI, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

_STATIC = Path(__file__).parent / "static"
_ASSETS = {"docs.css": "text/css", "docs.js": "text/javascript"}

HEADERS = {
    "Cache-Control": "public, max-age=300",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Bytes to serve, with their type and version."""

    content: bytes
    media_type: str
    etag: str


def _page(content: bytes, media_type: str) -> DocumentPage:
    return DocumentPage(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@lru_cache(maxsize=1)
def _reference(app: FastAPI) -> DocumentPage:
    from serve_app.discovery.pages_reference import reference_page

    return _page(reference_page(app.openapi()).encode(), "text/html")


@lru_cache(maxsize=1)
def _errors(app: FastAPI) -> DocumentPage:
    from serve_app.discovery.pages_errors import errors_page

    return _page(errors_page(app.openapi()).encode(), "text/html")


@lru_cache(maxsize=len(_ASSETS))
def _asset(name: str) -> DocumentPage:
    return _page((_STATIC / name).read_bytes(), _ASSETS[name])


def _answer(request: Request, page: DocumentPage) -> Response:
    headers = HEADERS | {"ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    return Response(page.content, media_type=page.media_type, headers=headers)


@router.get("/")
async def get_root() -> Response:
    """The reference is where a browser begins."""
    return RedirectResponse("/docs", status_code=307)


@router.get("/docs")
async def get_reference(request: Request) -> Response:
    """The reference page."""
    return _answer(request, await run_in_threadpool(_reference, request.app))


@router.get("/docs/errors")
async def get_error_reference(request: Request) -> Response:
    """The error reference."""
    return _answer(request, await run_in_threadpool(_errors, request.app))


@router.get("/docs/assets/{name}")
async def get_asset(request: Request, name: str) -> Response:
    """A style sheet or script of the pages."""
    if name not in _ASSETS:
        raise HTTPException(404)
    return _answer(request, _asset(name))
