"""Texts and stills to vectors, for searches and for the index: a model in this process, or its
replicas."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from models.contracts import Picture, PictureEmbedder, TextEmbedder

log = logging.getLogger("vas.encoder")

_PAUSE_SECONDS = 10.0
"""After a failure a search does not wait for the model again so soon."""

Vectors = npt.NDArray[np.float32]


class TextEncoder:
    """One text model, opened when it is first needed; it works in a thread of its own."""

    def __init__(
        self,
        open_embedder: Callable[[], TextEmbedder | None],
        model: str,
        *,
        only_english: bool = False,
    ) -> None:
        """``model`` names the weights: vectors of another name cannot be compared.

        ``only_english``: texts of one other language are all near to each other.
        """
        self.model, self.only_english = model, only_english
        self._open = open_embedder
        self._thread = ThreadPoolExecutor(1, "encoder")
        self._not_before = 0.0

    async def encode(self, texts: Sequence[str]) -> Vectors:
        """A unit vector for each text. Raises what the model raises."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encoded, list(texts)
        )

    async def encode_within(self, texts: Sequence[str], seconds: float) -> Vectors | None:
        """As ``encode``; None where the model fails, does not answer in time or just did so."""
        if time.monotonic() < self._not_before:
            return None
        try:
            return await asyncio.wait_for(self.encode(texts), seconds)
        except Exception as error:  # whatever it is, there is an answer without vectors
            self._not_before = time.monotonic() + _PAUSE_SECONDS
            log.warning("a query has no vector: %s: %s", type(error).__name__, error)
            return None

    def _encoded(self, texts: list[str]) -> Vectors:
        embedder = self._open()
        if embedder is None:
            raise RuntimeError("The text model's weights are gone.")
        return embedder.embed_texts(texts)


class PictureEncoder:
    """One picture model, opened when the first still is to have a vector."""

    def __init__(self, open_embedder: Callable[[], PictureEmbedder | None], model: str) -> None:
        """``model`` names the weights: vectors of another name cannot be compared."""
        self.model = model
        self._open = open_embedder

    async def encode(self, stills: Sequence[Picture]) -> Vectors:
        """A unit vector for each still. Raises what the model raises."""
        return await asyncio.to_thread(self._encoded, stills)

    def _encoded(self, stills: Sequence[Picture]) -> Vectors:
        embedder = self._open()
        if embedder is None:
            raise RuntimeError("The picture model's weights are gone.")
        return embedder.embed_pictures(stills)
