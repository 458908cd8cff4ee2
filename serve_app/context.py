"""The context of the application: settings, database, stores, metrics, encoders. Built once a
process.

An encoder turns texts, phrases and stills into vectors, for searches and for the index: by a model
in this process, or by its replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from models import tasks
from models.contracts import AnswerSentence, Picture, Question
from models.registry import REGISTRY, own_profile
from pipelines.across.redaction import FindEntities, no_recognizer
from pipelines.speech.caption_rules import HouseTable, read_rules
from pipelines.vision.policy import BlocklistError, ContentPolicy, read_blocklist
from pipelines.vision.tags import TagBank, load_tag_bank
from serve_app.crypto import Encrypter, ReceiptSigner, Signer
from serve_app.observability.logs import Tracing
from serve_app.observability.metrics import NULL_METRICS, Metrics
from serve_app.pricing import PriceTable, load_prices
from serve_app.settings import Settings
from storage.database import Database
from storage.objects import ObjectStore
from storage.results import ResultParts

log = logging.getLogger("vas.encoder")

_PAUSE_SECONDS = 10.0
"""After a failure an account's searches do not wait for the model again so soon."""

Vectors = npt.NDArray[np.float32]
Made = TypeVar("Made")
Model = TypeVar("Model")


class QueryEncoder(Generic[Made]):
    """One model of texts, opened when it is first needed; it works in a thread of its own."""

    def __init__(self, embed: Callable[[list[str]], Made], model: str) -> None:
        """``model`` names the weights: vectors of another name cannot be compared."""
        self.model = model
        self._embed = embed
        self._thread = ThreadPoolExecutor(1, "encoder")
        self._not_before: dict[uuid.UUID, float] = {}
        self._turns = WeakValueDictionary[uuid.UUID, asyncio.Lock]()

    async def encode(self, texts: Sequence[str]) -> Made:
        """Return a unit vector for each text. Raises what the model raises."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._embed, list(texts)
        )

    async def encode_within(
        self, texts: Sequence[str], seconds: float, account_id: uuid.UUID
    ) -> Made | None:
        """As ``encode``; None where the model fails, does not answer in time or just did so.

        An account has one call at a time, and its failures end no other account's.
        """
        if time.monotonic() < self._not_before.get(account_id, 0):
            return None
        turn = self._turns.setdefault(account_id, asyncio.Lock())
        try:
            async with asyncio.timeout(seconds), turn:
                return await self.encode(texts)
        except Exception as error:  # whatever it is, there is an answer without vectors
            now = time.monotonic()
            waiting = {each: until for each, until in self._not_before.items() if until > now}
            self._not_before = waiting | {account_id: now + _PAUSE_SECONDS}
            log.warning("a query has no vector: %s: %s", type(error).__name__, error)
            return None


class TextEncoder(QueryEncoder[Vectors]):
    """The model of what texts mean."""

    def __init__(self, open_embedder: Callable[[], tasks.TextEmbedder | None], model: str) -> None:
        """``model`` as of QueryEncoder."""
        super().__init__(lambda texts: _opened(open_embedder).embed_texts(texts), model)


class PictureEncoder:
    """One picture model, opened when the first still is to have a vector."""

    def __init__(
        self,
        open_embedder: Callable[[], tasks.PictureEmbedder | None],
        model: str,
        open_phrases: Callable[[], tasks.PhraseEmbedder | None] = lambda: None,
    ) -> None:
        """``model`` as of QueryEncoder."""
        self.model = model
        self._open = open_embedder
        self.queries = QueryEncoder(lambda it: _opened(open_phrases).embed_phrases(it), model)

    async def encode(self, stills: Sequence[Picture]) -> Vectors:
        """Return a unit vector for each still. Raises what the model raises."""
        return await asyncio.to_thread(lambda: _opened(self._open).embed_pictures(stills))


def _opened(open_embedder: Callable[[], Model | None]) -> Model:
    embedder = open_embedder()
    if embedder is None:
        raise RuntimeError("The model's weights are gone.")
    return embedder


@dataclass(frozen=True, slots=True)
class Answerer:
    """The model that answers questions, opened when the first is asked."""

    open_model: Callable[[], tasks.QuestionAnswerer | None]
    model: str
    """For people: what it is, and of which server."""

    async def answer(self, question: Question) -> tuple[AnswerSentence, ...]:
        """Return the sentences of the answer. Raises what the model raises."""
        model: Any = await asyncio.to_thread(_opened, self.open_model)
        if hasattr(model, "begin_answer"):  # of another server: nobody asks it any more if we end
            found: tuple[AnswerSentence, ...] = await asyncio.wrap_future(
                model.begin_answer(question)
            )
            return found
        [found] = await asyncio.to_thread(model.answer, [question])
        return found


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
    answerer: Answerer | None = None
    """Of questions; None: the answer to one is the passages that are nearest to it."""
    recognizer: FindEntities = no_recognizer
    """Of names to be redacted, opened when it is first needed."""


def build_context(
    settings: Settings,
    metrics: Metrics = NULL_METRICS,
    encoder: TextEncoder | None = None,
    pictures: PictureEncoder | None = None,
    recognizer: FindEntities = no_recognizer,
    answerer: Answerer | None = None,
) -> AppContext:
    """Connect a process to what ``settings`` name; ValueError without database or secret key."""
    if settings.database_url is None:
        raise ValueError("VAS_DATABASE_URL is not set and no embedded server was started.")
    secret = settings.secret_key.get_secret_value().encode()
    if not secret:
        raise ValueError("VAS_SECRET_KEY is not set.")
    traces = settings.traces_url
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
        tracing=None if traces is None else Tracing(traces, settings.traces_ratio),
        encoder=encoder,
        pictures=pictures,
        recognizer=recognizer,
        answerer=answerer,
    )


class ContentPolicyError(ValueError):
    """The content policy of the settings cannot be applied; the message has the reason."""


def load_content_policy(settings: Settings) -> ContentPolicy:
    """Return the content policy of the settings. Raises ContentPolicyError."""
    profile = own_profile(settings.model_profile)
    if settings.blocked_labels and tasks.CLASSIFY_CONTENT not in REGISTRY.get(profile, {}):
        raise ContentPolicyError(f"VAS_BLOCKED_LABELS: no classifier in model profile {profile}.")
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
