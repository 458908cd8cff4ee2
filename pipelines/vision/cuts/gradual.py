"""Gradual transitions: dissolves and fades, which mix two pictures, and wipes.

Between the last clear picture A and the first clear picture B of a dissolve every frame is close to
A + share * (B - A), with a share that rises steadily. Motion does not look like that: half-way
through a pan the picture is neither A nor B nor their mean. (The production model of A. Hampapur,
R. Jain, T. Weymouth, "Production model based digital video segmentation", 1995, on tiny pictures.)

In a wipe each place of the picture shows A, then B, and turns once; the places turn at different
times. Nothing is assumed of the wipe's shape. Where a camera sweeps over large shapes, places turn
too, but the content of each step was beside them a step before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Generic, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.vision.cuts import measures
from pipelines.vision.features import CHROMA_HEIGHT, CHROMA_WIDTH, FrameFeatures

Levels = npt.NDArray[np.float32]

_HALVES_MS = (200, 360, 600, 900, 1300)
_FAR_REACH = (3, 5)
_STEP_REACH = (6, 10)
_PLAIN_CONTRAST = 8.0
"""A picture below this has no structure that could be compared."""
_NEARLY_ALL = 0.9
_CONVINCING = 0.75
"""Confidence of a fit that need not be tried otherwise."""
_COLOUR_WEIGHT = 1.5
_LEAST_ENERGY = 1e-6


@dataclass(frozen=True, slots=True)
class GradualConfig:
    """Limits of the mixture model; shares of the difference between A and B."""

    min_difference: float = 6.0
    """Levels, mean over the picture."""
    max_middle_miss: float = 0.42
    """How far the middle frame may be from the mean of A and B."""
    max_miss: float = 0.45
    max_single_step: float = 0.35
    max_backwards: float = 0.15
    max_bend: float = 0.3
    """How far the rise may be from an even one."""
    min_change: float = 0.3
    max_likeness: float = 0.6
    min_steps_change: float = 0.2
    """Of the quarters of a dissolve; measured as for wipes: sweeping cameras up to 0.1,
    dissolves from 0.55."""
    min_length_ms: int = 120
    min_coarse: float = 0.6
    """Confidence of a fit to coarse pictures, which a title that fades in resembles too."""


@dataclass(frozen=True, slots=True)
class Gradual:
    """A transition found."""

    start_ms: int
    middle_ms: int
    end_ms: int
    confidence: float
    strength: float
    """Mean difference of A and B in levels; less where part of the transition was seen."""
    blank: measures.Blank | None
    """The side of it that is black or white, if one is."""
    visits_ms: tuple[tuple[int, int], ...] = ()
    """Of a wipe: intervals around it that end with the picture that they began with."""
    is_open: bool = False
    """Whether a network is to judge it if anything depends on it, and has not yet."""


def find_gradual(
    window: FrameFeatures, mixed: Mixed, start: int, end: int, config: GradualConfig
) -> list[Gradual]:
    """Transitions with their middle near one of the frames ``start`` to ``end``.

    ``mixed`` is the window's. One transition is usually found from several frames: see
    ``best_graduals``; whether a camera sweeps through it is worked out once.
    """
    centres = measures.grid(window, start, end)
    if len(centres) == 0:
        return []

    @cache
    def sweeps(first: int, last: int) -> bool:
        """Return whether the camera's motion explains all that comes into these frames."""
        luma = window.luma[first : last + 1]
        return not measures.changes_content(luma, _STEP_REACH, config.min_steps_change)

    found = []
    for half_ms in _HALVES_MS:
        first, last = measures.sides(window, centres, half_ms)
        # Where the ends differ and the centre is near their mean.
        before, middle, after = (window.luma[index] for index in (first, centres, last))
        difference = measures.mean_difference(before, after)
        twice = 2 * middle.astype(np.int16) - before - after
        miss = np.abs(twice).reshape(len(twice), -1).mean(axis=1) / 2
        clear = difference >= config.min_difference
        enough = (last - first) >= 4
        likely = np.asarray(clear & enough & (miss <= config.max_middle_miss * difference))
        for a, b in zip(first[likely], last[likely], strict=True):
            gradual = _best_fit(window, mixed, int(a), int(b), sweeps, config)
            if gradual is not None:
                found.append(gradual)
    return found


