"""The application graph of a machine of its own, as ``vas serve`` has it, for ``serve deploy``."""

from __future__ import annotations

from typing import Any

from ray.serve import Application

from serve_app.deployment.cluster import cluster_settings
from storage.database import migrate


def app(args: dict[str, Any]) -> Application:
    """Return API, runner and sender in one replica, over a migrated database."""
    from serve_app.deployment.application import build_app

    settings = cluster_settings(args)
    migrate(settings.database_url or "")
    return build_app(settings)
