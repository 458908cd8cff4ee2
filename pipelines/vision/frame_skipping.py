"""Frames that the decoder may leave out: those that no other refers to and that bring nothing new.

Between two frames that hardly differ, motion aside, a frame is taken to be the mixture of both
that its time says. Every other one is to be decoded after all: of what is a cut, nothing is
mixed. Which are which depends on the frames alone, not on where the video is cut into segments.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from pipelines.vision.cuts.hard import HardConfig
from pipelines.vision.cuts.measures import Indices, change
from pipelines.vision.frame_features import Bytes, FrameFeatures, Times

_CALM = HardConfig().min_step
"""On the scale of ``change``, over a reach at least as far: less is a candidate nowhere."""
RESTLESS, MOVING = 0.2, 0.06
"""Where frames around differ by ``MOVING`` on average (frames of twos and threes: single ones
by 0.02), a step below ``RESTLESS`` is not enough for a hard cut: see ``hard_cuts.confidence``."""
_AROUND = 5
_REACH = (3, 5)
LONGEST_GAP_MS = 250
"""Where frames are further apart, the picture stood still or frames are missing. Frames are
decoded so far beyond a segment's borders, where the file holds them."""


def told_apart(
    decoded: FrameFeatures,
    left_out_ms: Times,
    key_times_ms: Times,
    damaged_gops_ms: Collection[int],
) -> tuple[Times, Times]:
    """Of the times left out: those to mix, those to decode.

    At a segment's borders a neighbour is unknown, and these are key frames: so frames
    before a key frame are decoded everywhere. Those after the key frames
    ``damaged_gops_ms``, up to the next ones, too: there neighbours are missing.
    """
    times = decoded.times_ms
    after = np.searchsorted(times, left_out_ms)
    before = after - 1
    known = (before >= 0) & (after < len(times))
    before, after = before[known], after[known]
    gop = np.searchsorted(key_times_ms, times[before], side="right") - 1
    damaged = np.searchsorted(key_times_ms, sorted(damaged_gops_ms))
    close = times[after] - times[before] <= LONGEST_GAP_MS
    close &= (gop >= 0) & ~np.isin(gop, damaged) & ~np.isin(times[after], key_times_ms)
    calm = np.zeros(len(left_out_ms), bool)
    gops = np.searchsorted(key_times_ms, times, side="right")
    calm[np.flatnonzero(known)[close]] = _tells_nothing(decoded, before[close], gops)
    return left_out_ms[calm], left_out_ms[~calm]


def _tells_nothing(decoded: FrameFeatures, before: Indices, gops: Indices) -> npt.NDArray[np.bool_]:
    """Whether no cut lies between frames ``before`` and the next ones, which are of one GOP.

    ``gops``: to which each frame belongs. Frames of other GOPs are not asked: where the
    video is cut into segments, these are not there.
    """
    differ = change(decoded, before, before + 1, _REACH)
    nothing = differ < _CALM
    for index in np.flatnonzero((differ >= _CALM) & (differ < RESTLESS)):
        own = before[index]
        near = np.arange(max(0, own - _AROUND), min(len(decoded) - 1, own + _AROUND + 1))
        near = near[(near != own) & (gops[near] == gops[own]) & (gops[near + 1] == gops[own])]
        nothing[index] = bool(len(near)) and change(decoded, near, near + 1, _REACH).mean() > MOVING
    return nothing


def mixed(decoded: FrameFeatures, times_ms: Times) -> FrameFeatures:
    """Features at ``times_ms``, each between two frames of ``decoded``."""
    after = np.searchsorted(decoded.times_ms, times_ms)
    first, second = decoded.times_ms[after - 1], decoded.times_ms[after]
    shares = (times_ms - first) / np.maximum(1, second - first)
    return FrameFeatures(
        times_ms,
        _between(decoded.luma[after - 1], decoded.luma[after], shares[:, None, None]),
        _between(decoded.chroma[after - 1], decoded.chroma[after], shares[:, None, None, None]),
    )


def _between(one: Bytes, other: Bytes, share: np.ndarray) -> Bytes:
    start = one.astype(np.float32)
    return np.rint(start + share.astype(np.float32) * (other - start)).astype(np.uint8)


def ordered(
    features: FrameFeatures, decoded: FrameFeatures, start_ms: int, end_ms: int
) -> FrameFeatures:
    """The frames from ``start_ms`` to ``end_ms`` in order of time, key frames as ``decoded``."""
    order = np.argsort(features.times_ms)
    times = features.times_ms[order]
    order = order[(times >= start_ms) & (times < end_ms)]
    keys = decoded.key_times_ms
    return FrameFeatures(
        features.times_ms[order],
        features.luma[order],
        features.chroma[order],
        key_times_ms=keys[(keys >= start_ms) & (keys < end_ms)],
    )
