"""Dissolves and fades: one picture turns into another through mixtures of the two.

Between the last clear picture A and the first clear picture B every frame is
close to A + share * (B - A), with a share that rises steadily. Motion does not
look like that: half-way through a pan the picture is neither A nor B nor their
mean. (The production model of A. Hampapur, R. Jain, T. Weymouth, "Production
model based digital video segmentation", 1995, on tiny pictures.)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Generic, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.vision.cuts.measures import (
    Blank,
    Floats,
    Indices,
    blanks,
    change,
    change_beside_light,
    changes_content,
    contrast,
    grid,
    likeness,
    mean_difference,
    sides,
)
from pipelines.vision.features import FrameFeatures
from pipelines.vision.planes import CHROMA_HEIGHT, CHROMA_WIDTH, Bytes

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
    blank: Blank | None
    """The side of it that is black or white, if one is."""
    visits_ms: tuple[tuple[int, int], ...] = ()
    """Of a wipe: stretches around it that end with the picture that they began with."""


def find_gradual(
    window: FrameFeatures, mixed: Mixed, start: int, end: int, config: GradualConfig
) -> list[Gradual]:
    """Transitions with their middle near one of the frames ``start`` to ``end``.

    ``mixed`` is the window's. One transition is usually found from several frames: see
    ``best_graduals``; whether a camera sweeps through it is worked out once.
    """
    centres = grid(window, start, end)
    if len(centres) == 0:
        return []

    @cache
    def sweeps(first: int, last: int) -> bool:
        """Whether the camera's motion explains all that comes into these frames."""
        luma = window.luma[first : last + 1]
        return not changes_content(luma, _STEP_REACH, config.min_steps_change)

    found = []
    for half_ms in _HALVES_MS:
        first, last = sides(window, centres, half_ms)
        likely = _likely(window, first, centres, last, config)
        for a, b in zip(first[likely], last[likely], strict=True):
            gradual = _best_fit(window, mixed, int(a), int(b), sweeps, config)
            if gradual is not None:
                found.append(gradual)
    return found


def _likely(
    window: FrameFeatures, first: Indices, centres: Indices, last: Indices, config: GradualConfig
) -> npt.NDArray[np.bool_]:
    """Where the ends differ and the centre is near their mean."""
    before, middle, after = (window.luma[index] for index in (first, centres, last))
    difference = mean_difference(before, after)
    twice = 2 * middle.astype(np.int16) - before - after
    miss = np.abs(twice).reshape(len(twice), -1).mean(axis=1) / 2
    clear = difference >= config.min_difference
    enough = (last - first) >= 4
    return np.asarray(clear & enough & (miss <= config.max_middle_miss * difference))


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
    """The transition between two frames, as fine pictures show it or else coarse ones.

    Things that move during a dissolve blur what fine pictures show of the
    mixture; in coarse ones, with their colours, they hardly matter.
    """
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
    """The transition between frames ``a`` and ``b`` if the mixture model holds there.

    ``mixtures`` has a row for each frame from ``a`` to ``b``. ``unlike`` (of the two frames)
    and ``sweeps`` (of those between) are called once the mixture model holds.
    """
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
    return Gradual(
        int(times[begin]),
        int(times[middle]),
        int(times[stop]),
        1.0 / (1.0 + math.exp(-score)),
        float(mean_difference(window.luma[a : a + 1], window.luma[b : b + 1])[0]),
        ends.side,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """How the first and the last picture of a transition differ."""

    side: Blank | None
    difference: float
    alike: float


def _unlike(window: FrameFeatures, a: int, b: int, config: GradualConfig) -> _Ends | None:
    """The difference of frames ``a`` and ``b``, None where it is none of two scenes.

    Between two pictures that show something, a change of light is no difference.
    The cheapest tests come first: most pairs fail early.
    """
    ends = window.luma[np.array([a, b])]
    side = _blank_side(ends)
    if side is None and contrast(ends).min() < _PLAIN_CONTRAST:
        return None
    alike = 0.0 if side is not None else likeness(ends[0], ends[1])
    if alike > config.max_likeness:
        return None
    difference = float(change(window, np.array([a]), np.array([b]), _FAR_REACH)[0])
    if side is None and difference >= config.min_change:
        difference = min(difference, change_beside_light(ends[0], ends[1], _FAR_REACH))
    return _Ends(side, difference, alike) if difference >= config.min_change else None


def _shares(frames: Levels) -> tuple[Floats, Floats]:
    """Share of B in each frame by least squares, and what it leaves unexplained."""
    offsets = frames - frames[0]
    direction = offsets[-1]
    energy = max(float(direction @ direction), _LEAST_ENERGY)
    share = (offsets @ direction).astype(np.float64) / energy
    offsets -= share[:, None].astype(np.float32) * direction
    miss = np.sqrt(np.einsum("ij,ij->i", offsets, offsets).astype(np.float64) / energy)
    return share, miss


def _extent(share: Floats) -> tuple[int, int]:
    """Last frame that is still A and first one that is already B."""
    still = np.flatnonzero(share <= 0.05)
    begin = int(still[-1]) if len(still) else 0
    done = np.flatnonzero(share[begin:] >= 0.95)
    return begin, begin + int(done[0]) if len(done) else len(share) - 1


def _blank_side(ends: Bytes) -> Blank | None:
    """The kind of blank that one of the two pictures is; black goes first."""
    kinds = blanks(ends)
    if Blank.BLACK in kinds:
        return Blank.BLACK
    return Blank.WHITE if Blank.WHITE in kinds else None


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
        """Items whose intervals meet ``start_ms`` to ``end_ms`` (inclusive), by start."""
        low = bisect_left(self._starts, start_ms - self._longest)
        high = bisect_right(self._starts, end_ms)
        for _, ends_ms, index in self._spans[low:high]:
            if ends_ms >= start_ms:
                yield self._items[index]


def best_graduals(found: list[Gradual]) -> list[Gradual]:
    """One for each transition: the surest of those that saw nearly all of it."""
    rest = sorted(found, key=lambda gradual: (-gradual.strength, gradual.start_ms))
    by_time = IntervalIndex(
        range(len(rest)), lambda index: (rest[index].start_ms, rest[index].end_ms)
    )
    left = [True] * len(rest)

    def taken(one: Gradual) -> list[Gradual]:
        """What is left that overlaps ``one``, surest first, and from now on is not left."""
        # Those that only meet it do not overlap it.
        near = by_time.touching(one.start_ms + 1, one.end_ms - 1)
        indices = sorted(index for index in near if left[index])
        for index in indices:
            left[index] = False
        return [rest[index] for index in indices]

    chosen = []
    for index, full in enumerate(rest):
        if not left[index]:
            continue
        same = taken(full)
        nearly = [other for other in same if other.strength >= _NEARLY_ALL * full.strength]
        best = max(nearly, key=lambda other: (other.confidence, -other.middle_ms))
        chosen.append(best)
        taken(best)
    return sorted(chosen, key=lambda gradual: gradual.middle_ms)
