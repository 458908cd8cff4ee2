"""Answers: the success and error envelopes, request ids, what becomes of exceptions, and pages.

A path with another method than its own is answered with 405 and ``Allow``. A route by itself knows
only its own method, and ``/jobs/{jobId}`` would take ``GET /jobs/batch`` for a job: concrete paths
come before templates, as OpenAPI has it, whatever the method.

Endpoints read the application context and the public addresses here. Templates (Jinja2) escape text
unless it is markup already.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app import API_PREFIX
from serve_app.context import AppContext
from serve_app.errors import ApiError, ErrorCode
from serve_app.observability.logs import (
    Span,
    Tracing,
    current_context,
    enter_context,
    leave_context,
    traced,
)
from serve_app.observability.metrics import NULL_METRICS, Metrics, record_request
from storage.database import UNAVAILABLE
from storage.objects import ObjectStoreUnavailableError


def install_methods(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Make ``allow_header`` know the routers; call it before they are included."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    found: dict[str, set[str]] = {}
    for route in routes:
        found.setdefault(route.path, set()).update(route.methods or ())
    app.state.methods_by_path = found
    for path, methods in _shadowed(routes, found):
        app.router.add_route(path, _refuse, methods=sorted(methods), include_in_schema=False)


def allow_header(request: Request) -> str:
    """``Allow`` for the request's path."""
    known: dict[str, set[str]] = request.app.state.methods_by_path
    template = getattr(request.scope.get("route"), "path", "")
    methods = known.get(request.scope["path"]) or known.get(template) or set()
    return ", ".join(sorted(methods))


def _shadowed(routes: list[APIRoute], found: dict[str, set[str]]) -> Iterator[tuple[str, set[str]]]:
    """Concrete paths, with the methods that only a template which matches them takes."""
    for path, own in found.items():
        others = {
            method
            for route in routes
            if "{" not in path and route.path != path and route.path_regex.match(path)
            for method in route.methods or ()
        }
        if others - own:
            yield path, others - own


async def _refuse(request: Request) -> Response:
    raise HTTPException(405)


log = logging.getLogger("vas.http")

NO_STORE = {"Cache-Control": "no-store"}

DOCS_ERRORS_PATH = "/docs/errors"

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    # Answers are one account's own, and its key is in a header that caches do not know.
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every answer that does not set them itself."""


class ExactJSONResponse(JSONResponse):
    """UTF-8 JSON without spaces; NaN and infinity are refused, not written."""

    def render(self, content: Any) -> bytes:
        return _json(content).encode()


class LargeJSONResponse(ExactJSONResponse):
    """The same, written in parts, for what a thread answers: ``json`` lets no other thread run
    until it has written a value, which of a long job takes a third of a second. An iterator is a
    list that is made meanwhile: the garbage collector stops all threads for as long when it has
    hundreds of thousands of objects to look through."""

    def render(self, content: Any) -> bytes:
        return "".join(_parts_of(content)).encode()


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ELEMENTS_A_PART = 50


def _parts_of(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for number, (name, value) in enumerate(content.items()):
            yield f"{',' if number else '{'}{_json(name)}:"
            yield from _parts_of(value)
        yield "}" if content else "{}"
    elif isinstance(content, Iterator) or (
        isinstance(content, list) and len(content) > _ELEMENTS_A_PART
    ):
        elements, opening = iter(content), "["
        while part := list(islice(elements, _ELEMENTS_A_PART)):
            yield f"{opening}{_json(part)[1:-1]}"
            opening = ","
        yield "[]" if opening == "[" else "]"
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield "," if number else "["
            yield from _parts_of(value)
        yield "]" if content else "[]"
    else:
        yield _json(content)


def request_id(request: Request) -> str:
    """Return the id of this request, as made by RequestIdMiddleware."""
    identifier: str = request.scope["vas_request_id"]
    return identifier


def public_url(request: Request) -> str:
    """Scheme and host that clients use, without a trailing slash."""
    configured: str | None = request.app.state.context.settings.public_url
    if configured:
        return configured
    # request.url parses the whole address each time.
    return f"{request.scope['scheme']}://{request.headers.get('host') or request.url.netloc}"


def success(
    data: Any, *, status: int = 200, headers: dict[str, str] | None = None, large: bool = False
) -> Response:
    """``{ data, requestId }``. ``large``: of a thread, beside which others go on."""
    return (LargeJSONResponse if large else ExactJSONResponse)(
        {"data": data, "requestId": current_context()["requestId"]},
        status_code=status,
        headers=headers,
    )


def page(
    request: Request, data: Any, next_cursor: str | None, *, path: str | None = None, **more: Any
) -> Response:
    """Return a page of a list; with ``path`` the next one's address as ``Link``."""
    link = {}
    if next_cursor is not None and path is not None:
        query = urlencode({**request.query_params, "cursor": next_cursor})
        link["Link"] = f'<{base_url(request)}{path}?{query}>; rel="next"'
    found = {"data": data, "hasMore": next_cursor is not None, "nextCursor": next_cursor}
    return ExactJSONResponse({**found, **more, "requestId": request_id(request)}, headers=link)


