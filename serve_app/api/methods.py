"""Which methods a path takes: 405 and ``Allow`` for a known path with another method.

A route by itself knows only its own method, and ``/jobs/{jobId}`` would take
``GET /jobs/batch`` for a job. Concrete paths come before templates, as OpenAPI
has it, whatever the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.responses import Response


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
