"""From cuts to scenes, and which frames of each to look at. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.vision.cuts.detector import Cut, nearest_frame
from pipelines.vision.frame_features import Times

STILL_POSITIONS = ((2_000, (0.5,)), (6_000, (0.3, 0.7)), (None, (0.2, 0.5, 0.8)))
"""Where in a scene's clear part its stills are taken, by the length in ms that it is below."""
_KEY_FRAME_WITHIN = 0.5
"""So far from there, as a share of the length, a key frame is taken instead: others must be
decoded from the key frame before them."""


@dataclass(frozen=True, slots=True)
class SceneBorders:
    """A scene and the part of it that no transition touches."""

    start_ms: int
    end_ms: int
    confidence: float
    clear_start_ms: int
    clear_end_ms: int


def scenes_between(cuts: Sequence[Cut], duration_ms: int) -> list[SceneBorders]:
    """Contiguous scenes from 0 to ``duration_ms``; none where there are no cuts."""
    if not cuts:
        return []
    openings = [Cut(0, cuts[0].kind, 1.0, 0, 0), *cuts]
    endings = [*cuts, Cut(duration_ms, cuts[-1].kind, 1.0, duration_ms, duration_ms)]
    return [
        SceneBorders(
            opening.time_ms,
            ending.time_ms,
            opening.confidence,
            *_clear(opening, ending),
        )
        for opening, ending in zip(openings, endings, strict=True)
    ]


def _clear(opening: Cut, ending: Cut) -> tuple[int, int]:
    """From the end of one transition to the start of the next, if anything is left there."""
    start_ms = max(opening.time_ms, opening.end_ms)
    end_ms = min(ending.time_ms, ending.start_ms)
    return (start_ms, end_ms) if end_ms > start_ms else (opening.time_ms, ending.time_ms)


def still_times(times_ms: Times, key_times_ms: Times, scene: SceneBorders) -> tuple[int, ...]:
    """Times of the frames to take as stills: one to three, rising.

    ``times_ms`` holds all frame times of the video, ``key_times_ms`` those of its
    key frames. A scene without any frame (the picture stood still past it) takes
    the last one before its end.
    """
    low = int(np.searchsorted(times_ms, scene.clear_start_ms))
    high = int(np.searchsorted(times_ms, scene.clear_end_ms))
    inside = times_ms[low:high]
    if len(inside) == 0:
        return (int(times_ms[max(0, low - 1)]),)
    length_ms = scene.clear_end_ms - scene.clear_start_ms
    keys = key_times_ms[np.searchsorted(key_times_ms, inside[0]) :]
    keys = keys[: np.searchsorted(keys, inside[-1], side="right")]
    shares = next(shares for below, shares in STILL_POSITIONS if below is None or length_ms < below)
    wanted = [scene.clear_start_ms + int(share * length_ms) for share in shares]
    reach_ms = int(_KEY_FRAME_WITHIN * length_ms)
    return tuple(sorted({_still_near(time_ms, inside, keys, reach_ms) for time_ms in wanted}))


def _still_near(wanted_ms: int, times_ms: Times, key_times_ms: Times, reach_ms: int) -> int:
    if len(key_times_ms):
        key_ms = int(key_times_ms[nearest_frame(key_times_ms, wanted_ms)])
        if abs(key_ms - wanted_ms) <= reach_ms:
            return key_ms
    return int(times_ms[nearest_frame(times_ms, wanted_ms)])


def even_times(times_ms: Times, every_ms: int) -> list[int]:
    """Of all frame times (one at least) those nearest to every ``every_ms`` from the first on."""
    grid_ms = np.arange(int(times_ms[0]), int(times_ms[-1]) + 1, every_ms)
    return sorted({int(times_ms[nearest_frame(times_ms, int(each))]) for each in grid_ms})
