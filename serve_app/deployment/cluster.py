"""The service on a Ray cluster: what ``serve deploy serve_config.yaml`` imports.

Settings come from the environment of the nodes (addresses, secrets) and from
``args`` of the application in ``serve_config.yaml`` (anything else).
Nodes share no folder, so what only works on one machine is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.speech.caption_rules import read_rules
from serve_app.observability.logs import exporter_class
from serve_app.pricing import load_prices
from serve_app.settings import (
    SECRET_KEY_LENGTH,
    InvalidSettingsError,
    Settings,
    load_settings,
    require_provider,
)
from storage.database import DatabaseUrlError, hosts_of, migrate

if TYPE_CHECKING:
    from ray.serve import Application


class ClusterSettingsError(ValueError):
    """The settings cannot work on several nodes; the message has a sentence for each reason."""


def app(args: dict[str, Any]) -> Application:
    """Return the application graph for ``serve deploy``, over a migrated database.

    ``args`` are settings by their names (``api_replicas: 8``); they go before the
    environment. Raises ClusterSettingsError, PriceFileError, CaptionRulesError,
    ProviderNotInstalledError, TracingNotInstalledError, ContentPolicyError and what the database
    raises.
    """
    # Ray Serve is imported where it is used: checking settings must not start it.
    from serve_app.deployment.application import build_named_app

    settings = cluster_settings(args)
    load_prices(settings.price_file)
    read_rules(settings.caption_rules_file)
    require_provider(settings)
    if settings.traces_url is not None:
        exporter_class()
    migrate(settings.database_url or "")
    return build_named_app(settings)


def cluster_settings(changes: Mapping[str, Any]) -> Settings:
    """Return the environment's settings with ``changes``; raises ClusterSettingsError."""
    unknown = sorted(changes.keys() - Settings.model_fields.keys())
    if unknown:
        raise ClusterSettingsError(f"There are no settings named {', '.join(unknown)}.")
    try:
        settings = load_settings(**changes)
    except InvalidSettingsError as error:
        raise ClusterSettingsError(str(error)) from None
    require_cluster_settings(settings)
    return settings


def require_cluster_settings(settings: Settings) -> None:
    """Raises ClusterSettingsError where ``settings`` cannot work on several nodes."""
    complaints = [sentence for check in _CHECKS if (sentence := check(settings))]
    if complaints:
        raise ClusterSettingsError(" ".join(complaints))


def _database(settings: Settings) -> str | None:
    if settings.database_url is None:
        return "VAS_DATABASE_URL is not set: a cluster needs a PostgreSQL server of its own."
    try:
        hosts = hosts_of(settings.database_url)
    except DatabaseUrlError:
        return "VAS_DATABASE_URL is no postgresql:// address."
    if any(host in {"", "@"} or host.startswith(("/", "@")) for host in hosts):
        return "VAS_DATABASE_URL names a Unix socket, which other nodes cannot reach: use TCP."
    return None


def _bucket(settings: Settings) -> str | None:
    if settings.s3_bucket is None:
        return "VAS_S3_BUCKET is not set: nodes share no folder, so objects must lie in a bucket."
    return None


def _secret(settings: Settings) -> str | None:
    if not settings.secret_key.get_secret_value():
        return f"VAS_SECRET_KEY must be set on all nodes alike, to {SECRET_KEY_LENGTH} characters."
    return None


def _profile(settings: Settings) -> str | None:
    if settings.model_profile == "auto":
        return "Name the models (model_profile: packaged, cpu or gpu): auto looks at one node only."
    return None


def _paths(settings: Settings) -> str | None:
    """Replicas work in folders of their own, on any node."""
    named = {"caption_rules_file", "models_dir", "price_file", "webhook_ca_file", "whisper_weights"}
    paths = {name: getattr(settings, name) for name in sorted(named)}
    relative = [n for n, path in paths.items() if isinstance(path, Path) and not path.is_absolute()]
    if relative:
        return f"Give {', '.join(relative)} as absolute paths that are the same on every node."
    return None


_CHECKS: tuple[Callable[[Settings], str | None], ...] = (
    _database,
    _bucket,
    _secret,
    _profile,
    _paths,
)
"""Each gives a sentence on what cannot work, or None."""
