"""Task ``detect_speech``: Silero's detector, and segmentation-3.0 where Silero doubts.

Each is right where the other is not. Of seven recordings of meetings Silero alone, at its default,
covers 72 % of the speech, with nothing false; segmentation alone 94 %, but it takes signals,
choirs and an empty room for speech (5, 7 and 4 s a minute). Its regions of which Silero, at a low
threshold, has two fifths cover 94 % with 3 s false in 120, and of ten minutes of noises as little
as Silero alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper.vad import SileroVADModel

from models.backends import Backend
from models.backends.packaged.networks import Network
from models.backends.packaged.speakers import OnnxSpeakerSegmenter
from models.contracts import (
    ACTIVITY_FRAME_SAMPLES,
    ACTIVITY_START_SAMPLES,
    ACTIVITY_WINDOW_SAMPLES,
    SAMPLE_RATE_HZ,
    Probabilities,
    Samples,
)

FRAME_SAMPLES = 512
"""Samples of one probability: 32 ms."""
SPEECH_PROBABILITY = 0.5
"""From which speech begins: Silero's own default."""
SILENCE_PROBABILITY = 0.35
"""Below which speech may end; Silero's default is 0.15 less than the other."""
DOUBT = (0.15, 0.08)
"""The same two where Silero has a doubt that nobody speaks."""
SUPPORTED_SHARE = 0.4
"""Of a region of segmentation, so much Silero must doubt: with 0.25 rain was speech."""
MIN_SPEECH_SECONDS = 0.1
MIN_SILENCE_SECONDS = 0.1
"""Shorter gaps are part of speech: closures of stops last 50 to 80 ms."""
_STEP_SAMPLES = ACTIVITY_WINDOW_SAMPLES // 2
"""From one window of segmentation to the next: where two overlap their mean counts."""

Region = tuple[float, float]


class PackagedSpeechDetector:
    """Speech regions on a grid of 32 ms. Keeps no state between calls; one thread."""

    def __init__(self, silero: bytes, segmenter: OnnxSpeakerSegmenter) -> None:
        self._model: Any = SileroVADModel(silero)
        self._segmenter = segmenter

    def detect(self, samples: Samples) -> list[Region]:
        """Regions (start, end) in seconds, sorted, disjoint, inside the samples."""
        if not len(samples):
            return []
        seconds = len(samples) / SAMPLE_RATE_HZ
        padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
        probabilities = np.asarray(self._model(padded)).reshape(-1)
        certain = regions_of(probabilities, seconds)
        doubts = regions_of(probabilities, seconds, *DOUBT)
        if not doubts:
            return certain
        segmented = regions_of(self._segmented(padded), seconds)
        return united(certain, [each for each in segmented if is_supported(each, doubts)])

    def _segmented(self, samples: Samples) -> Probabilities:
        """That anybody speaks, by segmentation, a value for FRAME_SAMPLES."""
        count = len(samples) // FRAME_SAMPLES
        total, windows = np.zeros(count), np.zeros(count)
        for first in range(0, max(1, len(samples) - _STEP_SAMPLES), _STEP_SAMPLES):
            window = samples[first : first + ACTIVITY_WINDOW_SAMPLES]
            [activity] = self._segmenter.segment([window])
            frames = np.arange(-(-first // FRAME_SAMPLES), (first + len(window)) // FRAME_SAMPLES)
            middles = frames * FRAME_SAMPLES + FRAME_SAMPLES // 2 - first - ACTIVITY_START_SAMPLES
            places = (middles // ACTIVITY_FRAME_SAMPLES).clip(0, len(activity.speech) - 1)
            total[frames] += activity.speech[places]
            windows[frames] += 1
        return (total / np.maximum(windows, 1)).astype(np.float32)


def regions_of(
    probabilities: Probabilities,
    seconds: float,
    begins: float = SPEECH_PROBABILITY,
    ends: float = SILENCE_PROBABILITY,
) -> list[Region]:
    """Where speech begins at ``begins`` and lasts until below ``ends``."""
    frame_seconds = FRAME_SAMPLES / SAMPLE_RATE_HZ
    regions: list[Region] = []
    start: int | None = None
    for index, probability in enumerate([*probabilities, 0.0]):
        if start is None and probability >= begins:
            start = index
        elif start is not None and probability < ends:
            region = (start * frame_seconds, min(seconds, index * frame_seconds))
            start = None
            if regions and region[0] - regions[-1][1] < MIN_SILENCE_SECONDS:
                region = (regions.pop()[0], region[1])
            regions.append(region)
    return [(start, end) for start, end in regions if end - start >= MIN_SPEECH_SECONDS]


def is_supported(region: Region, doubts: Sequence[Region]) -> bool:
    """Whether SUPPORTED_SHARE of the region lies in ``doubts``."""
    inside = sum(max(0.0, min(region[1], end) - max(region[0], start)) for start, end in doubts)
    return inside >= SUPPORTED_SHARE * (region[1] - region[0])


def united(*lists: Sequence[Region]) -> list[Region]:
    """All regions, those that overlap or are nearer than MIN_SILENCE_SECONDS as one."""
    found: list[Region] = []
    for start, end in sorted(region for regions in lists for region in regions):
        if found and start - found[-1][1] < MIN_SILENCE_SECONDS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def open_speech_detector(row: Backend, models_dir: Path | None) -> PackagedSpeechDetector:
    """The detector of the profile ``packaged``. Raises WeightsError."""
    [silero] = row.packaged().read(models_dir).values()
    [segmentation] = row.packaged("segmentation").paths(models_dir).values()
    return PackagedSpeechDetector(silero, OnnxSpeakerSegmenter(Network(segmentation)))