def failure(request: Request, error: ApiError) -> Response:
    """Return the error envelope."""
    body: dict[str, Any] = {
        "error": error.message,
        "code": error.code,
        "docUrl": f"{public_url(request)}{DOCS_ERRORS_PATH}#{error.code}",
    }
    if error.param is not None:
        body["param"] = error.param
    body |= error.extra
    body["requestId"] = request_id(request)
    # The rate headers, for example, are sent also where the request failed after the count.
    promised: dict[str, str] = getattr(request.state, "answer_headers", {})
    return ExactJSONResponse(body, status_code=error.status, headers=promised | error.headers)


def json_path(location: tuple[int | str, ...]) -> str:
    """``("audioTracks", 2, "offsetMs")`` as ``audioTracks[2].offsetMs``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


class RequestIdMiddleware:
    """Gives every request an id of our own making and returns it in ``X-Request-Id``.

    The log's records bear that id, and the request is metered once it is over.

    It also ends what no handler knows, and does so here because an exception that
    reached the server would make it close the connection after the answer.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics = NULL_METRICS, tracing: Tracing | None = None
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identifier = f"req_{secrets.token_hex(16)}"
        scope["vas_request_id"] = identifier
        began = time.perf_counter()
        context = enter_context({"requestId": identifier})
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # A replayed answer keeps the id that stands in its body.
                MutableHeaders(scope=message).setdefault("X-Request-Id", identifier)
                said = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [pair for pair in SAFE_HEADERS if pair[0] not in said]
            await send(message)

        try:
            with self._span(scope, identifier) as span:
                try:
                    await self.app(scope, receive, send_with_id)
                except Exception:
                    log.exception("request %s failed", identifier)
                    if status:
                        raise
                    answer = failure(Request(scope), ApiError(ErrorCode.INTERNAL_ERROR))
                    await answer(scope, receive, send_with_id)
                # By the route, never the path, which may hold a signature.
                route = str(getattr(scope.get("route"), "path", ""))
                span.rename(f"{scope['method']} {route}".strip())
                span.add({"http.route": route, "http.response.status_code": status})
                if status >= 500:
                    span.fail(str(status))
        finally:
            record_request(self._metrics, scope, status, time.perf_counter() - began)
            leave_context(context)

    def _span(self, scope: Scope, identifier: str) -> AbstractContextManager[Span]:
        """Continues the client's trace, if its request has one."""
        parent = None
        if self._tracing is not None:
            parent = Headers(scope=scope).get("traceparent")
        attributes = {"http.request.method": scope["method"], "vas.request_id": identifier}
        return traced(self._tracing, scope["method"], attributes, parent=parent, of_request=True)


def install_error_handlers(app: FastAPI) -> None:
    """Everything that can go wrong ends in the envelope."""

    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, ApiError):
            return failure(request, error)
        if isinstance(error, RequestValidationError):
            return failure(request, _validation_failure(error))
        if isinstance(error, HTTPException):
            return failure(request, _http_failure(request, error))
        log.warning("request %s: database or store is away: %s", request_id(request), error)
        return failure(request, ApiError(ErrorCode.SERVICE_UNAVAILABLE))

    refusals = (ApiError, RequestValidationError, HTTPException)
    for kind in (*refusals, *UNAVAILABLE, ObjectStoreUnavailableError):
        app.add_exception_handler(kind, on_error)


def _validation_failure(error: RequestValidationError) -> ApiError:
    """Blames the first field at fault, without where it was (body, query) and what found it."""
    first = error.errors()[0]
    param = json_path(tuple(part for part in first["loc"][1:] if part not in _VALIDATORS)) or None
    name = param or "The body"
    problem = first["msg"]
    if first["type"] == "string_pattern_mismatch":  # Which shows the expression.
        problem = "must have the form that the reference describes"
    return ApiError(ErrorCode.INVALID_REQUEST, f"{name}: {problem}.", param=param)


_VALIDATORS = frozenset({"function-after", "function-wrap"})


def _http_failure(request: Request, error: HTTPException) -> ApiError:
    if error.status_code == 404:
        return ApiError(ErrorCode.NOT_FOUND, "There is nothing at this address.")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = allow_header(request)
    return ApiError(
        ErrorCode.INVALID_REQUEST, str(error.detail), status=error.status_code, headers=headers
    )


__all__ = ["API_PREFIX", "Context", "base_url", "context_of"]


def context_of(request: Request) -> AppContext:
    """Return what this process was built with."""
    context: AppContext = request.app.state.context
    return context


# Asynchronous, as all dependencies here: FastAPI calls others in a thread.
async def _current_context(request: Request) -> AppContext:
    return context_of(request)


Context = Annotated[AppContext, Depends(_current_context)]
"""What this process was built with, as a parameter of an endpoint."""


def base_url(request: Request) -> str:
    """Return the service's base address, path prefix included."""
    return f"{public_url(request)}{API_PREFIX}"


_CODE = re.compile(r"`([^`]+)`")


def templates(folder: Path) -> Environment:
    """Return the templates of ``folder``, with the filters ``prose`` and ``json``."""
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"prose": prose, "json": as_json}
    return environment


def prose(text: str) -> Markup:
    """Return text with `code` in backticks."""
    parts = _CODE.split(text)
    marked = (
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part)
        for n, part in enumerate(parts)
    )
    return Markup().join(marked)


def as_json(value: Any) -> str:
    """Return a value as examples show it."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
