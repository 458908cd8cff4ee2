"""Confidences of words as shares of what is right: the recogniser's log-odds, moved and stretched.

Platt's scaling (1999), its numbers in ``calibration.toml``. Texts and times stay as they are. Pure.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from pipelines.types import TranscriptResult, TranscriptSegment

_LEAST_PROBABILITY = 0.005
"""What is nearer to 0 or 1 is taken for this: no share of a few hundred words is nearer."""


@dataclass(frozen=True, slots=True)
class WordCalibration:
    """``bias`` and ``slope`` of the log-odds that a word is right, over those given for it."""

    bias: float
    slope: float

    def confidence(self, probability: float) -> float:
        """The share of words of such a probability that is right."""
        return 1 / (1 + math.exp(-self.bias - self.slope * log_odds(probability)))


def log_odds(probability: float) -> float:
    """Within what a calibration is of."""
    sure = min(max(probability, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
    return math.log(sure / (1 - sure))


@functools.cache
def word_calibrations() -> Mapping[str, WordCalibration]:
    """By the digest of the transcriber that each was measured with."""
    table = tomllib.loads(files("pipelines.speech").joinpath("calibration.toml").read_text())
    return {name: WordCalibration(row["bias"], row["slope"]) for name, row in table.items()}


def calibrated(found: TranscriptResult, calibration: WordCalibration) -> TranscriptResult:
    """The transcript with such confidences; a segment's is the share of its words that is right."""
    segments = tuple(_calibrated(segment, calibration) for segment in found.segments)
    return replace(found, segments=segments, calibrated=True)


def _calibrated(segment: TranscriptSegment, calibration: WordCalibration) -> TranscriptSegment:
    words = tuple(
        replace(word, confidence=calibration.confidence(word.confidence)) for word in segment.words
    )
    mean = sum(word.confidence for word in words) / len(words)
    return replace(segment, confidence=mean, words=words)
