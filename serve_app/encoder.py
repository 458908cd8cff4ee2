"""Texts, phrases and stills to vectors, for searches and for the index: a model in this process, or
its replicas."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from models.contracts import Picture
from models.tasks import PhraseEmbedder, PictureEmbedder, TextEmbedder

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
        """A unit vector for each text. Raises what the model raises."""
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

    def __init__(self, open_embedder: Callable[[], TextEmbedder | None], model: str) -> None:
        """``model`` as of QueryEncoder."""
        super().__init__(lambda texts: _opened(open_embedder).embed_texts(texts), model)


class PictureEncoder:
    """One picture model, opened when the first still is to have a vector."""

    def __init__(
        self,
        open_embedder: Callable[[], PictureEmbedder | None],
        model: str,
        open_phrases: Callable[[], PhraseEmbedder | None] = lambda: None,
    ) -> None:
        """``model`` as of QueryEncoder."""
        self.model = model
        self._open = open_embedder
        self.queries = QueryEncoder(lambda it: _opened(open_phrases).embed_phrases(it), model)

    async def encode(self, stills: Sequence[Picture]) -> Vectors:
        """A unit vector for each still. Raises what the model raises."""
        return await asyncio.to_thread(lambda: _opened(self._open).embed_pictures(stills))


def _opened(open_embedder: Callable[[], Model | None]) -> Model:
    embedder = open_embedder()
    if embedder is None:
        raise RuntimeError("The model's weights are gone.")
    return embedder
