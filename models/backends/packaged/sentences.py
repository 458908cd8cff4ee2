"""Texts as vectors in NumPy: the Universal Sentence Encoder, multilingual, version 3 (Yang et al.
2019), on one core.

A convolutional encoder: each piece's vector, and what convolutions over 2, 3 and 5 pieces make of
it, summed over the text, through four dense layers. Its carrier keeps the table of pieces in 17
blocks of 8 bits with a scale each, the rest as it was published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.contracts import TEXT_DIMENSIONS

_MOST_TOKENS = 256
"""About 150 words; a row of search has fewer."""
_BLOCKS = 17
_WINDOWS = ((2, 0), (3, 1), (5, 2))
"""Pieces that a convolution covers, and how many of them stand before the one it is for."""
_UNKNOWN, _BEGIN, _END = 0, 1, 2

Floats = npt.NDArray[np.float32]


def open_text_embedder(row: Backend, models_dir: Path | None) -> PackagedTextEmbedder:
    """The embedder with its verified weights. Raises WeightsError."""
    paths = row.packaged().paths(models_dir)
    return PackagedTextEmbedder(paths["weights.npz"], paths["sp.model"])


class PackagedTextEmbedder:
    """TextEmbedder in 16 languages: Arabic, Chinese, Dutch, English, French, German, Italian,
    Japanese, Korean, Polish, Portuguese, Russian, Spanish, Thai and Turkish are among them.

    One text at a time, so that a vector depends on nothing beside it.
    """

    def __init__(self, weights: Path, pieces: Path) -> None:
        """``pieces`` is a model of SentencePiece (Kudo 2018)."""
        from sentencepiece import SentencePieceProcessor

        self._tokenizer = SentencePieceProcessor(model_file=str(pieces))
        with np.load(weights, allow_pickle=False) as arrays:
            blocks = [arrays[f"q{block + 1}"] for block in range(_BLOCKS)]
            self._weights: dict[str, Floats] = {
                name: arrays[name] for name in arrays.files if not name.startswith("q")
            }
        self._pieces = np.empty((_BLOCKS * len(blocks[0]), blocks[0].shape[1]), np.uint8)
        for number, block in enumerate(blocks):
            self._pieces[number::_BLOCKS] = block

    def embed_texts(self, texts: Sequence[str]) -> Floats:
        vectors = [self._embedded(text) for text in texts]
        return np.array(vectors, np.float32).reshape(-1, TEXT_DIMENSIONS)

    def _embedded(self, text: str) -> Floats:
        # Of white space alone there are no pieces.
        ids = self._tokenizer.encode(text)[:_MOST_TOKENS] or [_UNKNOWN]
        tokens = np.array([_BEGIN, *ids, _END])
        own, block = self._weights, tokens % _BLOCKS
        vectors = self._pieces[tokens] * own["scale"][block, None] + own["lo"][block, None]
        given = np.concatenate(
            [vectors @ own[f"proj{n}"] + own[f"proj_b{n}"] for n, _ in _WINDOWS], 1
        )
        scale, offset = ([own[f"{name}{n}"] for n, _ in _WINDOWS] for name in ("ln_g", "ln_b"))
        given = self._normalized(given, np.concatenate(scale), np.concatenate(offset))
        parts = zip(np.split(given, len(_WINDOWS), axis=1), _WINDOWS, strict=True)
        seen = [vectors, *(self._convolved(part, *window) for part, window in parts)]
        features = self._normalized(np.concatenate(seen, axis=1), own["ln_g"], own["ln_b"])
        summed = features.sum(axis=0) @ own["cnn_W"] + len(tokens) * own["cnn_b"]
        mean = summed / math.sqrt(len(tokens))
        first = _rectified(mean @ own["p1"] + _rectified(mean @ own["d0"]) @ own["d1"])
        last = np.tanh(first @ own["p3"] + _rectified(first @ own["d2"]) @ own["d3"])
        unit: Floats = (last / np.linalg.norm(last)).astype(np.float32)
        return unit

    def _convolved(self, found: Floats, pieces: int, before: int) -> Floats:
        """Two convolutions over so many pieces, each added to what it was given."""
        for layer in (1, 2):
            padded = np.pad(found, ((before, pieces - 1 - before), (0, 0)))
            shifted = [padded[at : at + len(found)] for at in range(pieces)]
            joined = np.concatenate(shifted, axis=1)
            weights, offset = (self._weights[f"{name}{layer}_{pieces}"] for name in "wb")
            found = found + _rectified(joined @ weights + offset)
        return found

    def _normalized(self, rows: Floats, scale: Floats, offset: Floats) -> Floats:
        centred = rows - rows.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + self._weights["eps"])
        return np.asarray(centred / spread * scale + offset, np.float32)


def _rectified(values: Floats) -> Floats:
    return np.maximum(values, 0)
