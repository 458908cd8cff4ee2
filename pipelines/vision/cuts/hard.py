"""Hard cuts: one frame ends a scene and the next begins another.

A step between neighbouring frames is a cut if it is large for the pictures'
contrast, large beside the steps around it (motion, shake and flicker are not),
and if the pictures stay different afterwards (a flash does not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipelines.vision.cuts import measures
from pipelines.vision.features import FrameFeatures

_STEP_REACH = (2, 2)
_FAR_REACH = (3, 5)
"""Rows and columns of the 36 x 64 picture that motion may cover in one step, in a few."""
_NEIGHBOURS = 5
SLOW_MS = 900
"""Frames further away are no neighbours: of a picture a second, or fewer, each is a shot."""
_APART_MS = (0, 40, 80, 120, 200, 280, 360)
"""How far from the cut frames are compared with those just on its other side: what looks
the same again within that time was a flash, or something passing close by."""
_VISIT_MS = 900
_VISIT_STEP_MS = 100
"""How far from the cut, on both sides, the same view is looked for: something that passes
close to the camera hides it no longer."""
_TURNED_LEVELS = 12.0
"""Places that change less at the candidate are left out when the old view is searched for."""
_FEWEST_PLACES = 30
_NEAR = 3
_WITHIN = 3
_GAP = 1.5
"""Of the usual distance of frames nearby: from there on some are missing."""
_LONG_GAP, _FARTHEST_REACH = 3.0, (6, 10)
_MOST_MOVED = 0.6
"""Change that motion makes at most, however long: pictures have then nothing in common."""


@dataclass(frozen=True, slots=True)
class HardConfig:
    """A candidate's step (see ``change``) is ``min_step`` and ``min_ratio`` times those around."""

    min_step: float = 0.12
    min_ratio: float = 1.6


@dataclass(frozen=True, slots=True)
class HardEvidence:
    """What was measured at one candidate."""

    step: float
    """Change from the frame before."""
    around: float
    """Mean change between the neighbouring frames on both sides."""
    lasting: float
    """Smallest change between frames just on one side and frames up to 0.4 s on the other."""
    beside: float
    """Second largest step of the three on either side; whip pans have several large ones."""
    within: float
    """Largest change over three frames on either side."""
    alike: float
    """Largest correlation of structure across the candidate."""
    residue: float
    """Share of the picture that is not explained by the other one in another light."""
    gone: float
    """Share of the difference that stays between the best two views of both sides."""


@dataclass(frozen=True, slots=True)
class HardCandidate:
    """A step that may be a cut: ``time_ms`` is that of the new scene's first frame."""

    time_ms: int
    confidence: float
    evidence: HardEvidence


def find_hard(
    window: FrameFeatures, start: int, end: int, config: HardConfig
) -> list[HardCandidate]:
    """Return those of the frames ``start`` to ``end``."""
    low, high = max(1, start - _NEIGHBOURS), min(len(window), end + _NEIGHBOURS)
    if high <= low:
        return []
    later = np.arange(low, high)
    steps = np.zeros(len(window))
    steps[later] = measures.change(window, later - 1, later, _STEP_REACH)
    gaps = _gaps(window, low, high)
    for least, reach in ((_GAP, _FAR_REACH), (_LONG_GAP, _FARTHEST_REACH)):
        wide = np.flatnonzero(gaps >= least)
        steps[wide] = np.minimum(steps[wide], measures.change(window, wide - 1, wide, reach))
    cuts = []
    for index in range(max(1, start), end):
        if steps[index] < config.min_step:
            continue
        near = _steps_near(window, steps, gaps, index, _NEIGHBOURS)
        if steps[index] >= config.min_ratio * near.mean():
            evidence = gather(window, steps, gaps, index)
            cuts.append(HardCandidate(int(window.times_ms[index]), confidence(evidence), evidence))
    return cuts


def _gaps(window: FrameFeatures, low: int, high: int) -> measures.Floats:
    """How many usual steps the one to each frame takes: 1, more where frames are missing before it.
    The usual is the median of the steps around it."""
    apart = np.diff(window.times_ms, prepend=window.times_ms[0]).astype(np.float64)
    found = np.ones(len(window))
    even = _GAP * apart[low:high].min()
    for index in (low + np.flatnonzero(apart[low:high] >= even)).tolist():
        first, last = _reach(window, index, _NEIGHBOURS)
        near = np.concatenate([apart[first + 1 : index], apart[index + 1 : last + 1]])
        if len(near) and apart[index] < SLOW_MS:
            ratio = apart[index] / max(1.0, float(np.median(near)))
            found[index] = ratio if ratio >= _GAP else 1.0
    return found


def _steps_near(
    window: FrameFeatures, steps: measures.Floats, gaps: measures.Floats, index: int, frames: int
) -> measures.Floats:
    """Up to so many steps before the one at ``index`` and after it; none where all are far. As they
    would be over as much time as that one takes: what moves goes on moving in a gap."""
    first, last = _reach(window, index, frames)
    others = np.r_[first + 1 : index, index + 1 : last + 1]
    if not len(others):
        return np.zeros(1)
    near, longer = steps[others], gaps[index] / gaps[others]
    bounded = np.minimum(near * longer, np.maximum(near, _MOST_MOVED))
    return np.asarray(np.where(longer > 1, bounded, near * longer))