@dataclass(frozen=True, slots=True)
class Mixed:
    """What is mixed in a dissolve, a row a frame: ``fine`` (n, 2304), ``coarse`` (n, 432)."""

    fine: Levels
    coarse: Levels

    @classmethod
    def of(cls, frames: FrameFeatures) -> Mixed:
        return cls(frames.luma.reshape(len(frames), -1).astype(np.float32), _coarse(frames))

    def part(self, start: int, end: int) -> Mixed:
        """Of frames ``start`` to ``end``, as views."""
        return Mixed(self.fine[start:end], self.coarse[start:end])


def _best_fit(
    window: FrameFeatures,
    mixed: Mixed,
    a: int,
    b: int,
    sweeps: Callable[[int, int], bool],
    config: GradualConfig,
) -> Gradual | None:
    """Return the transition between two frames, as fine pictures show it or else coarse ones.
    Objects that move during a dissolve blur what fine pictures show of the mixture; in coarse ones,
    with their colours, they hardly matter."""
    unlike = cache(partial(_unlike, window, a, b, config))
    fine = _fitted(window, a, b, mixed.fine[a : b + 1], unlike, sweeps, config)
    if fine is not None and fine.confidence >= _CONVINCING:
        return fine
    coarse = _fitted(window, a, b, mixed.coarse[a : b + 1], unlike, sweeps, config)
    if coarse is None or coarse.confidence < config.min_coarse:
        return fine
    return coarse if fine is None or coarse.confidence > fine.confidence else fine


def _coarse(frames: FrameFeatures) -> Levels:
    """Luma on the grid of the chroma, and the chroma itself, (n, 432)."""
    grid_size = (CHROMA_WIDTH, CHROMA_HEIGHT)
    luma = [
        cv2.resize(picture.astype(np.float32), grid_size, interpolation=cv2.INTER_AREA).ravel()
        for picture in frames.luma
    ]
    colour = _COLOUR_WEIGHT * frames.chroma.reshape(len(frames), -1).astype(np.float32)
    return np.hstack([np.array(luma, np.float32), colour])


def _fitted(
    window: FrameFeatures,
    a: int,
    b: int,
    mixtures: Levels,
    unlike: Callable[[], _Ends | None],
    sweeps: Callable[[int, int], bool],
    config: GradualConfig,
) -> Gradual | None:
    """Return the transition between frames ``a`` and ``b`` if the mixture model holds there.
    ``mixtures`` has a row for each frame from ``a`` to ``b``. ``unlike`` (of the two frames) and
    ``sweeps`` (of those between) are called once the mixture model holds."""
    share, miss = _shares(mixtures)
    begin, stop = _extent(share)
    times = window.times_ms[a : b + 1]
    steps = np.diff(share)
    backwards = float(-steps[steps < 0].sum())
    if times[stop] - times[begin] < config.min_length_ms or backwards > config.max_backwards:
        return None
    worst = float(miss[begin : stop + 1].max())
    if float(steps.max()) > config.max_single_step or worst > config.max_miss:
        return None
    even = np.interp(times, times[[begin, stop]], share[[begin, stop]])
    if float(np.abs(share - even)[begin : stop + 1].max()) > config.max_bend:
        return None
    ends = unlike()
    if ends is None or (ends.side is None and sweeps(a + begin, a + stop)):
        return None
    middle = int(np.argmin(np.abs(share - 0.5)))
    # How different the ends are and how well the mixtures fit.
    score = -0.8 + 5.0 * min(ends.difference, 1.0) - 6.0 * float(miss.mean()) - 6.0 * backwards
    score -= 2.0 * ends.alike
    first, at, last = times[[begin, middle, stop]].tolist()
    strength = float(measures.mean_difference(window.luma[a : a + 1], window.luma[b : b + 1])[0])
    return Gradual(first, at, last, 1.0 / (1.0 + math.exp(-score)), strength, ends.side)


@dataclass(frozen=True, slots=True)
class _Ends:
    """How the first and the last picture of a transition differ."""

    side: measures.Blank | None
    difference: float
    alike: float


def _unlike(window: FrameFeatures, a: int, b: int, config: GradualConfig) -> _Ends | None:
    """Return the difference of frames ``a`` and ``b``, None where it is none of two scenes. Between
    two pictures that show something, a change of light is no difference. The cheapest tests come
    first: most pairs fail early."""
    ends = window.luma[np.array([a, b])]
    kinds = measures.blanks(ends)  # black goes first
    side = next((each for each in measures.Blank if each in kinds), None)
    if side is None and measures.contrast(ends).min() < _PLAIN_CONTRAST:
        return None
    alike = 0.0 if side is not None else measures.likeness(ends[0], ends[1])
    if alike > config.max_likeness:
        return None
    difference = float(measures.change(window, np.array([a]), np.array([b]), _FAR_REACH)[0])
    if side is None and difference >= config.min_change:
        difference = min(difference, measures.change_beside_light(ends[0], ends[1], _FAR_REACH))
    return _Ends(side, difference, alike) if difference >= config.min_change else None


