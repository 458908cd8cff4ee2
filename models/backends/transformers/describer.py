"""Scenes and summaries by a language model that may only write as a JSON schema allows.

The grammar engine is llguidance; ``SchemaGrammar`` is the little that ties it to ``generate``: one
matcher a row of the batch, a mask over the vocabulary a step. Lines to sum up are numbered in the
question, and every sentence of the answer begins with the number of the line that it rests on: the
schema has no other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import AutoModelForImageTextToText, AutoProcessor, StaticCache

from models.backends import Backend, transformers
from models.backends.questions import (
    ANSWER_ROOM,
    SCENE_SCHEMA,
    SUMMARY_ROOM,
    SceneAnswer,
    UnusableAnswerError,
    answer_question,
    answer_schema,
    answer_sentences,
    complete_sentences,
    middle_stills,
    scene_description,
    scene_question,
    summary_question,
    summary_schema,
)
from models.contracts import (
    AnswerSentence,
    Excerpt,
    Question,
    SceneDescription,
    SceneStills,
    SummarySentence,
)


class SchemaGrammar:
    """JSON schemas in one tokenizer's tokens; made once a model."""

    def __init__(self, tokenizer: Any, *, end_tokens: list[int]) -> None:
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, eos_token=end_tokens)
        self.end_tokens = end_tokens

    def rows(self, schema: dict[str, Any], count: int) -> SchemaRows:
        """A mask for a fresh batch of ``count`` rows. Raises ValueError."""
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), {"whitespace_flexible": False}
        )
        matcher = LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(f"the schema cannot be held: {matcher.get_error()}")
        matchers = [matcher.deep_copy() for _ in range(count)]
        return SchemaRows(matchers, self.end_tokens, self._tokenizer.vocab_size)


