"""Task ``detect_speech`` with Silero's detector, as faster-whisper carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper.vad import SileroVADModel

from models.backends import Backend
from models.contracts import SAMPLE_RATE_HZ, Probabilities, Samples

FRAME_SAMPLES = 512
"""Samples of one probability: 32 ms."""
SPEECH_PROBABILITY = 0.5
"""From which speech begins: Silero's own default."""
SILENCE_PROBABILITY = 0.35
"""Below which speech may end; Silero's default is 0.15 less than the other."""
MIN_SPEECH_SECONDS = 0.1
MIN_SILENCE_SECONDS = 0.1
"""Shorter gaps are part of speech: closures of stops last 50 to 80 ms."""

Region = tuple[float, float]


class SileroSpeechDetector:
    """Speech regions on a grid of 32 ms. Keeps no state between calls; one thread."""

    def __init__(self, weights: bytes) -> None:
        self._model: Any = SileroVADModel(weights)

    def detect(self, samples: Samples) -> list[Region]:
        """Regions (start, end) in seconds, sorted, disjoint, inside the samples."""
        if not len(samples):
            return []
        padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
        probabilities = np.asarray(self._model(padded)).reshape(-1)
        return regions_of(probabilities, len(samples) / SAMPLE_RATE_HZ)


def regions_of(probabilities: Probabilities, seconds: float) -> list[Region]:
    """Where speech begins at SPEECH_PROBABILITY and lasts until below SILENCE_PROBABILITY."""
    frame_seconds = FRAME_SAMPLES / SAMPLE_RATE_HZ
    regions: list[Region] = []
    start: int | None = None
    for index, probability in enumerate([*probabilities, 0.0]):
        if start is None and probability >= SPEECH_PROBABILITY:
            start = index
        elif start is not None and probability < SILENCE_PROBABILITY:
            region = (start * frame_seconds, min(seconds, index * frame_seconds))
            start = None
            if regions and region[0] - regions[-1][1] < MIN_SILENCE_SECONDS:
                region = (regions.pop()[0], region[1])
            regions.append(region)
    return [(start, end) for start, end in regions if end - start >= MIN_SPEECH_SECONDS]


def open_speech_detector(row: Backend, models_dir: Path | None) -> SileroSpeechDetector:
    """The detector of the profile ``packaged``."""
    [weights] = row.packaged().read(models_dir).values()
    return SileroSpeechDetector(weights)
