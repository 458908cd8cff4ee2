"""What endpoints ask of a request: the world behind it and the addresses in front of it."""

from __future__ import annotations

from fastapi import Request

from serve_app.api.envelope import public_url
from serve_app.context import World

API_PREFIX = "/v1/api"


def world_of(request: Request) -> World:
    """What this process was built with."""
    world: World = request.app.state.world
    return world


def base_url(request: Request) -> str:
    """The service's base address, path prefix included."""
    return f"{public_url(request)}{API_PREFIX}"
