"""What stills show: things of known classes, labels, a vector; through transformers."""

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

from models.backends.transformers.hardware import Batches, Hardware, checkpoint_opener
from models.contracts import PICTURE_DIMENSIONS, Box, DetectedObject, PhraseVector, Picture

THRESHOLD = 0.5
"""Lowest confidence of a detection: what the model card of ``PekingU/rtdetr_v2_r18vd`` uses and
``post_process_object_detection`` of transformers defaults to."""


_PICTURES = {"input_data_format": "channels_last", "return_tensors": "pt"}
"""How processors get stills: of one that is 1 or 3 pixels high they would take rows for colours."""


class TransformersObjectDetector:
    """Task ``detect_objects`` with RT-DETRv2 (Lv et al. 2024) or another detector of transformers.

    ``checkpoint`` is a repository with its revision, or a folder. Labels are the checkpoint's
    own, in lower case.
    """

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 16,
        threshold: float = THRESHOLD,
    ) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(checkpoint, revision=revision)
        model: Any = AutoModelForObjectDetection.from_pretrained(
            checkpoint, revision=revision, dtype=hardware.dtype
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._threshold = threshold
        self._labels = {n: str(name).lower() for n, name in model.config.id2label.items()}

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        """What each still shows, in order, the most certain first."""
        return self._batches.run(self._find, stills)

    @torch.inference_mode()
    def _find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        inputs = self._processor(images=list(stills), **_PICTURES).to(
            self._hardware.device, self._hardware.dtype
        )
        output = self._model(**inputs)
        output.logits, output.pred_boxes = output.logits.float(), output.pred_boxes.float()
        # Boxes stay in shares of the picture without target sizes.
        found = self._processor.post_process_object_detection(output, threshold=self._threshold)
        things = []
        for each in found:
            boxes = each["boxes"].clamp(0, 1).tolist()
            rows = zip(each["scores"].tolist(), each["labels"].tolist(), boxes, strict=True)
            things.append(
                tuple(
                    DetectedObject(
                        self._labels[label], score, Box(left, top, right - left, bottom - top)
                    )
                    for score, label, (left, top, right, bottom) in sorted(rows, reverse=True)
                )
            )
        return things


class PictureClassifier:
    """Task ``classify_content``. ``checkpoint`` is a repository with its revision, or a folder."""

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 32,
    ) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(checkpoint, revision=revision)
        model: Any = AutoModelForImageClassification.from_pretrained(
            checkpoint, revision=revision, dtype=hardware.dtype
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)
        labels = self._model.config.id2label
        self._labels = [str(labels[number]) for number in sorted(labels)]
        # Several labels may hold at once only if the checkpoint was trained so.
        self._exclusive = self._model.config.problem_type != "multi_label_classification"

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        """Scores by label, 0 to 1, a dictionary a still, in order."""
        return self._batches.run(self._classify, stills)

    @torch.inference_mode()
    def _classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        inputs = self._processor(images=list(stills), **_PICTURES).to(
            self._hardware.device, self._hardware.dtype
        )
        logits = self._model(**inputs).logits.float()
        scores = logits.softmax(dim=-1) if self._exclusive else logits.sigmoid()
        return [dict(zip(self._labels, row, strict=True)) for row in scores.tolist()]


class SiglipEmbedder:
    """Tasks ``embed_pictures`` and ``embed_phrases`` with the two towers of SigLIP 2 (Tschannen et
    al. 2025; fixed resolution).

    ``checkpoint`` is a repository with its revision, or a folder. Raises ValueError for a model
    of other dimensions than PICTURE_DIMENSIONS.
    """

    def __init__(
        self,
        checkpoint: str,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 16,
    ) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(checkpoint, revision=revision)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, revision=revision)
        model: Any = SiglipModel.from_pretrained(
            checkpoint, revision=revision, dtype=hardware.dtype
        )
        numbers = model.config.vision_config.hidden_size
        if numbers != PICTURE_DIMENSIONS:
            raise ValueError(f"{checkpoint} has vectors of {numbers} numbers.")
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        self._batches = Batches(max_batch)

    def embed_pictures(self, stills: Sequence[Picture]) -> npt.NDArray[np.float32]:
        vectors = self._batches.run(self._embedded, stills)
        return np.array(vectors, np.float32).reshape(-1, PICTURE_DIMENSIONS)

    @torch.inference_mode()
    def _embedded(self, stills: Sequence[Picture]) -> list[npt.NDArray[np.float32]]:
        inputs = self._processor(images=list(stills), **_PICTURES).to(
            self._hardware.device, self._hardware.dtype
        )
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
