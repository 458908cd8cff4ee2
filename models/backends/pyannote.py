"""Task ``segment_speakers`` with pyannote.audio, for GPUs: the published network in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.backends import Backend
from models.backends.packaged.speakers import activity_of
from models.backends.transformers.hardware import Batches, Hardware, pick_hardware
from models.contracts import ACTIVITY_WINDOW_SAMPLES, Samples, SpeakerActivity

# The library reports each model that it opens unless that is disabled before it is imported.
os.environ["PYANNOTE_METRICS_ENABLED"] = "0"


class PyannoteSpeakerSegmenter:
    """SpeakerSegmenter. In float32: recurrent layers gain nothing from less."""

    def __init__(self, checkpoint: Path, hardware: Hardware, *, max_batch: int = 32) -> None:
        """``checkpoint`` is a verified file."""
        from pyannote.audio import Model

        model: Any = Model.from_pretrained(checkpoint, map_location=hardware.device)
        self._model = model.to(hardware.device).eval()
        self._device = hardware.device
        self._batches = Batches(max_batch)

    def segment(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        return self._batches.run(self._segmented, windows)

    @torch.inference_mode()
    def _segmented(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        padded = [np.pad(each, (0, ACTIVITY_WINDOW_SAMPLES - len(each))) for each in windows]
        inputs = torch.from_numpy(np.stack(padded, dtype=np.float32)).unsqueeze(1)
        # Logarithms of probabilities, shape (windows, frames, classes).
        scores = self._model(inputs.to(self._device)).float().cpu().numpy()
        return [activity_of(each) for each in scores]


def open_speaker_segmenter(row: Backend, models_dir: Path | None) -> PyannoteSpeakerSegmenter:
    """The segmenter with its verified weights. Raises WeightsError."""
    [path] = row.packaged().paths(models_dir).values()
    return PyannoteSpeakerSegmenter(path, pick_hardware(row.device), max_batch=row.max_batch)
