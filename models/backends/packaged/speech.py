"""Task ``detect_speech`` with Silero's detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper.vad import SileroVADModel

from models.backends import Backend
from models.contracts import SPEECH_FRAME_SAMPLES, Probabilities, Samples


class SileroSpeechDetector:
    """SpeechDetector. Keeps no state between calls; one thread."""

    def __init__(self, silero: bytes) -> None:
        self._model: Any = SileroVADModel(silero)

    def find_speech(self, samples: Samples) -> Probabilities:
        if not len(samples):
            return np.empty(0, np.float32)
        padded = np.pad(samples, (0, -len(samples) % SPEECH_FRAME_SAMPLES))
        return np.asarray(self._model(padded), np.float32).reshape(-1)


def open_speech_detector(row: Backend, models_dir: Path | None) -> SileroSpeechDetector:
    """The detector with its verified weights. Raises WeightsError."""
    [silero] = row.packaged().read(models_dir).values()
    return SileroSpeechDetector(silero)
