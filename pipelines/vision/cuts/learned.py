"""Cuts from a learned detector's probabilities, behind the interface of ``cuts.CutDetector``."""

from __future__ import annotations

import numpy as np

from models.contracts import BoundaryDetector, Probabilities
from pipelines.vision.cuts.detector import Cut, CutConfig, CutKind, select_cuts
from pipelines.vision.frame_features import FrameFeatures, Times

_THRESHOLD = 0.5
_SUDDEN_FRAMES = 2
"""A run of transition frames no longer than this is a hard cut."""


class LearnedCutDetector:
    """Feed it the features of a video in order, with their pictures, then ask for its cuts.

    Kept of each frame are its time and its probability alone.
    """

    def __init__(self, model: BoundaryDetector, config: CutConfig | None = None) -> None:
        self._config = config or CutConfig()
        self._run = model.start()
        self._times: list[Times] = []
        self._found: list[Probabilities] = []

    def feed(self, features: FrameFeatures) -> None:
        """Take the next frames. Raises ValueError where they come without pictures."""
        if features.pictures is None:
            raise ValueError("A learned detector needs the frames' pictures.")
        self._times.append(features.times_ms)
        self._found.append(self._run.feed(features.pictures))

    def finish(self, duration_ms: int) -> tuple[Cut, ...]:
        """The cuts of the whole video, in order; the detector is used up."""
        if not self._times:
            return ()
        times = np.concatenate(self._times)
        found = np.concatenate([*self._found, self._run.finish()])
        return select_cuts(cuts_in(times, found), [], duration_ms, self._config)


def cuts_in(times_ms: Times, probabilities: Probabilities) -> list[Cut]:
    """A cut for each run of probable transition frames that something follows."""
    inside = np.concatenate([[False], probabilities > _THRESHOLD, [False]])
    edges = np.flatnonzero(np.diff(inside.astype(np.int8)))
    cuts = []
    for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if after >= len(times_ms):
            continue
        confidence = float(probabilities[first:after].max())
        new_ms = int(times_ms[after])
        if after - first <= _SUDDEN_FRAMES:
            cuts.append(Cut(new_ms, CutKind.HARD, confidence, new_ms, new_ms))
        else:
            middle_ms = int(times_ms[(first + after) // 2])
            start_ms = int(times_ms[first])
            cuts.append(Cut(middle_ms, CutKind.DISSOLVE, confidence, start_ms, new_ms))
    return cuts
