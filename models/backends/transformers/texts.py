"""Texts through transformers: in another language, by M2M100 (Fan et al. 2020), and as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer, M2M100ForConditionalGeneration

from models.backends.transformers import (
    ATTENTION,
    CheckpointModel,
    Hardware,
    checkpoint_opener,
)
from models.contracts import TEXT_DIMENSIONS, WRITTEN_LANGUAGES, SourceText, written_language

_MOST_TOKENS = 256
"""Of a text; the model has 1,024 positions, a segment of speech some fifty tokens."""


class M2M100Translator(CheckpointModel):
    """Task ``translate_text``."""

    _kind, _reads = M2M100ForConditionalGeneration, AutoTokenizer
    _how = MappingProxyType({"attn_implementation": ATTENTION})

    def translate_texts(self, texts: Sequence[SourceText]) -> list[str]:
        """One translation a text, in order. Raises ValueError for a language that it lacks."""
        return self._batches.run(self._translated, texts)

    @torch.inference_mode()
    def _translated(self, texts: Sequence[SourceText]) -> list[str]:
        pieces = [[self._code(text.language), *self._pieces(text.text)] for text in texts]
        inputs = self._reader.pad({"input_ids": pieces}, return_tensors="pt")
        targets = [self._code(text.target) for text in texts]
        start = self._model.config.decoder_start_token_id
        output = self._model.generate(
            **inputs.to(self._hardware.device),
            # A text's language is its first token, as ``forced_bos_token_id`` sets it for a batch.
            decoder_input_ids=torch.tensor(
                [[start, target] for target in targets], device=self._hardware.device
            ),
            num_beams=5,
            do_sample=False,
            max_length=_MOST_TOKENS,
        )
        found: list[str] = self._reader.batch_decode(output[:, 2:], skip_special_tokens=True)
        return [" ".join(each.split()) for each in found]

    def _pieces(self, text: str) -> list[int]:
        pieces: list[int] = self._reader(
            text, add_special_tokens=False, truncation=True, max_length=_MOST_TOKENS
        ).input_ids
        return [*pieces, self._reader.eos_token_id]

    def _code(self, language: str) -> int:
        name = written_language(language)
        if name not in WRITTEN_LANGUAGES:
            raise ValueError(f"{language} is none of the translator's languages.")
        code: int = self._reader.get_lang_id(name)
        return code


open_translator = checkpoint_opener(M2M100Translator)


class SentenceEmbedder(CheckpointModel):
    """Task ``embed_text``: the mean of a text's tokens, of length 1, as sentence-transformers
    makes it of its models with mean pooling.

    Raises ValueError for a model of more dimensions than TEXT_DIMENSIONS; zeros fill up the vectors
    of one of fewer.
    """

    _kind, _reads = AutoModel, AutoTokenizer

    def __init__(self, checkpoint: str, hardware: Hardware, **how: Any) -> None:
        super().__init__(checkpoint, hardware, **how)
        if (numbers := self._model.config.hidden_size) > TEXT_DIMENSIONS:
            raise ValueError(f"{checkpoint} has vectors of {numbers} numbers.")

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.zeros((len(texts), TEXT_DIMENSIONS), np.float32)
        for row, vector in zip(vectors, self._batches.run(self._embedded, texts), strict=True):
            row[: len(vector)] = vector
        return vectors

    @torch.inference_mode()
    def _embedded(self, texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        inputs = self._reader(
            list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt"
        ).to(self._hardware.device)
        tokens = self._model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][:, :, None].float()
        means = (tokens * mask).sum(dim=1) / mask.sum(dim=1)
        return list(torch.nn.functional.normalize(means, dim=1).cpu().numpy())


open_text_embedder = checkpoint_opener(SentenceEmbedder)
