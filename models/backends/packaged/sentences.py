"""Texts as vectors: all-MiniLM-L6-v2 with int8 weights in ONNX, on one core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged.networks import open_session
from models.contracts import TEXT_DIMENSIONS

_MOST_TOKENS = 128
"""What the model was trained with: about 90 English words."""


def open_text_embedder(row: Backend, models_dir: Path | None) -> PackagedTextEmbedder:
    """The embedder with its verified weights. Raises WeightsError."""
    [network] = row.packaged().paths(models_dir).values()
    [tokenizer] = row.packaged("tokenizer").paths(models_dir).values()
    return PackagedTextEmbedder(network, tokenizer)


class PackagedTextEmbedder:
    """TextEmbedder. One text at a time: int8 is scaled by what is beside it in a batch."""

    def __init__(self, network: Path, tokenizer: Path) -> None:
        from tokenizers import Tokenizer

        self._session: Any = open_session(network)
        self._tokenizer: Any = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.no_padding()

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = [self._embedded(text) for text in texts]
        return np.array(vectors, np.float32).reshape(-1, TEXT_DIMENSIONS)

    def _embedded(self, text: str) -> npt.NDArray[np.float32]:
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        [tokens] = self._session.run(None, inputs)[0]
        mean: npt.NDArray[np.float32] = tokens.mean(axis=0)
        return mean / np.linalg.norm(mean)
