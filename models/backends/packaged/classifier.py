"""What a still shows, by Yahoo's open_nsfw: labels ``nsfw`` and ``normal``.

It judges nudity in photographs. Yahoo's own advice: below 0.2 safe, from 0.8 very probably not;
an operator blocks with ``VAS_BLOCKED_LABELS='{"nsfw": 0.8}'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from models.backends.packaged.networks import Network, Tensor
from models.contracts import Picture
from models.registry import RegistryEntry
from models.weights import locate_weights

_WHOLE_PX, _MIDDLE_PX = 256, 224
"""The still is stretched to the first, square; its middle is looked at."""
_MEAN_BGR = np.array([104, 117, 123], np.float32)


def open_classifier(entry: RegistryEntry, models_dir: Path | None) -> PackagedContentClassifier:
    """The classifier with its verified weights. Raises WeightsError."""
    [path] = locate_weights(entry.weights["model"], models_dir).values()
    return PackagedContentClassifier(Network(path))


class PackagedContentClassifier:
    """ContentClassifier. Deterministic; one still at a time, on one core."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        scores = [self._network(_prepared(still))[0][0] for still in stills]
        return [{"normal": float(normal), "nsfw": float(nsfw)} for normal, nsfw in scores]


def _prepared(still: Picture) -> Tensor:
    """(1, 224, 224, 3), BGR less the training pictures' mean."""
    whole = cv2.resize(still, (_WHOLE_PX, _WHOLE_PX), interpolation=cv2.INTER_AREA)
    edge = (_WHOLE_PX - _MIDDLE_PX) // 2
    middle = whole[edge : edge + _MIDDLE_PX, edge : edge + _MIDDLE_PX, ::-1]
    return np.ascontiguousarray(middle.astype(np.float32) - _MEAN_BGR)[None]
