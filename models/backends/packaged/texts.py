"""Texts in NumPy, on one core: names in them, and texts as vectors.

Names of people and places in English are found by the named entity recogniser of spaCy's
``en_core_web_sm`` 3.8 (Honnibal et al. 2020): hashed features of each token (Bloom embeddings,
Miranda et al. 2022) through four convolutions, then actions of a greedy transition system that
begin, continue and end entities (Lample et al. 2016). The weights are as they were published;
tokens are split by the rules below, which are fewer than spaCy's.

Vectors are those of the Universal Sentence Encoder, multilingual, version 3 (Yang et al. 2019), a
convolutional encoder: each piece's vector, and what convolutions over 2, 3 and 5 pieces make of it,
summed over the text, through four dense layers. Its carrier keeps the table of pieces in 17 blocks
of 8 bits with a scale each, the rest as it was published.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.contracts import TEXT_DIMENSIONS
from models.tasks import Entity, EntityKind

Floats = npt.NDArray[np.float32]
Token = tuple[str, int, int]
"""Its text, and where it begins and ends in characters."""

_KINDS = {
    "PERSON": EntityKind.PERSON,
    "GPE": EntityKind.PLACE,
    "LOC": EntityKind.PLACE,
    "FAC": EntityKind.PLACE,
    "ORG": EntityKind.ORGANIZATION,
}
_DEPTH = 4
"""Convolutions, each over three tokens; so much padding stands around a text."""
_TOKENS_AT_ONCE = 4_000
_TOKEN = re.compile(
    r"(?:[A-Z]\.){2,}|\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr)\."
    r"|(?:n['’]t|['’](?:s|ll|re|ve|d|m))\b|[^\W_]+?(?=n['’]t\b)"
    r"|[^\W_]+(?:['’](?!(?:s|ll|re|ve|d|m)\b)[^\W_]+)*|\S",
    re.IGNORECASE,
)
_NORMS = {"n't": "not", "'m": "am", "'ll": "will", "'re": "are", "'ve": "have", "’": "'"}
_SYMBOLS = {"agent": 401, "mark": 423, "number": 433, "root": 449}
"""Words that spaCy numbers itself, instead of by their hash."""
_WORD_BITS = 2**64 - 1


def open_entity_recognizer(row: Backend, models_dir: Path | None) -> PackagedEntityRecognizer:
    """The recogniser with its verified weights. Raises WeightsError."""
    files = row.packaged().read(models_dir)
    return PackagedEntityRecognizer(files["model"], files["moves"], files["lookups.bin"])


class PackagedEntityRecognizer:
    """EntityRecognizer of English. One text at a time, so that none depends on its neighbours."""

    def __init__(self, model: bytes, moves: bytes, lookups: bytes) -> None:
        """Files of a spaCy pipeline: ``ner/model``, ``ner/moves`` and ``vocab/lookups.bin``."""
        self._norms: dict[int, str] = {}
        for table in _unpacked(lookups).values():
            self._norms |= table
        nodes = _unpacked(model)
        found: dict[str, list[dict[str, Floats]]] = {}
        seeds = list[int]()
        columns = nodes["nodes"], nodes["attrs"], nodes["params"]
        for node, attributes, params in zip(*columns, strict=True):
            if params:
                arrays = {name: _array(each) for name, each in params.items()}
                found.setdefault(node["name"], []).append(arrays)
            if node["name"] == "hashembed":
                seeds.append(_unpacked(attributes["seed"]))
        self._embeddings = [
            (each["E"], seed) for each, seed in zip(found["hashembed"], seeds, strict=True)
        ]
        self._layers = [
            {"W": dense["W"], "b": dense["b"], "G": norm["G"], "shift": norm["b"]}
            for dense, norm in zip(found["maxout"], found["layernorm"], strict=True)
        ]
        [self._lower] = found["precomputable_affine"]
        self._upper, self._project = found["linear"]
        self._actions = [*_actions(moves)]

    def recognize_entities(self, texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        return [tuple(self._recognized(text)) for text in texts]

    def _recognized(self, text: str) -> Iterator[Entity]:
        every = [(it[0], it.start(), it.end()) for it in _TOKEN.finditer(text)]
        for start in range(0, len(every), _TOKENS_AT_ONCE):
            tokens = every[start : start + _TOKENS_AT_ONCE]
            for label, first, last in self._decoded(self._vectors(tokens)):
                if label in _KINDS:
                    yield Entity(_KINDS[label], tokens[first][1], tokens[last][2])

    def _vectors(self, tokens: Sequence[Token]) -> Floats:
        """Shape (tokens, 64)."""
        words = [word for word, *_ in tokens]
        features: tuple[Callable[[str], str], ...]
        features = (self._norm, lambda word: word[0], lambda word: word[-3:], _shape)
        columns = [
            _embedded([feature(word) for word in words], *embedding)
            for feature, embedding in zip(features, self._embeddings, strict=True)
        ]
        found = np.pad(self._layer(0, np.concatenate(columns, 1)), ((_DEPTH, _DEPTH), (0, 0)))
        for number in range(1, _DEPTH + 1):
            around = np.pad(found, ((1, 1), (0, 0)))
            window = np.concatenate([around[:-2], around[1:-1], around[2:]], 1)
            found = found + self._layer(number, window)
        vectors: Floats = found[_DEPTH:-_DEPTH] @ self._project["W"].T + self._project["b"]
        return vectors

    def _layer(self, number: int, given: Floats) -> Floats:
        """The largest of three, normalised."""
        layer = self._layers[number]
        most = np.max(np.einsum("ni,opi->nop", given, layer["W"]) + layer["b"], axis=-1)
        centred = most - most.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-8)
        return np.asarray(centred / spread * layer["G"] + layer["shift"], np.float32)

    def _norm(self, word: str) -> str:
        plain = word.replace("’", "'")
        lower = plain.lower()
        return self._norms.get(_hashed(plain)) or _NORMS.get(lower) or lower

    def _decoded(self, vectors: Floats) -> Iterator[tuple[str, int, int]]:
        """Label, first and last token of each entity."""
        given = np.einsum("ni,fopi->nfop", vectors, self._lower["W"])
        nothing, last = self._lower["pad"][0], len(vectors) - 1
        began, label = -1, ""
        for at in range(len(vectors)):
            places = (at, began, at - 1 if began >= 0 else -1)
            summed = sum(
                given[place, n] if place >= 0 else nothing[n] for n, place in enumerate(places)
            )
            hidden = np.max(summed + self._lower["b"], axis=-1)
            scores = self._upper["W"] @ hidden + self._upper["b"]
            allowed = {"I", "L"} if began >= 0 else {"B", "U", "O"}
            allowed -= {"B", "I"} if at == last else set()
            best = next(
                action
                for action in map(self._actions.__getitem__, np.argsort(-scores))
                if action[0] in allowed
                and (action[1] == label if began >= 0 else bool(action[1]) == (action[0] != "O"))
            )
            if best[0] in "BU":
                began, label = at, best[1]
            if best[0] in "LU":
                yield label, began, at
                began = -1


def _unpacked(content: bytes) -> Any:
    import msgpack  # type: ignore[import-untyped]

    return msgpack.unpackb(content, raw=False, strict_map_key=False)


def _array(packed: dict[Any, Any]) -> Floats:
    """As msgpack-numpy writes it; its keys are bytes or text."""
    named = {key.decode() if isinstance(key, bytes) else key: it for key, it in packed.items()}
    return np.frombuffer(named["data"], named["type"]).reshape(named["shape"]).astype(np.float32)


def _actions(moves: bytes) -> Iterator[tuple[str, str]]:
    """In the order of the scores: by kind, then the most frequent label first."""
    import json

    labels = json.loads(_unpacked(moves)["moves"])
    for number, kind in enumerate("MBILUO"):
        if kind == "O":
            yield kind, ""
        elif kind != "M":
            ranked = sorted(((count, name) for name, count in labels[str(number)].items()))
            yield from ((kind, name) for _, name in reversed(ranked))


def _shape(word: str) -> str:
    """Capitals, small letters and digits as X, x and d; of the same in a row at most four."""
    kinds = "".join(
        ("X" if it.isupper() else "x") if it.isalpha() else "d" if it.isdigit() else it
        for it in word
    )
    return re.sub(r"(.)\1{4,}", lambda run: run[1] * 4, kinds)


def _embedded(values: Sequence[str], table: Floats, seed: int) -> Floats:
    """The sum of four rows, which a hash chooses."""
    rows = np.array([_rows(_hashed(each), seed) for each in values]) % len(table)
    return np.asarray(table[rows].sum(axis=1), np.float32)


@functools.lru_cache(maxsize=100_000)
def _hashed(text: str) -> int:
    """MurmurHash64A (Appleby) of the UTF-8, with seed 1."""
    if text in _SYMBOLS or not text:
        return _SYMBOLS.get(text, 0)
    data, factor = text.encode(), 0xC6A4A7935BD1E995
    found = 1 ^ (len(data) * factor & _WORD_BITS)
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        part = int.from_bytes(data[at : at + 8], "little") * factor & _WORD_BITS
        part = (part ^ part >> 47) * factor & _WORD_BITS
        found = (found ^ part) * factor & _WORD_BITS
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * factor & _WORD_BITS
    found = (found ^ found >> 47) * factor & _WORD_BITS
    return found ^ found >> 47


@functools.lru_cache(maxsize=400_000)
def _rows(key: int, seed: int) -> tuple[int, int, int, int]:
    """MurmurHash3 (Appleby), 128 bits for 64-bit processors, of the key's eight bytes."""

    def mixed(value: int) -> int:
        value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _WORD_BITS
        value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _WORD_BITS
        return value ^ value >> 33

    key = key * 0x87C37B91114253D5 & _WORD_BITS
    key = (key << 31 | key >> 33) * 0x4CF5AD432745937F & _WORD_BITS
    one, two = seed ^ key ^ 8, seed ^ 8
    one = one + two & _WORD_BITS
    two = two + one & _WORD_BITS
    one, two = mixed(one), mixed(two)
    one = one + two & _WORD_BITS
    two = two + one & _WORD_BITS
    return one % 2**32, one >> 32, two % 2**32, two >> 32


_MOST_TOKENS = 256
"""About 150 words; a row of search has fewer."""
_BLOCKS = 17
_WINDOWS = ((2, 0), (3, 1), (5, 2))
"""Pieces that a convolution covers, and how many of them stand before the one it is for."""
_UNKNOWN, _BEGIN, _END = 0, 1, 2


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
