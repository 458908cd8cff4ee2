"""Frames that the decoder may leave out: those that no other refers to and that bring nothing new.

Between two frames that hardly differ, motion aside, a frame is taken to be the mixture of both
that its time says. Every other one is to be decoded after all: of what is a cut, nothing is
mixed. Which are which depends on the frames alone, not on where the video is cut into segments.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pipelines.merge.cut_measures import change
from pipelines.merge.frame_features import Bytes, FrameFeatures, Times
from pipelines.merge.hard_cuts import HardConfig

_CALM = HardConfig().min_step
"""On the scale of ``change``, over a reach at least as far: in still footage a step of as
little as 0.16 is taken for a hard cut."""
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
    where = np.flatnonzero(known)[close]
    calm[where] = change(decoded, before[close], after[close], _REACH) < _CALM
    return left_out_ms[calm], left_out_ms[~calm]


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
