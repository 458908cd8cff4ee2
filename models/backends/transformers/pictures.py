"""What stills show: objects of known classes, labels, a vector; through transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
    AutoTokenizer,
    SiglipModel,
)

from models.backends.transformers import CheckpointModel, Hardware, checkpoint_opener, on_device
from models.contracts import PICTURE_DIMENSIONS, Box, DetectedObject, PhraseVector, Picture

THRESHOLD = 0.5
"""Lowest confidence of a detection: what the model card of ``PekingU/rtdetr_v2_r18vd`` uses and
``post_process_object_detection`` of transformers defaults to."""


class _PictureModel(CheckpointModel):
    """A network over stills, which its processor makes ready on the device."""

    _reads = AutoImageProcessor

    @torch.inference_mode()
    def _prepared(self, stills: Sequence[Picture]) -> Any:
        """The network's inputs, in its number format and on its device."""
        inputs = self._reader(
            images=on_device(stills, self._hardware),
            # Of stills that are 1 or 3 pixels high it would take rows for colours.
            input_data_format="channels_first",
            device=self._hardware.device,
            return_tensors="pt",
        )
        return inputs.to(self._hardware.device, self._hardware.dtype)


class TransformersObjectDetector(_PictureModel):
    """Task ``detect_objects`` with RT-DETRv2 (Lv et al. 2024) or another detector of transformers.

    Labels are the checkpoint's own, in lower case.
    """

    _kind = AutoModelForObjectDetection

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        """What each still shows, in order, the most certain first."""
        return self._batches.run_prepared(self._prepared, self._found, stills)

    @torch.inference_mode()
    def _found(self, inputs: Any) -> list[tuple[DetectedObject, ...]]:
        output = self._model(**inputs)
        # All at once: what comes next asks for numbers a still.
        output.logits, output.pred_boxes = (
            each.float().cpu() for each in (output.logits, output.pred_boxes)
        )
        # Boxes stay in shares of the picture without target sizes.
        found = self._reader.post_process_object_detection(output, threshold=THRESHOLD)
        labels, objects = self._model.config.id2label, []
        for each in found:
            boxes = each["boxes"].clamp(0, 1).tolist()
            rows = zip(each["scores"].tolist(), each["labels"].tolist(), boxes, strict=True)
            placed = [
                (score, str(labels[label]).lower(), Box(left, top, right - left, bottom - top))
                for score, label, (left, top, right, bottom) in sorted(rows, reverse=True)
            ]
            objects.append(tuple(DetectedObject(name, score, box) for score, name, box in placed))
        return objects


class PictureClassifier(_PictureModel):
    """Task ``classify_content``."""

    _kind = AutoModelForImageClassification

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        """Scores by label, 0 to 1, a dictionary a still, in order."""
        return self._batches.run_prepared(self._prepared, self._classified, stills)

    @torch.inference_mode()
    def _classified(self, inputs: Any) -> list[dict[str, float]]:
        config = self._model.config
        labels = [str(config.id2label[number]) for number in sorted(config.id2label)]
        logits = self._model(**inputs).logits.float()
        # Several labels may hold at once only if the checkpoint was trained so.
        is_exclusive = config.problem_type != "multi_label_classification"
        scores = logits.softmax(dim=-1) if is_exclusive else logits.sigmoid()
        return [dict(zip(labels, row, strict=True)) for row in scores.tolist()]


class SiglipEmbedder(_PictureModel):
    """Tasks ``embed_pictures`` and ``embed_phrases`` with the two towers of SigLIP 2 (Tschannen et
    al. 2025; fixed resolution). Raises ValueError for a model of other dimensions than
    PICTURE_DIMENSIONS.
    """

    _kind = SiglipModel

    def __init__(
        self, checkpoint: str, hardware: Hardware, *, revision: str | None = None, **how: Any
    ) -> None:
        super().__init__(checkpoint, hardware, revision=revision, **how)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, revision=revision)
        numbers = self._model.config.vision_config.hidden_size
        if numbers != PICTURE_DIMENSIONS:
            raise ValueError(f"{checkpoint} has vectors of {numbers} numbers.")

    def embed_pictures(self, stills: Sequence[Picture]) -> npt.NDArray[np.float32]:
        vectors = self._batches.run_prepared(self._prepared, self._embedded, stills)
        return np.array(vectors, np.float32).reshape(-1, PICTURE_DIMENSIONS)

    @torch.inference_mode()
    def _embedded(self, inputs: Any) -> list[npt.NDArray[np.float32]]:
        return self._unit(self._model.get_image_features(**inputs))

    def embed_phrases(self, phrases: Sequence[str]) -> list[PhraseVector]:
        scale, bias = self._model.logit_scale.exp().item(), self._model.logit_bias.item()
        vectors = self._batches.run(self._embedded_phrases, phrases)
        return [PhraseVector(vector, scale, bias) for vector in vectors]

    @torch.inference_mode()
    def _embedded_phrases(self, phrases: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        # As it was trained (model card): small letters, every phrase filled up to all positions.
        inputs = self._tokenizer(
            [phrase.lower() for phrase in phrases],
            padding="max_length",
            truncation=True,
            max_length=self._model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        )
        tokens = inputs["input_ids"].to(self._hardware.device)
        return self._unit(self._model.get_text_features(input_ids=tokens))

    def _unit(self, features: Any) -> list[npt.NDArray[np.float32]]:
        vectors = features.pooler_output.float()
        return list(torch.nn.functional.normalize(vectors, dim=1).cpu().numpy())


open_classifier = checkpoint_opener(PictureClassifier)
open_object_detector = checkpoint_opener(TransformersObjectDetector)
open_picture_embedder = checkpoint_opener(SiglipEmbedder)
