"""Scenes to words with a vision-language model through transformers.

Which model is the registry's choice: any image-text-to-text checkpoint with a
chat template serves. Its answer is held to the schema of ``SceneAnswer`` while
it is written; an answer that was cut off is asked for again with more room.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers import AutoModelForImageTextToText, AutoProcessor

from models.backends.transformers.constrained_text import SchemaGrammar
from models.backends.transformers.hardware import Batches, Hardware
from models.contracts import CameraMotion, SceneDescription, SceneStills, ShotAngle, ShotType

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


class UnusableAnswerError(RuntimeError):
    """The model twice wrote something that is no description of a scene."""


class VisionLanguageDescriber:
    """Task ``describe``. ``checkpoint`` is a repository with its revision, or a folder."""

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
            attn_implementation=hardware.attention,
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._grammar = SchemaGrammar(
            self._processor.tokenizer,
            SceneAnswer.model_json_schema(),
            end_tokens=_end_tokens(self._model),
        )

    def describe(self, scenes: Sequence[SceneStills]) -> list[SceneDescription]:
        """One description a scene, in order. Raises UnusableAnswerError."""
        answers = self._batches.run(lambda batch: self._ask(batch, _FIRST_ROOM), scenes)
        for index, answer in enumerate(answers):
            if answer is None:
                answers[index] = self._ask([scenes[index]], _MORE_ROOM)[0]
        if any(answer is None for answer in answers):
            raise UnusableAnswerError("The describer's answer was no description of a scene.")
        return [_description(answer) for answer in answers if answer is not None]

    @torch.inference_mode()
    def _ask(self, scenes: Sequence[SceneStills], room: int) -> list[SceneAnswer | None]:
        """One answer a scene; None where it is not what the schema asks for."""
        inputs = self._processor(
            text=[self._prompt(scene) for scene in scenes],
            images=[list(scene.stills) for scene in scenes],
            padding=True,
            return_tensors="pt",
        ).to(self._hardware.device, self._hardware.dtype)
        written = self._model.generate(
            **inputs,
            max_new_tokens=room,
            do_sample=False,
            logits_processor=[self._grammar.rows(len(scenes))],
        )[:, inputs["input_ids"].shape[1] :]
        texts = self._processor.batch_decode(written, skip_special_tokens=True)
        return [_parsed(text) for text in texts]

    def _prompt(self, scene: SceneStills) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in scene.stills]
        content.append({"type": "text", "text": _question(scene)})
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


def _parsed(text: str) -> SceneAnswer | None:
    try:
        return SceneAnswer.model_validate_json(text)
    except ValidationError:
        return None


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
