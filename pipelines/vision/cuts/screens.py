"""Slides and screens: little of the picture changes, at once, and stays changed.

Where only writing changes, two slides are nearly one picture. What sets such a change apart from
motion is that the places concerned stand still before it and after it, and that none of note
change beside it within a second; whatever goes on elsewhere (a speaker may be seen beside the
slides).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.vision.features import FrameFeatures
from pipelines.vision.planes import LUMA_HEIGHT, LUMA_WIDTH, Bytes

_MOST_SEEN = 32
"""Frames looked at on either side of a change."""


@dataclass(frozen=True, slots=True)
class ScreenConfig:
    """What is small, sharp and lasting. Levels of 0 to 255 at places of the 36 x 64 picture."""

    min_levels: int = 10
    still_levels: int = 4
    """Places that stand still change by no more."""
    settling: float = 1 / 3
    """Of its change, a place may still change by this share: encoders refine a new picture."""
    min_places: int = 16
    """Of 2304. A pointer covers 2, a key stroke 1 or 2, a clock in a corner up to 8."""
    max_places: int = 1_150
    """Half the picture: what changes more is a hard cut, or light."""
    rows: int = LUMA_HEIGHT * 2 // 3
    """Only changes above the lower third count: captions come and go there."""
    lasting_ms: int = 1_000
    max_beside: float = 0.5
    """Of its places, so many may change suddenly in other frames within that time."""
    max_light: float = 0.4
    """Of the change, what may be left when all places turn lighter or darker by one rule."""


def find_screen_changes(
    window: FrameFeatures, start: int, end: int, config: ScreenConfig
) -> list[tuple[int, float]]:
    """(time_ms of the new screen's first frame, confidence) among frames ``start`` to ``end``."""
    times = window.times_ms
    if start >= end or len(times) < 2:
        return []
    first_ms, last_ms = times[max(0, start - 1)] - config.lasting_ms, times[end - 1]
    low = max(0, int(np.searchsorted(times, first_ms)) - 2)
    high = min(len(times), int(np.searchsorted(times, last_ms + config.lasting_ms, "right")) + 1)
    counts = np.concatenate([[0], _sudden(window.luma[low:high, : config.rows], config)])
    found = []
    for index in (np.flatnonzero(counts >= config.min_places) + low).tolist():
        if not max(1, start) <= index < end:
            continue
        near = (
            np.searchsorted(times, times[index] - config.lasting_ms) - low,
            (np.searchsorted(times, times[index] + config.lasting_ms, "right") - low),
        )
        beside = counts[max(0, near[0]) : near[1]].sum() - counts[index - low]
        if beside > config.max_beside * counts[index - low]:
            continue
        places = _changed_places(window, index, config)
        if config.min_places <= places <= config.max_places:
            found.append((int(times[index]), min(0.94, 0.6 + places / 400)))
    return found


def _sudden(luma: Bytes, config: ScreenConfig) -> npt.NDArray[np.intp]:
    """Of each frame but the first, how many places change in it and not in those beside it."""
    rows = luma.reshape(-1, LUMA_WIDTH)
    height = luma.shape[1]
    steps = np.asarray(cv2.absdiff(rows[height:], rows[:-height])).reshape(len(luma) - 1, -1)
    sudden = steps >= config.min_levels
    sudden[1:] &= steps[:-1] <= config.still_levels
    sudden[:-1] &= steps[1:] <= np.maximum(config.still_levels, steps[:-1] * config.settling)
    return np.asarray(np.count_nonzero(sudden, axis=1))


def _changed_places(window: FrameFeatures, index: int, config: ScreenConfig) -> int:
    """Places that stand still up to the frame before ``index``, and otherwise from it on.

    0 where they show the same in another light.
    """
    before = _frames(window, index - 1, -config.lasting_ms, config.rows)
    after = _frames(window, index, config.lasting_ms, config.rows)
    change = np.abs(after[0].astype(np.int16) - before[0])
    still = np.ptp(before, axis=0) <= config.still_levels
    settled = np.ptp(after, axis=0) <= np.maximum(config.still_levels, change * config.settling)
    changed = (change >= config.min_levels) & still & settled
    old, new = before[0][changed].astype(np.float64), after[0][changed].astype(np.float64)
    if len(old) < config.min_places or min(old.std(), new.std()) <= config.still_levels:
        return len(old)
    slope, level = np.polyfit(old, new, 1)
    left = np.std(new - slope * old - level) / np.sqrt(np.mean((new - old) ** 2))
    return 0 if slope > 0 and left < config.max_light else len(old)


def _frames(window: FrameFeatures, index: int, within_ms: int, rows: int) -> Bytes:
    """Frames from ``index`` on, up to ``within_ms`` away (negative: back); some of many."""
    times = window.times_ms
    edge_ms = times[index] + within_ms
    if within_ms < 0:
        last = int(np.searchsorted(times, edge_ms))
    else:
        last = int(np.searchsorted(times, edge_ms, side="right")) - 1
    chosen = np.linspace(index, last, min(_MOST_SEEN, abs(last - index) + 1)).round()
    return window.luma[chosen.astype(np.intp)][:, :rows]
