"""Text that a language model may only write as a JSON schema allows, token by token.

The grammar engine is llguidance; this is the little that ties it to
``generate``: one matcher a row of the batch, a mask over the vocabulary a step.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import LogitsProcessor


class SchemaGrammar:
    """A JSON schema compiled for one tokenizer; made once a model."""

    def __init__(self, tokenizer: Any, schema: dict[str, Any], *, end_tokens: list[int]) -> None:
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, eos_token=end_tokens)
        self._grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), {"whitespace_flexible": False}
        )
        self.end_tokens = end_tokens

    def rows(self, count: int) -> SchemaMask:
        """A mask for a fresh batch of ``count`` rows."""
        matchers = [LLMatcher(self._tokenizer, self._grammar) for _ in range(count)]
        for matcher in matchers:
            if matcher.is_error():
                raise ValueError(f"the schema cannot be held: {matcher.get_error()}")
        return SchemaMask(matchers, self.end_tokens)


class SchemaMask(LogitsProcessor):  # type: ignore[misc]
    """Forbids every token that would leave the schema. For one ``generate`` call, no beams."""

    def __init__(self, matchers: list[LLMatcher], end_tokens: list[int]) -> None:
        self._matchers = matchers
        self._end_tokens = end_tokens
        self._seen: int | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        """Scores with minus infinity where the grammar forbids. Shapes (rows, ...) as given."""
        if self._seen is not None:
            self._consume(input_ids[:, self._seen :])
        self._seen = input_ids.shape[1]
        allowed = np.stack([self._allowed(matcher, scores.shape[1]) for matcher in self._matchers])
        mask = torch.from_numpy(allowed).to(scores.device)
        return scores.masked_fill(~mask, float("-inf"))

    def _consume(self, tokens: torch.Tensor) -> None:
        for matcher, row in zip(self._matchers, tokens.tolist(), strict=True):
            for token in row:
                if not matcher.is_stopped():
                    matcher.consume_token(token)

    def _allowed(self, matcher: LLMatcher, vocabulary: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which tokens may come next, shape (vocabulary,); the end once all is written."""
        allowed = np.zeros(vocabulary, dtype=bool)
        if matcher.is_stopped():
            allowed[self._end_tokens] = True
            return allowed
        bits = np.unpackbits(
            np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little"
        )
        known = min(vocabulary, len(bits))
        allowed[:known] = bits[:known].astype(bool)
        return allowed
