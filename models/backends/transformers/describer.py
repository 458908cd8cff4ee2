"""Text that a language model may only write as a JSON schema allows, token by token.

The grammar engine is llguidance; this is the little that ties it to
``generate``: one matcher a row of the batch, a mask over the vocabulary a step.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers import AutoModelForImageTextToText, AutoProcessor, LogitsProcessor

from models.backends.transformers.hardware import ATTENTION, Batches, Hardware, checkpoint_opener
from models.backends.transformers.summaries import (
    SUMMARY_ROOM,
    complete_sentences,
    summary_question,
    summary_schema,
)
from models.contracts import (
    CameraMotion,
    Excerpt,
    SceneDescription,
    SceneStills,
    ShotAngle,
    ShotType,
    SummarySentence,
)


class SchemaGrammar:
    """JSON schemas in one tokenizer's tokens; made once a model."""

    def __init__(self, tokenizer: Any, *, end_tokens: list[int]) -> None:
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, eos_token=end_tokens)
        self.end_tokens = end_tokens

    def rows(self, schema: dict[str, Any], count: int) -> SchemaMask:
        """A mask for a fresh batch of ``count`` rows. Raises ValueError."""
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), {"whitespace_flexible": False}
        )
        matchers = [LLMatcher(self._tokenizer, grammar) for _ in range(count)]
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
            for matcher, row in zip(
                self._matchers, input_ids[:, self._seen :].tolist(), strict=True
            ):
                for token in row:
                    if not matcher.is_stopped():
                        matcher.consume_token(token)
        self._seen = input_ids.shape[1]
        allowed = np.stack([self._allowed(matcher, scores.shape[1]) for matcher in self._matchers])
        mask = torch.from_numpy(allowed).to(scores.device)
        return scores.masked_fill(~mask, float("-inf"))

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


MAX_OBJECTS = 12
_FIRST_ROOM = 256
_MORE_ROOM = 768
"""Tokens of the first try and of the second; the longest allowed answer fits the second."""

_MOST_LINES, _MOST_CHARACTERS = 8, 120
"""Of the writing on the screen that goes into the question."""

_QUESTION = (
    "These are stills of one scene of a video, in order. Describe only what can be seen. "
    "description: one or two plain sentences. objects: the things and people in view, each as one "
    "lower-case noun. shot_type: how much of the subject is in the picture. shot_angle: from where "
    "the camera looks at it. Use unknown where the pictures do not tell. Answer as JSON."
)

ObjectName = Annotated[str, Field(pattern=r"^[a-z][a-z -]{0,28}[a-z]$")]