def _shares(frames: Levels) -> tuple[measures.Floats, measures.Floats]:
    """Return the share of B in each frame by least squares, and what it leaves unexplained."""
    offsets = frames - frames[0]
    direction = offsets[-1]
    energy = max(float(direction @ direction), _LEAST_ENERGY)
    share = (offsets @ direction).astype(np.float64) / energy
    offsets -= share[:, None].astype(np.float32) * direction
    miss = np.sqrt(np.einsum("ij,ij->i", offsets, offsets).astype(np.float64) / energy)
    return share, miss


def _extent(share: measures.Floats) -> tuple[int, int]:
    """Last frame that is still A and first one that is already B."""
    still = np.flatnonzero(share <= 0.05)
    begin = int(still[-1]) if len(still) else 0
    done = np.flatnonzero(share[begin:] >= 0.95)
    return begin, begin + int(done[0]) if len(done) else len(share) - 1


Item = TypeVar("Item")


class IntervalIndex(Generic[Item]):
    """``items`` by their intervals; ``span`` gives (start, end) of each in ms, both inclusive.

    A look-up costs a binary search and the items within the longest item's length, so it suits
    items that are short beside the whole: comparing all with all would take the square of a
    day's transitions.
    """

    def __init__(self, items: Sequence[Item], span: Callable[[Item], tuple[int, int]]) -> None:
        spans = [(*span(item), index) for index, item in enumerate(items)]
        self._spans = sorted(spans)
        self._starts = [start for start, _, _ in self._spans]
        self._longest = max((end - start for start, end, _ in spans), default=0)
        self._items = items

    def touching(self, start_ms: int, end_ms: int) -> Iterator[Item]:
        """Yield items whose intervals meet ``start_ms`` to ``end_ms`` (inclusive), by start."""
        low = bisect_left(self._starts, start_ms - self._longest)
        high = bisect_right(self._starts, end_ms)
        for _, ends_ms, index in self._spans[low:high]:
            if ends_ms >= start_ms:
                yield self._items[index]


def best_graduals(found: list[Gradual]) -> list[Gradual]:
    """Return one for each transition: the surest of those that saw nearly all of it."""
    return sorted((best for _, best in decisive(found)), key=lambda gradual: gradual.middle_ms)


def decisive(found: list[Gradual]) -> list[tuple[Gradual, Gradual]]:
    """Return for each transition the strongest that was found, and the surest of those that saw
    nearly all of it. Nothing about the others changes these."""
    rest = sorted(found, key=lambda gradual: (-gradual.strength, gradual.start_ms))
    by_time = IntervalIndex(
        range(len(rest)), lambda index: (rest[index].start_ms, rest[index].end_ms)
    )
    left = [True] * len(rest)

    def taken(one: Gradual) -> list[Gradual]:
        """Return what is left that overlaps ``one``, surest first, and from now on is not left."""
        # Those that only meet it do not overlap it.
        near = by_time.touching(one.start_ms + 1, one.end_ms - 1)
        indices = sorted(index for index in near if left[index])
        for index in indices:
            left[index] = False
        return [rest[index] for index in indices]

    chosen = list[tuple[Gradual, Gradual]]()
    for index, full in enumerate(rest):
        if not left[index]:
            continue
        same = taken(full)
        nearly = [other for other in same if other.strength >= _NEARLY_ALL * full.strength]
        best = max(nearly, key=lambda other: (other.confidence, -other.middle_ms))
        chosen.append((full, best))
        taken(best)
    return chosen


