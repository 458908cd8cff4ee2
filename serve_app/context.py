"""What the service's parts are handed: settings, database, stores, meters. Built once a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipelines.vision.policy.contracts import ContentPolicy
from serve_app.content_policy import load_content_policy
from serve_app.encryption import Sealer
from serve_app.observability.metrics import SILENT, Meters
from serve_app.pricing import PriceTable, load_prices
from serve_app.settings import Settings
from serve_app.signing import Signer
from storage.database import Database
from storage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside a function that it may touch."""

    settings: Settings
    database: Database
    objects: ObjectStore
    signer: Signer
    sealer: Sealer
    prices: PriceTable
    content_policy: ContentPolicy
    meters: Meters = field(default=SILENT)


def build_world(settings: Settings, meters: Meters = SILENT) -> World:
    """Connect a process to what ``settings`` name; ValueError without database or secret key."""
    if settings.database_url is None:
        raise ValueError("VAS_DATABASE_URL is not set and no embedded server was started.")
    secret = settings.secret_key.get_secret_value().encode()
    if len(secret) < 32:
        raise ValueError("VAS_SECRET_KEY must have at least 32 characters.")
    return World(
        settings=settings,
        database=Database(
            settings.database_url,
            pool_size=settings.database_pool_size,
            statement_timeout_seconds=settings.database_timeout_seconds,
        ),
        objects=settings.object_store,
        signer=Signer(secret),
        sealer=Sealer(secret),
        prices=load_prices(settings.price_file),
        content_policy=load_content_policy(settings),
        meters=meters,
    )
