"""What a still shows, by an image classifier through transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification

from models.backends.transformers.hardware import Batches, Hardware
from models.contracts import Picture


class PictureClassifier:
    """Task ``classify``. ``checkpoint`` is a repository with its revision, or a folder."""

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
        inputs = self._processor(images=list(stills), return_tensors="pt").to(
            self._hardware.device, self._hardware.dtype
        )
        logits = self._model(**inputs).logits.float()
        scores = logits.softmax(dim=-1) if self._exclusive else logits.sigmoid()
        return [dict(zip(self._labels, row, strict=True)) for row in scores.tolist()]
