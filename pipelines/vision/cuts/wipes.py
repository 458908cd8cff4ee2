"""Wipes: the new picture takes the old one's place bit by bit.

Between the last frame that is all A and the first that is all B, each place of the
picture shows A, then B, and turns once; the places turn at different times. Motion does
not look like that: what it shows in between is neither A nor B. Nothing is assumed of the
wipe's shape. Where a camera sweeps over large shapes, places turn too, but the content of each step
was beside them a step before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipelines.vision.cuts.gradual import Gradual
from pipelines.vision.cuts.measures import (
    Floats,
    Indices,
    change,
    changes_content,
    contrast,
    grid,
    likeness,
    sides,
)
from pipelines.vision.features import FrameFeatures
from pipelines.vision.planes import Bytes

_HALVES_MS = (240, 400, 600, 840)
_PLAIN_CONTRAST = 8.0
_REACH = (6, 10)
"""Rows and columns that motion may cover during a wipe."""
_RIM_ROWS, _RIM_COLUMNS = 2, 3
_STILL_A = 0.03
"""Share of the places that may have turned by then."""
_CLEAR_MS = 120
"""Between the frames in which A or B is searched for again."""


@dataclass(frozen=True, slots=True)
class WipeConfig:
    """Limits of the model; shares of the difference between A and B, or of the places."""

    min_difference: float = 14.0
    """Levels, mean over the picture."""
    min_cell_difference: float = 12.0
    min_cells: float = 0.55
    """Of the places, so many must differ between A and B."""
    max_middle_miss: float = 0.30
    max_miss: float = 0.20
    """How far frames are from showing A or B at every place, on average."""
    max_step_miss: float = 0.16
    """How far places are from turning once, at once."""
    max_turning: float = 0.45
    """Of the places may turn within one step; a hard cut turns all."""
    max_bend: float = 0.36
    """How far the rise of the share that has turned may be from an even one."""
    min_length_ms: int = 160
    min_change: float = 0.3
    """Of A to B, motion aside: an edge that moves through the picture is no wipe."""
    min_steps_change: float = 0.2
    """Of the wipe's quarters: each changes by more than motion explains. Measured on the tuning
    seeds of ``tests/benchmarks/scenes.py``: sweeping cameras up to 0.1, wipes from 0.39."""
    max_likeness: float = 0.34
    min_rim: float = 0.35
    """Of the mean difference of A and B, at the picture's rim: around a slate or a card that is
    held before the camera the old picture stays. Measured on the tuning seeds of
    ``tests/benchmarks/scenes.py``: slates from 0.11, wipes from 0.59."""
    return_ms: int = 3_000
    """Something that comes before the camera and leaves again does so within this time."""
    max_return: float = 0.42
    """Share of the difference between A and B that a frame may be from A to show A again."""


def find_wipes(
    window: FrameFeatures,
    cells: npt.NDArray[np.float32],
    start: int,
    end: int,
    config: WipeConfig,
) -> list[Gradual]:
    """Wipes with their middle near one of the frames ``start`` to ``end``.

    ``cells`` are the window's ``cell_luma``. One wipe is usually found from several frames:
    see ``gradual_cuts.best_graduals``.
    """
    centres = grid(window, start, end)
    if len(centres) == 0:
        return []
    found = []
    for half_ms in _HALVES_MS:
        first, last = sides(window, centres, half_ms)
        likely = _likely(cells, first, centres, last, config)
        for a, b in zip(first[likely], last[likely], strict=True):
            wipe = _fitted(window, cells[a : b + 1], int(a), int(b), config)
            if wipe is not None:
                found.append(replace(wipe, visits_ms=_visits(window, cells, wipe, config)))
    return found


def _visits(
    window: FrameFeatures, cells: npt.NDArray[np.float32], wipe: Gradual, config: WipeConfig
) -> tuple[tuple[int, int], ...]:
    """Stretches that end with the picture that they began with, the wipe being a part of them.

    From the wipe's start to the time at which A is seen again, and from the time
    at which B was last seen before to the wipe's end.
    """
    times = window.times_ms
    a = max(0, int(np.searchsorted(times, wipe.start_ms)) - 1)
    b = min(len(times) - 1, int(np.searchsorted(times, wipe.end_ms)) + 1)
    apart = np.abs(cells[a] - cells[b])
    used = apart >= config.min_cell_difference
    steps = np.arange(_CLEAR_MS, config.return_ms, _CLEAR_MS)
    found = []
    for own, looked_at in ((a, wipe.end_ms + steps), (b, wipe.start_ms - steps)):
        inside = (looked_at >= times[0]) & (looked_at <= times[-1])
        frames = np.searchsorted(times, looked_at[inside])
        gone = np.abs(cells[frames][:, used] - cells[own, used]) / apart[used]
        back = np.flatnonzero(np.minimum(1, gone).mean(axis=1) < config.max_return)
        if len(back):
            seen_ms = int(times[frames[back[0]]])
            found.append((min(seen_ms, wipe.start_ms), max(seen_ms, wipe.end_ms)))
    return tuple(found)


def _likely(
    cells: npt.NDArray[np.float32],
    first: Indices,
    centres: Indices,
    last: Indices,
    config: WipeConfig,
) -> npt.NDArray[np.bool_]:
    """Where the ends differ, and the centre shows one at some places, the other elsewhere."""
    a, middle, b = cells[first], cells[centres], cells[last]
    apart, to_a, to_b = np.abs(a - b), np.abs(middle - a), np.abs(middle - b)
    difference = apart.mean(axis=1)
    miss = np.minimum(to_a, to_b).mean(axis=1)
    differs = apart >= config.min_cell_difference
    turned = (differs & (to_b < to_a)).sum(axis=1) / np.maximum(1, differs.sum(axis=1))
    clear = (difference >= config.min_difference) & (differs.mean(axis=1) >= config.min_cells)
    partly = (turned > 0.15) & (turned < 0.85)
    return np.asarray(
        clear & partly & ((last - first) >= 5) & (miss <= config.max_middle_miss * difference)
    )


@dataclass(frozen=True, slots=True)
class _Turning:
    """How places turn from A to B between two frames; ``reached`` is the share that has."""

    miss: float
    step_miss: float
    reached: Floats
    difference: float

    @property
    def sudden(self) -> float:
        """The largest share that turns within one step."""
        return float(np.diff(self.reached, prepend=0.0).max())

    @property
    def extent(self) -> tuple[int, int]:
        """Last frame that is still A and first one that is already B."""
        begin = int(np.searchsorted(self.reached, _STILL_A)) - 1
        stop = int(np.searchsorted(self.reached, 1 - _STILL_A))
        return max(0, begin), min(stop, len(self.reached) - 1)

    @property
    def bend(self) -> float:
        """Largest distance of the share that has turned from an even rise."""
        begin, stop = self.extent
        even = np.linspace(0, 1, stop - begin + 1)
        return float(np.abs(self.reached[begin : stop + 1] - even).max())


def _fitted(
    window: FrameFeatures, cells: npt.NDArray[np.float32], a: int, b: int, config: WipeConfig
) -> Gradual | None:
    """The wipe between frames ``a`` and ``b`` if the model holds there."""
    turning = _turning(cells, config)
    if turning is None or not (
        turning.step_miss <= config.max_step_miss
        and turning.sudden <= config.max_turning
        and turning.bend <= config.max_bend
    ):
        return None
    begin, stop = turning.extent
    times, ends = window.times_ms[a : b + 1], window.luma[np.array([a, b])]
    if times[stop] - times[begin] < config.min_length_ms or contrast(ends).max() < _PLAIN_CONTRAST:
        return None
    if _at_rim(ends) < config.min_rim:
        return None
    alike = likeness(ends[0], ends[1])
    changed = float(change(window, np.array([a]), np.array([b]), _REACH)[0])
    if alike > config.max_likeness or changed < config.min_change:
        return None
    if not changes_content(window.luma[a + begin : a + stop + 1], _REACH, config.min_steps_change):
        return None
    middle = min(int(np.searchsorted(turning.reached, 0.5)), len(times) - 1)
    return Gradual(
        int(times[begin]),
        int(times[middle]),
        int(times[stop]),
        _confidence(turning, alike),
        turning.difference,
        None,
    )


def _at_rim(ends: Bytes) -> float:
    """Mean difference of two pictures at their rim, as a share of that of the whole."""
    apart = np.abs(ends[1].astype(np.int16) - ends[0])
    rim = np.ones(apart.shape, bool)
    rim[_RIM_ROWS:-_RIM_ROWS, _RIM_COLUMNS:-_RIM_COLUMNS] = False
    return float(apart[rim].mean() / max(1.0, apart.mean()))


def _turning(cells: npt.NDArray[np.float32], config: WipeConfig) -> _Turning | None:
    """Measured over the places (frames, places) from A to B; None if these are not all there is."""
    apart = np.abs(cells[0] - cells[-1])
    used = apart >= config.min_cell_difference
    weight = apart[used] / apart[used].sum()
    to_a, to_b = np.abs(cells[:, used] - cells[0, used]), np.abs(cells[:, used] - cells[-1, used])
    miss = float((np.minimum(to_a, to_b).mean(axis=0) / apart[used] * weight).sum())
    if miss > config.max_miss:
        return None
    turns, step_miss = _turns(to_a / (to_a + to_b + 1e-6))
    turned = np.bincount(turns, weights=weight, minlength=len(cells))[: len(cells)]
    return _Turning(miss, float((step_miss * weight).sum()), np.cumsum(turned), float(apart.mean()))


def _turns(share: npt.NDArray[np.float32]) -> tuple[Indices, Floats]:
    """Frame from which each place shows B, by least misfit of a step, and that misfit."""
    frames = len(share)
    as_a = np.vstack([np.zeros(share.shape[1]), np.cumsum(share, axis=0)])
    as_b = np.vstack([np.zeros(share.shape[1]), np.cumsum(1 - share, axis=0)])
    cost = as_a + (as_b[-1] - as_b)
    turns = cost.argmin(axis=0)
    return turns, np.take_along_axis(cost, turns[None], axis=0)[0] / frames


def _confidence(turning: _Turning, alike: float) -> float:
    """Logistic over how well the model fits and how different the ends are."""
    score = (
        4.7
        - 12.0 * turning.miss
        - 8.0 * turning.step_miss
        - 3.0 * turning.sudden
        - 4.0 * max(0.0, alike)
    )
    return 1.0 / (1.0 + math.exp(-score))