_WIPE_HALVES_MS = (240, 400, 600, 840)
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
    seeds of ``benchmarks/scenes.py``: sweeping cameras up to 0.1, wipes from 0.39."""
    max_likeness: float = 0.34
    min_rim: float = 0.35
    """Of the mean difference of A and B, at the picture's rim: around a slate or a card that is
    held before the camera the old picture stays. Measured on the tuning seeds of
    ``benchmarks/scenes.py``: slates from 0.11, wipes from 0.59."""
    return_ms: int = 3_000
    """Something that comes before the camera and leaves again does so within this time."""
    max_return: float = 0.42
    """Share of the difference between A and B that a frame may be from A to show A again."""


def find_wipes(
    window: FrameFeatures, cells: npt.NDArray[np.float32], start: int, end: int, config: WipeConfig
) -> list[Gradual]:
    """Wipes with their middle near one of the frames ``start`` to ``end``.

    ``cells`` are the window's ``cell_luma``. One wipe is usually found from several frames:
    see ``gradual_cuts.best_graduals``.
    """
    centres = measures.grid(window, start, end)
    if len(centres) == 0:
        return []
    found = []
    for half_ms in _WIPE_HALVES_MS:
        first, last = measures.sides(window, centres, half_ms)
        likely = _likely_wipes(cells, first, centres, last, config)
        for a, b in zip(first[likely], last[likely], strict=True):
            wipe = _fitted_wipe(window, cells[a : b + 1], int(a), int(b), config)
            if wipe is not None:
                found.append(replace(wipe, visits_ms=_visits(window, cells, wipe, config)))
    return found


def _visits(
    window: FrameFeatures, cells: npt.NDArray[np.float32], wipe: Gradual, config: WipeConfig
) -> tuple[tuple[int, int], ...]:
    """Intervals that end with the picture that they began with, the wipe being a part of them. From
    the wipe's start to the time at which A is seen again, and from the time at which B was last
    seen before to the wipe's end."""
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


def _likely_wipes(
    cells: npt.NDArray[np.float32],
    first: measures.Indices,
    centres: measures.Indices,
    last: measures.Indices,
    config: WipeConfig,
) -> npt.NDArray[np.bool_]:
    """Return where the ends differ, and the centre shows one at some places, the other
    elsewhere."""
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
    reached: measures.Floats
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


def _fitted_wipe(
    window: FrameFeatures, cells: npt.NDArray[np.float32], a: int, b: int, config: WipeConfig
) -> Gradual | None:
    """Return the wipe between frames ``a`` and ``b`` if the model holds there."""
    turning = _turning(cells, config)
    if turning is None or not (
        turning.step_miss <= config.max_step_miss
        and turning.sudden <= config.max_turning
        and turning.bend <= config.max_bend
    ):
        return None
    begin, stop = turning.extent
    times, ends = window.times_ms[a : b + 1], window.luma[np.array([a, b])]
    if (
        times[stop] - times[begin] < config.min_length_ms
        or measures.contrast(ends).max() < _PLAIN_CONTRAST
    ):
        return None
    # The mean difference of two pictures at their rim, as a share of that of the whole.
    apart = np.abs(ends[1].astype(np.int16) - ends[0])
    rim = np.ones(apart.shape, bool)
    rim[_RIM_ROWS:-_RIM_ROWS, _RIM_COLUMNS:-_RIM_COLUMNS] = False
    if float(apart[rim].mean() / max(1.0, apart.mean())) < config.min_rim:
        return None
    alike = measures.likeness(ends[0], ends[1])
    changed = float(measures.change(window, np.array([a]), np.array([b]), _REACH)[0])
    if alike > config.max_likeness or changed < config.min_change:
        return None
    if not measures.changes_content(
        window.luma[a + begin : a + stop + 1], _REACH, config.min_steps_change
    ):
        return None
    middle = min(int(np.searchsorted(turning.reached, 0.5)), len(times) - 1)
    first, at, last = times[[begin, middle, stop]].tolist()
    return Gradual(first, at, last, _confidence(turning, alike), turning.difference, None)


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


def _turns(share: npt.NDArray[np.float32]) -> tuple[measures.Indices, measures.Floats]:
    """Frame from which each place shows B, by least misfit of a step, and that misfit."""
    frames = len(share)
    as_a = np.vstack([np.zeros(share.shape[1]), np.cumsum(share, axis=0)])
    as_b = np.vstack([np.zeros(share.shape[1]), np.cumsum(1 - share, axis=0)])
    cost = as_a + (as_b[-1] - as_b)
    turns = cost.argmin(axis=0)
    return turns, np.take_along_axis(cost, turns[None], axis=0)[0] / frames


def _confidence(turning: _Turning, alike: float) -> float:
    """Logistic over how well the model fits and how different the ends are."""
    score = 4.7 - 12.0 * turning.miss - 8.0 * turning.step_miss
    score -= 3.0 * turning.sudden
    score -= 4.0 * max(0.0, alike)
    return 1.0 / (1.0 + math.exp(-score))
