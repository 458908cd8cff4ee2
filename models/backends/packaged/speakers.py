"""Task ``segment_speakers`` with pyannote's segmentation-3.0 on onnxruntime.

A convolutional and recurrent network (Bredin and Laurent 2021) whose classes are the sets of at
most two of three local speakers (Plaquet and Bredin 2023, "Powerset multi-class cross entropy loss
for neural speaker diarization").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged.networks import Network
from models.contracts import ACTIVITY_WINDOW_SAMPLES, Samples, SpeakerActivity

POWERSET = np.array(
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], np.bool_
)
"""Class of the network -> which local speakers speak."""


class OnnxSpeakerSegmenter:
    """Deterministic; one window at a time, on one core: 0.04 s of it."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def segment(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        found = []
        for samples in windows:
            window = np.pad(samples, (0, ACTIVITY_WINDOW_SAMPLES - len(samples)))
            # Logarithms of probabilities, shape (frames, classes).
            scores = self._network(window[None, None].astype(np.float32))[0][0]
            found.append(activity_of(scores))
        return found


def activity_of(scores: npt.NDArray[np.float32]) -> SpeakerActivity:
    """From logarithms of the classes' probabilities, shape (ACTIVITY_FRAMES, 7)."""
    speech = (1.0 - np.exp(scores[:, 0])).astype(np.float32).clip(0.0, 1.0)
    return SpeakerActivity(speech, POWERSET[scores.argmax(axis=1)])


def open_speaker_segmenter(row: Backend, models_dir: Path | None) -> OnnxSpeakerSegmenter:
    """The segmenter with its verified weights. Raises WeightsError."""
    [path] = row.packaged().paths(models_dir).values()
    return OnnxSpeakerSegmenter(Network(path))
