"""Frames at which gradual transitions are looked for, and the frames on both sides of them."""

from __future__ import annotations

import numpy as np

from pipelines.vision.cuts.measures import Indices
from pipelines.vision.frame_features import FrameFeatures

_GRID_MS = 80


def grid(window: FrameFeatures, start: int, end: int) -> Indices:
    """Of the frames ``start`` to ``end`` the first in each 80 ms of the video."""
    cells = window.times_ms[max(0, start - 1) : end] // _GRID_MS
    fresh = np.flatnonzero(np.diff(cells)) + 1 + max(0, start - 1)
    return np.concatenate([[0], fresh]) if start == 0 else fresh


def sides(window: FrameFeatures, centres: Indices, half_ms: int) -> tuple[Indices, Indices]:
    """The first and the last frame no more than ``half_ms`` from each centre."""
    times = window.times_ms
    first = np.searchsorted(times, times[centres] - half_ms)
    last = np.searchsorted(times, times[centres] + half_ms, side="right") - 1
    return first, last
