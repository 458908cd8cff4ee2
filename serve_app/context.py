"""What all parts receive: settings, database, stores, metrics. Built once a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from models.registry import REGISTRY
from models.tasks import CLASSIFY_CONTENT
from pipelines.across.redaction import FindEntities, no_recognizer
from pipelines.speech.caption_rules import HouseTable, read_rules
from pipelines.vision.policy import BlocklistError, ContentPolicy, read_blocklist
from pipelines.vision.tags import TagBank, load_tag_bank
from serve_app.crypto import Encrypter, ReceiptSigner, Signer
from serve_app.encoder import PictureEncoder, TextEncoder
from serve_app.observability.metrics import NULL_METRICS, Metrics
from serve_app.observability.tracing import Tracing
from serve_app.pricing import PriceTable, load_prices
from serve_app.settings import Settings
from storage.database import Database
from storage.objects import ObjectStore
from storage.result_parts import ResultParts


@dataclass(frozen=True, slots=True)
class AppContext:
    """What request handlers and background tasks may use beside their arguments."""

    settings: Settings
    database: Database
    parts: ResultParts
    objects: ObjectStore
    signer: Signer
    encrypter: Encrypter
    receipts: ReceiptSigner
    prices: PriceTable
    caption_rules: HouseTable
    content_policy: ContentPolicy
    tags: TagBank
    metrics: Metrics = field(default=NULL_METRICS)
    tracing: Tracing | None = None
    encoder: TextEncoder | None = None
    """Of queries and of the index; None: searches are by words alone."""
    pictures: PictureEncoder | None = None
    """Of scenes' stills; None: scenes that look alike cannot be found."""
    recognizer: FindEntities = no_recognizer
    """Of names to be redacted, opened when it is first needed."""


def build_context(
    settings: Settings,
    metrics: Metrics = NULL_METRICS,
    encoder: TextEncoder | None = None,
    pictures: PictureEncoder | None = None,
    recognizer: FindEntities = no_recognizer,
) -> AppContext:
    """Connect a process to what ``settings`` name; ValueError without database or secret key."""
    if settings.database_url is None:
        raise ValueError("VAS_DATABASE_URL is not set and no embedded server was started.")
    secret = settings.secret_key.get_secret_value().encode()
    if not secret:
        raise ValueError("VAS_SECRET_KEY is not set.")
    database = Database(
        settings.database_url,
        pool_size=settings.database_pool_size,
        statement_timeout_seconds=settings.database_timeout_seconds,
    )
    return AppContext(
        settings=settings,
        database=database,
        parts=ResultParts(database),
        objects=settings.object_store,
        signer=Signer(secret),
        encrypter=Encrypter(secret),
        receipts=ReceiptSigner(secret),
        prices=load_prices(settings.price_file),
        caption_rules=read_rules(settings.caption_rules_file),
        content_policy=load_content_policy(settings),
        tags=load_tag_bank(settings.tags_file),
        metrics=metrics,
        tracing=open_tracing(settings),
        encoder=encoder,
        pictures=pictures,
        recognizer=recognizer,
    )


def open_tracing(settings: Settings) -> Tracing | None:
    """Where spans go; None if traces are off. Raises TracingNotInstalledError."""
    if settings.traces_url is None:
        return None
    return Tracing(settings.traces_url, settings.traces_ratio)


class ContentPolicyError(ValueError):
    """The content policy of the settings cannot be applied; the message has the reason."""


def load_content_policy(settings: Settings) -> ContentPolicy:
    """The content policy of the settings. Raises ContentPolicyError."""
    if settings.blocked_labels and CLASSIFY_CONTENT not in REGISTRY.get(settings.model_profile, {}):
        message = f"VAS_BLOCKED_LABELS: no classifier in model profile {settings.model_profile}."
        raise ContentPolicyError(message)
    path = settings.blocked_hashes_file
    try:
        hashes = b"" if path is None else read_blocklist(path)
    except BlocklistError as error:
        raise ContentPolicyError(f"VAS_BLOCKED_HASHES_FILE: {error}") from error
    return ContentPolicy(
        blocked_hashes=hashes,
        hash_distance=settings.blocked_hash_distance,
        label_limits=tuple(sorted(settings.blocked_labels.items())),
    )
