"""What endpoints read of a request: the application context and the public addresses."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from serve_app import API_PREFIX
from serve_app.api.envelope import public_url
from serve_app.context import AppContext

__all__ = ["API_PREFIX", "Context", "base_url", "context_of"]


def context_of(request: Request) -> AppContext:
    """What this process was built with."""
    context: AppContext = request.app.state.context
    return context


# Asynchronous, as all dependencies here: FastAPI calls others in a thread.
async def _current_context(request: Request) -> AppContext:
    return context_of(request)


Context = Annotated[AppContext, Depends(_current_context)]
"""What this process was built with, as a parameter of an endpoint."""


def base_url(request: Request) -> str:
    """The service's base address, path prefix included."""
    return f"{public_url(request)}{API_PREFIX}"
