"""What endpoints read of a request: the application context and the public addresses."""

from __future__ import annotations

from fastapi import Request

from serve_app import API_PREFIX
from serve_app.api.envelope import public_url
from serve_app.context import AppContext

__all__ = ["API_PREFIX", "base_url", "context_of"]


def context_of(request: Request) -> AppContext:
    """What this process was built with."""
    context: AppContext = request.app.state.context
    return context


def base_url(request: Request) -> str:
    """The service's base address, path prefix included."""
    return f"{public_url(request)}{API_PREFIX}"
