"""Texts as vectors, by a sentence model through transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from models.backends.transformers.hardware import Batches, Hardware, checkpoint_opener
from models.contracts import TEXT_DIMENSIONS

_MOST_TOKENS = 128


class SentenceEmbedder:
    """Task ``embed_text``: the mean of a text's tokens, of length 1, as sentence-transformers
    makes it of its models with mean pooling.

    ``checkpoint`` is a repository with its revision, or a folder. Raises ValueError for a model
    of more dimensions than TEXT_DIMENSIONS; zeros fill up the vectors of one of fewer.
    """

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 32,
    ) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, revision=revision)
        model: Any = AutoModel.from_pretrained(checkpoint, revision=revision, dtype=hardware.dtype)
        if model.config.hidden_size > TEXT_DIMENSIONS:
            raise ValueError(f"{checkpoint} has vectors of {model.config.hidden_size} numbers.")
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.zeros((len(texts), TEXT_DIMENSIONS), np.float32)
        for row, vector in zip(vectors, self._batches.run(self._embedded, texts), strict=True):
            row[: len(vector)] = vector
        return vectors

    @torch.inference_mode()
    def _embedded(self, texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        inputs = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt"
        ).to(self._hardware.device)
        tokens = self._model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][:, :, None].float()
        means = (tokens * mask).sum(dim=1) / mask.sum(dim=1)
        return list(torch.nn.functional.normalize(means, dim=1).cpu().numpy())


open_text_embedder = checkpoint_opener(SentenceEmbedder)