def _reach(window: FrameFeatures, index: int, frames: int) -> tuple[int, int]:
    """Return the furthest neighbours on both sides of the candidate, up to ``frames`` from it."""
    times = window.times_ms
    first = np.searchsorted(times, times[index - 1] - SLOW_MS)
    last = np.searchsorted(times, times[index] + SLOW_MS, side="right") - 1
    return max(int(first), index - 1 - frames), min(int(last), index + frames)


def gather(
    window: FrameFeatures, steps: measures.Floats, gaps: measures.Floats, index: int
) -> HardEvidence:
    """Measure the surroundings of the candidate at ``index``."""
    before, after = _before(window, index), _after(window, index)
    pairs = np.array(
        [(one, other) for one in before[:_NEAR] for other in after]
        + [(one, other) for one in before[_NEAR:] for other in after[:_NEAR]]
    )
    lasting = measures.change(window, pairs[:, 0], pairs[:, 1], _FAR_REACH).min()
    alike = max(measures.likeness(window.luma[index - 1], window.luma[other]) for other in after)
    beside = np.sort(_steps_near(window, steps, gaps, index, _WITHIN))
    first, last = _reach(window, index, _WITHIN)
    ones, others = np.array([first, index]), np.array([index - 1, last])
    # Any picture is black in another light.
    from_blank = measures.blanks(window.luma[index - 1 : index + 1]).count(None) == 1
    return HardEvidence(
        step=float(steps[index]),
        around=float(_steps_near(window, steps, gaps, index, _NEIGHBOURS).mean()),
        lasting=float(lasting),
        beside=float(beside[-2]) if len(beside) > 1 else 0.0,
        within=float(measures.change(window, ones, others, _FAR_REACH).max()),
        alike=alike,
        residue=1.0 if from_blank else measures.light_residue(*window.luma[index - 1 : index + 1]),
        gone=_gone(window, index),
    )


def _gone(window: FrameFeatures, index: int) -> float:
    """0 if a view from before the candidate is seen after it, about 0.7 for another scene."""
    times = window.times_ms
    apart_ms = np.arange(0, _VISIT_MS + 1, _VISIT_STEP_MS)
    before = np.searchsorted(times, times[index - 1] - apart_ms)
    after = np.searchsorted(times, times[index] + apart_ms, side="right") - 1
    before = _shown(window, np.minimum(before, index - 1))
    after = _shown(window, after)
    cells = measures.cell_luma(window.luma[np.concatenate([before, after])])
    apart = np.abs(cells[0] - cells[len(before)])
    turned = apart >= _TURNED_LEVELS
    if int(turned.sum()) < _FEWEST_PLACES:
        return 1.0
    old, new = cells[: len(before), turned], cells[len(before) :, turned]
    shares = np.abs(old[:, None] - new[None]) / apart[turned]
    return float(np.minimum(1.0, shares).mean(axis=2).min())


def _shown(window: FrameFeatures, frames: measures.Indices) -> measures.Indices:
    """The first of the frames, and of the others those that show something."""
    kinds = measures.blanks(window.luma[frames[1:]])
    return frames[[True, *(kind is None for kind in kinds)]]


def _before(window: FrameFeatures, index: int) -> measures.Indices:
    """Return frames before the candidate, nearest first: the last three, then by time."""
    wanted = window.times_ms[index - 1] - np.array(_APART_MS)
    found = np.clip(np.searchsorted(window.times_ms, wanted), 0, index - 1)
    near = np.arange(index - 1, max(index - _NEAR, _reach(window, index, _NEAR)[0]) - 1, -1)
    return np.concatenate([near, np.setdiff1d(found, near)[::-1]])


def _after(window: FrameFeatures, index: int) -> measures.Indices:
    """Return frames from the candidate on, nearest first: the first three, then by time."""
    wanted = window.times_ms[index] + np.array(_APART_MS)
    found = np.searchsorted(window.times_ms, wanted, side="right") - 1
    near = np.arange(index, min(index + _NEAR - 1, _reach(window, index, _NEAR)[1]) + 1)
    return np.concatenate([near, np.setdiff1d(np.clip(found, index, len(window) - 1), near)])


def confidence(evidence: HardEvidence) -> float:
    """Logistic over the evidence."""
    score = (
        -6.0
        + 5.0 * min(evidence.step, 1.0)
        + 1.2 * math.log((evidence.step + 0.02) / (evidence.around + 0.02))
        + 6.0 * min(evidence.lasting, 1.0)
        + 0.8 * math.log((evidence.lasting + 0.03) / (evidence.within + 0.03))
        - 3.0 * max(0.0, evidence.alike)
        + 4.0 * (min(1.0, evidence.lasting / evidence.step) - 0.85)
        - 24.0 * max(0.0, evidence.alike - 0.5)
        - 10.0 * max(0.0, evidence.beside / evidence.step - 0.35)
        - 70.0 * max(0.0, 0.28 - evidence.residue)
        - 12.0 * max(0.0, 0.4 - evidence.gone) * min(1.0, evidence.within / 0.6)
        - 2.5 * max(0.0, evidence.within - 0.6)
    )
    return 1.0 / (1.0 + math.exp(-score))
