"""One observation a request: how long, of which operation, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from starlette.types import Scope

from serve_app.observability.metrics import HTTP_REQUESTS, Meters

_ELSEWHERE = "none"
"""Operation of requests to addresses that no route takes."""


def record_request(meters: Meters, scope: Scope, status: int, seconds: float) -> None:
    """Record a request that ended with ``status``; 0: it broke off before an answer began."""
    route = scope.get("route")
    operation = getattr(route, "operation_id", None) or getattr(route, "name", _ELSEWHERE)
    meters.record(HTTP_REQUESTS, seconds, _labels(str(operation), status // 100))


@lru_cache(maxsize=512)
def _labels(operation: str, status_class: int) -> Mapping[str, str]:
    return {"operation": operation, "status": f"{status_class}xx" if status_class else "none"}