class SchemaRows:
    """What each row of a batch may write next. For one batch, without beams."""

    def __init__(self, matchers: list[LLMatcher], end_tokens: list[int], vocabulary: int) -> None:
        self._matchers, self._end_tokens = matchers, end_tokens
        self.vocabulary = vocabulary
        """Tokens that the grammar knows; a model may have more."""

    @property
    def is_written(self) -> bool:
        """Whether all rows are at their end."""
        return all(matcher.is_stopped() for matcher in self._matchers)

    def taken(self, row: int, candidates: Sequence[int]) -> int | None:
        """The first of these tokens that the row may write, which it has then written; None where
        it may write none. Of a row at its end: a token that ends it."""
        matcher = self._matchers[row]
        if matcher.is_stopped():
            return self._end_tokens[0]
        allowed = (token for token in candidates if matcher.try_consume_tokens([token]))
        return next(allowed, None)

    def forced(self, row: int) -> list[int]:
        """What a row must write next, as the tokenizer writes it; nothing where it has a choice."""
        return list(self._matchers[row].compute_ff_tokens())

    def allowed(self, row: int) -> npt.NDArray[np.bool_]:
        """Every token that a row before its end may write. It takes a millisecond of a vocabulary
        of 150,000, a hundred times as long as to look at a few."""
        bits = np.frombuffer(self._matchers[row].compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little").astype(np.bool_)


_CANDIDATES = 32


def next_tokens(logits: torch.Tensor, rows: SchemaRows) -> list[int]:
    """The likeliest token that each row may write; logits of shape (rows, vocabulary).

    It is among the likeliest of all but where the model would write what the schema does not have;
    of what the schema has it is the only way on, then, or else found among all tokens.
    """
    logits, tokens = logits[:, : rows.vocabulary], list[int]()
    most = min(_CANDIDATES, logits.shape[1])
    for row, candidates in enumerate(logits.topk(most, dim=-1).indices.tolist()):
        token = rows.taken(row, candidates)
        if token is None:
            token = rows.taken(row, rows.forced(row)[:1])
        if token is None:
            allowed = torch.from_numpy(rows.allowed(row)[: logits.shape[1]]).to(logits.device)
            known = logits[row].masked_fill(~allowed, float("-inf"))
            token = rows.taken(row, [int(known.argmax())])
        if token is None:
            raise UnusableAnswerError("The grammar takes no token that it allows.")
        tokens.append(token)
    return tokens


class _Step:
    """A step of decoding for so many rows, in memory of fixed places.

    On a GPU it is recorded once: to start the thousand kernels of a step takes Python ten times as
    long as they run.
    """

    def __init__(self, model: Any, rows: int, positions: int) -> None:
        self.cache = StaticCache(model.config.get_text_config(), max_cache_len=positions)
        self._model = model
        device = model.device
        self._tokens = torch.zeros((rows, 1), dtype=torch.long, device=device)
        self._at = torch.zeros((3, rows, 1), dtype=torch.long, device=device)
        self._seen = torch.zeros((rows, 1, 1, positions), dtype=torch.bool, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = torch.empty(0)

    def begin(self, attention_mask: torch.Tensor, shift: torch.Tensor | int) -> None:
        """After a prompt, whose tokens are in the cache; ``shift`` is how much further than they
        count the positions of its pictures reach."""
        self._length = attention_mask.shape[1]
        self._seen.zero_()
        self._seen[:, 0, 0, : self._length] = attention_mask.bool()
        self._at.copy_((attention_mask.sum(dim=1, keepdim=True) + shift)[None].expand(3, -1, -1))

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of what follows the rows' next ``tokens``, shape (rows, vocabulary); good until the next
        call."""
        self._tokens.copy_(tokens[:, None])
        self._seen[..., self._length] = True
        if self._graph is None:
            self._logits = self._forward()
            if self._tokens.is_cuda:
                self._record()
        else:
            self._graph.replay()
        self._length += 1
        self._at += 1
        return self._logits

    def _forward(self) -> torch.Tensor:
        found: torch.Tensor = self._model(
            input_ids=self._tokens,
            position_ids=self._at,
            attention_mask=self._seen,
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        return found

    def _record(self) -> None:
        """The step for the next time; what was worked out before stays as it is."""
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        kept = self._logits.clone()
        # A warm-up and the recording write where the next token will; the count is put back.
        with torch.cuda.stream(stream):
            self._forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._forward()
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self._length + 1)
        self._logits.copy_(kept)
        self._graph = graph


_STEPS_KEPT = 2
_LENGTH_STEP = 256
"""Positions on a GPU are a multiple of it, and rows a power of two, so that few steps are
recorded."""


class GreedyWriter:
    """What a model writes of prompts, held to a grammar: the likeliest allowed token at each
    place. One batch at a time."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._steps: dict[tuple[int, int], _Step] = {}

    @staticmethod
    def rows_for(prompts: int, device: torch.device) -> int:
        """How many rows so many prompts take."""
        return 1 << (prompts - 1).bit_length() if device.type == "cuda" else prompts

    @torch.inference_mode()
    def write(self, inputs: Mapping[str, Any], room: int, allowed: SchemaRows) -> list[list[int]]:
        """At most ``room`` tokens of each row. ``inputs`` are the processor's, filled up on the
        left to the same length."""
        attended = inputs["attention_mask"]
        rows, length = attended.shape
        positions = length + room
        if self._model.device.type == "cuda":
            positions = -(-positions // _LENGTH_STEP) * _LENGTH_STEP
        step = self._steps.pop((rows, positions), None)
        if step is None:
            while len(self._steps) >= _STEPS_KEPT:
                del self._steps[next(iter(self._steps))]
            step = _Step(self._model, rows, positions)
        self._steps[rows, positions] = step
        step.cache.reset()
        logits = self._model(
            **inputs, past_key_values=step.cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]
        shift = self._model.model.rope_deltas if "pixel_values" in inputs else 0
        step.begin(attended, shift)
        written = [next_tokens(logits, allowed)]
        while not allowed.is_written and len(written) < room:
            tokens = torch.tensor(written[-1], device=attended.device)
            written.append(next_tokens(step.logits(tokens), allowed))
        return [list(row) for row in zip(*written, strict=True)]

    def forget(self) -> None:
        """Give back the memory of all steps."""
        self._steps.clear()


_FIRST_ROOM = 256
_MORE_ROOM = 768
"""Tokens of the first try and of the second; the longest allowed answer fits the second."""


class VisionLanguageDescriber:
    """Tasks ``describe_scenes``, ``summarize`` and ``answer`` with Qwen3-VL (Bai et al. 2025).

    ``checkpoint`` is a repository with its revision, or a folder. Any thread may call: answers are
    written one batch after the other. Of a scene's stills the middle ``most_stills`` are shown.
    """

    def __init__(
        self,
        checkpoint: str,
        hardware: transformers.Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 4,
        most_stills: int = 5,
    ) -> None:
        self._processor: Any = AutoProcessor.from_pretrained(checkpoint, revision=revision)
        # Answers of a batch start at the same position only if questions end at the same one.
        self._processor.tokenizer.padding_side = "left"
        model: Any = AutoModelForImageTextToText.from_pretrained(
            checkpoint,
            revision=revision,
            dtype=hardware.dtype,
            attn_implementation=transformers.ATTENTION,
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._most_stills = most_stills
        self._batches = transformers.Batches(max_batch)
        self._writer = GreedyWriter(self._model)
        ends = _end_tokens(self._model)
        self._grammar = SchemaGrammar(self._processor.tokenizer, end_tokens=ends)

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        """One description a scene, in order. Raises UnusableAnswerError."""
        answers = self._answers(scenes, _FIRST_ROOM)
        cut_off = [index for index, answer in enumerate(answers) if answer is None]
        again = self._answers([scenes[index] for index in cut_off], _MORE_ROOM)
        for index, answer in zip(cut_off, again, strict=True):
            answers[index] = answer
        if any(answer is None for answer in answers):
            raise UnusableAnswerError("The describer's answer was no description of a scene.")
        return [scene_description(answer) for answer in answers if answer is not None]

    def summarize(self, excerpts: Sequence[Excerpt]) -> list[tuple[SummarySentence, ...]]:
        """The sentences of each excerpt, in order. Raises UnusableAnswerError."""
        return [self._summary(excerpt) for excerpt in excerpts]

    def answer(self, questions: Sequence[Question]) -> list[tuple[AnswerSentence, ...]]:
        """The sentences that answer each question, in order. Raises UnusableAnswerError."""
        return [
            answer_sentences(self._text(answer_question(each), answer_schema(each), ANSWER_ROOM))
            for each in questions
        ]

    def _text(self, question: str, schema: dict[str, Any], room: int) -> str:
        """What is written on a question without stills."""

        def inputs(_: Sequence[str]) -> Any:
            return self._inputs(text=[self._prompt(question)])

        def written(inputs: Any) -> list[str]:
            return self._written(inputs, 1, schema, room)

        [text] = self._batches.run_prepared(inputs, written, [question])
        return text

    def _summary(self, excerpt: Excerpt) -> tuple[SummarySentence, ...]:
        text = self._text(summary_question(excerpt), summary_schema(excerpt), SUMMARY_ROOM)
        sentences = complete_sentences(text, excerpt)
        if not sentences:
            raise UnusableAnswerError("The answer holds no whole sentence of a summary.")
        return sentences

    def _answers(self, scenes: Sequence[SceneStills], room: int) -> list[SceneAnswer | None]:
        """One answer a scene, of at most ``room`` tokens; None where it does not fit the schema."""

        def written(prepared: tuple[int, Any]) -> list[str]:
            count, inputs = prepared
            return self._written(inputs, count, SCENE_SCHEMA, room)

        texts = self._batches.run_prepared(self._questions, written, scenes)
        return [SceneAnswer.find(text) for text in texts]

    def _questions(self, scenes: Sequence[SceneStills]) -> tuple[int, Any]:
        """How many there are, and the model's inputs; the last question fills up the rows."""
        rows = self._writer.rows_for(len(scenes), self._hardware.device)
        asked = [*scenes, *[scenes[-1]] * (rows - len(scenes))]
        shown = [middle_stills(scene.stills, self._most_stills) for scene in asked]
        return len(scenes), self._inputs(
            text=[
                self._prompt(scene_question(scene), len(stills))
                for scene, stills in zip(asked, shown, strict=True)
            ],
            images=[transformers.on_device(stills, self._hardware) for stills in shown],
            images_kwargs={"device": self._hardware.device, "input_data_format": "channels_first"},
        )

    def _inputs(self, **questions: Any) -> Any:
        return self._processor(**questions, padding=True, return_tensors="pt").to(
            self._hardware.device, self._hardware.dtype
        )

    def _written(self, inputs: Any, count: int, schema: dict[str, Any], room: int) -> list[str]:
        """The first ``count`` answers, held to ``schema``; cut off after ``room`` tokens."""
        allowed = self._grammar.rows(schema, len(inputs["input_ids"]))
        try:
            written = self._writer.write(inputs, room, allowed)
        except torch.OutOfMemoryError:
            self._writer.forget()
            raise
        texts: list[str] = self._processor.batch_decode(written[:count], skip_special_tokens=True)
        return texts

    def _prompt(self, question: str, stills: int = 0) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in range(stills)]
        content.append({"type": "text", "text": question})
        text: str = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return text


def _end_tokens(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return list(ends) if isinstance(ends, list) else [ends]


def open_describer(row: Backend, models_dir: Path | None) -> VisionLanguageDescriber:
    """The describer of a checkpoint of a hub."""
    where = row.location(models_dir)
    return VisionLanguageDescriber(
        where.source,
        transformers.pick_hardware(row.device, row.dtype),
        revision=where.revision,
        max_batch=row.max_batch,
        most_stills=row.most_stills,
    )