class SceneAnswer(BaseModel):
    """What the model must write."""

    model_config = ConfigDict(extra="forbid")

    # Plain sentences in English: it also bounds how many tokens an answer can take.
    description: str = Field(pattern=r"^[A-Z][ !#-~À-ÿ]{10,238}[.!?]$")
    objects: list[ObjectName] = Field(max_length=MAX_OBJECTS)
    shot_type: ShotType
    shot_angle: ShotAngle

    @classmethod
    def find(cls, text: str) -> SceneAnswer | None:
        """The answer in a text; None where it does not fit the schema."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


_SCENE_SCHEMA = SceneAnswer.model_json_schema()


class UnusableAnswerError(RuntimeError):
    """The model wrote nothing that is a description, or a sentence of a summary."""


class VisionLanguageDescriber:
    """Tasks ``describe_scenes`` and ``summarize``.

    ``checkpoint`` is a repository with its revision, or a folder. Any thread may call: answers are
    written one batch after the other.
    """

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 4,
    ) -> None:
        self._processor: Any = AutoProcessor.from_pretrained(checkpoint, revision=revision)
        # Answers of a batch start at the same position only if questions end at the same one.
        self._processor.tokenizer.padding_side = "left"
        model: Any = AutoModelForImageTextToText.from_pretrained(
            checkpoint,
            revision=revision,
            dtype=hardware.dtype,
            attn_implementation=ATTENTION,
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._grammar = SchemaGrammar(
            self._processor.tokenizer, end_tokens=_end_tokens(self._model)
        )
        self._writing = threading.Lock()

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        """One description a scene, in order. Raises UnusableAnswerError."""
        answers = self._batches.run(lambda batch: self._answer(batch, _FIRST_ROOM), scenes)
        for index, answer in enumerate(answers):
            if answer is None:
                answers[index] = self._answer([scenes[index]], _MORE_ROOM)[0]
        if any(answer is None for answer in answers):
            raise UnusableAnswerError("The describer's answer was no description of a scene.")
        return [_description(answer) for answer in answers if answer is not None]

    def summarize(self, excerpts: Sequence[Excerpt]) -> list[tuple[SummarySentence, ...]]:
        """The sentences of each excerpt, in order. Raises UnusableAnswerError."""
        return [self._summary(excerpt) for excerpt in excerpts]

    def _summary(self, excerpt: Excerpt) -> tuple[SummarySentence, ...]:
        [text] = self._write(
            {"text": [self._prompt(summary_question(excerpt))]},
            summary_schema(excerpt),
            SUMMARY_ROOM,
        )
        sentences = complete_sentences(text, excerpt)
        if not sentences:
            raise UnusableAnswerError("The answer holds no whole sentence of a summary.")
        return sentences

    def _answer(self, scenes: Sequence[SceneStills], room: int) -> list[SceneAnswer | None]:
        """One answer a scene; None where it does not fit the schema."""
        questions: dict[str, list[Any]] = {
            "text": [self._prompt(_question(scene), len(scene.stills)) for scene in scenes],
            "images": [list(scene.stills) for scene in scenes],
        }
        return [SceneAnswer.find(text) for text in self._write(questions, _SCENE_SCHEMA, room)]

    @torch.inference_mode()
    def _write(
        self, questions: dict[str, list[Any]], schema: dict[str, Any], room: int
    ) -> list[str]:
        """The answer to each question, held to ``schema``; cut off after ``room`` tokens."""
        inputs = self._processor(**questions, padding=True, return_tensors="pt").to(
            self._hardware.device, self._hardware.dtype
        )
        # Where its text's positions begin, the model keeps in itself from step to step.
        with self._writing:
            written = self._model.generate(
                **inputs,
                max_new_tokens=room,
                do_sample=False,
                logits_processor=[self._grammar.rows(schema, len(questions["text"]))],
            )[:, inputs["input_ids"].shape[1] :]
        texts: list[str] = self._processor.batch_decode(written, skip_special_tokens=True)
        return texts

    def _prompt(self, question: str, stills: int = 0) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in range(stills)]
        content.append({"type": "text", "text": question})
        text: str = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return text


def _question(scene: SceneStills) -> str:
    """The question with what was measured; writing is quoted so that it is not taken for orders."""
    parts = [_QUESTION]
    if scene.camera_motion is not CameraMotion.UNKNOWN:
        motion = scene.camera_motion.value.replace("_", " ")
        parts.append(f"The camera's measured movement: {motion}.")
    if scene.text:
        written = json.dumps(
            [line.text[:_MOST_CHARACTERS] for line in scene.text[:_MOST_LINES]], ensure_ascii=False
        )
        parts.append(f"Writing on the screen, as read in one still: {written}.")
    return " ".join(parts)


def _end_tokens(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return list(ends) if isinstance(ends, list) else [ends]


def _description(answer: SceneAnswer) -> SceneDescription:
    text = re.sub(r"\s+", " ", answer.description).strip()
    if text and text[-1] not in ".!?":
        text += "."
    return SceneDescription(
        description=text[:1].upper() + text[1:],
        objects=tuple(sorted(set(answer.objects))),
        shot_type=answer.shot_type,
        shot_angle=answer.shot_angle,
    )


open_describer = checkpoint_opener(VisionLanguageDescriber)
