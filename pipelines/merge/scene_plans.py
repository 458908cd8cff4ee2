"""From cuts to scenes, and which frames of each to look at. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.merge.cuts import Cut, nearest_frame
from pipelines.merge.frame_features import Times

STILL_POSITIONS = (0.2, 0.5, 0.8)
"""Where in a scene's clear part its stills are taken."""


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


def still_times(times_ms: Times, scene: SceneBorders) -> tuple[int, ...]:
    """Times of the frames to take as stills: one to three, rising.

    ``times_ms`` holds all frame times of the video. A scene without any frame
    (the picture stood still past it) takes the last one before its end.
    """
    low = int(np.searchsorted(times_ms, scene.clear_start_ms))
    high = int(np.searchsorted(times_ms, scene.clear_end_ms))
    inside = times_ms[low:high]
    if len(inside) == 0:
        return (int(times_ms[max(0, low - 1)]),)
    length_ms = scene.clear_end_ms - scene.clear_start_ms
    wanted = [scene.clear_start_ms + int(share * length_ms) for share in STILL_POSITIONS]
    return tuple(sorted({int(inside[nearest_frame(inside, time_ms)]) for time_ms in wanted}))
