"""What the camera does in a scene, from pairs of tiny pictures a fifth of a second apart.

Dense optical flow (G. Farnebäck, 2003) of each pair is reduced to one shift
and one zoom by a robust fit, so that objects moving before the camera count
little; the scene's label follows from how these go on from pair to pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import CameraMotion
from pipelines.media_types import Orientation
from pipelines.vision.cuts.measures import contrast
from pipelines.vision.features import LUMA_HEIGHT, LUMA_WIDTH, Bytes, FrameFeatures, Times

PAIR_GAP_MS = 200
MAX_PAIRS = 24

_FEWEST_PAIRS = 2
_LEAST_CONTRAST = 6.0
"""Of pictures in levels; there is nothing to follow in plainer ones."""
_FIT_ROUNDS = 6
_FIT_SCALE = 0.25
"""Pixels of disagreement at which a pixel's weight is halved."""
_STILL = 0.012
_MOVING = 0.02
"""Shares of the picture's width, height or size a second."""
_FEWEST_SHAKEN, _SHAKEN, _TURNS = 5, 0.015, 0.3
"""Of a shaken camera: the fewest pairs, the median movement aside a second, and the share of pairs
after which it turns back (of independent movements half)."""
_SHARED, _ALIKE, _TEXTURED = 0.4, 0.3, 0.4
"""Of a shaken camera: the share of the textured picture that goes along, within this part of the
shift; and the texture, of the whole picture, below which what is plain counts as not going along. A
hand moves all that is in view; a figure before a camera that is still, drawn or not, does not.
Chosen on half of 80 made shots of either kind: shaken ones have 0.48 to 0.98 (5 to 95 %), drawn
figures that were taken for one 0.06 to 0.31."""
_STEADY = 0.75
"""Net movement as a share of all movement: 1 for a perfect pan, near 0 for shake."""

Floats = npt.NDArray[np.float64]
Flow = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PairMotion:
    """How the picture's content moves, a second: shares of width, height and size."""

    across: float
    down: float
    growth: float
    shared: float
    """Of the textured picture, what moves so."""


def pair_times(times_ms: Times, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Return times of the frame pairs to compare: spread evenly over the scene, the same however
    the video is cut into segments."""
    inside = times_ms[(times_ms >= start_ms) & (times_ms < end_ms)]
    if len(inside) < 2:
        return []
    last_start = int(inside[-1]) - PAIR_GAP_MS
    count = max(1, min(MAX_PAIRS, (last_start - int(inside[0])) // PAIR_GAP_MS + 1))
    wanted = np.linspace(int(inside[0]), max(int(inside[0]), last_start), count)
    first = np.unique(np.searchsorted(inside, wanted.astype(np.int64)))
    pairs = []
    for index in first:
        other = int(np.searchsorted(inside, inside[index] + PAIR_GAP_MS))
        other = min(other, len(inside) - 1)
        if other > index:
            pairs.append((int(inside[index]), int(inside[other])))
    return pairs


def camera_motion(
    features: FrameFeatures, pairs: Sequence[tuple[int, int]], orientation: Orientation
) -> CameraMotion:
    """Return the label of a scene; ``features`` holds the frames of ``pairs``."""
    motions = []
    for first_ms, second_ms in pairs:
        index = np.searchsorted(features.times_ms, [first_ms, second_ms])
        first, second = features.luma[index[0]], features.luma[index[1]]
        if contrast(np.stack([first, second])).min() >= _LEAST_CONTRAST:
            motions.append(pair_motion(first, second, (second_ms - first_ms) / 1000))
    turned = [(motion, orientation.turned(motion.across, motion.down)) for motion in motions]
    return label([replace(it, across=across, down=down) for it, (across, down) in turned])


def pair_motion(first: Bytes, second: Bytes, seconds: float) -> PairMotion:
    """Shift and zoom that carry most of ``first`` into ``second``."""
    start: Flow = np.zeros((LUMA_HEIGHT, LUMA_WIDTH, 2), np.float32)
    flow = cv2.calcOpticalFlowFarneback(first, second, start, 0.5, 3, 9, 5, 5, 1.1, 0)
    # Pixels weigh 0 to 1: the flow of plain areas is guessed from their surroundings.
    grey = cv2.GaussianBlur(first, (3, 3), 0).astype(np.float32)
    gradient = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    texture = np.asarray(gradient / (gradient + 24.0), np.float64)
    across, down, growth, shared = _fitted(flow, texture)
    shift = across / LUMA_WIDTH / seconds, down / LUMA_HEIGHT / seconds
    return PairMotion(*shift, growth / seconds, shared)


_DOWN, _ACROSS = np.mgrid[:LUMA_HEIGHT, :LUMA_WIDTH].astype(np.float64)
_Y, _X = (_DOWN - (LUMA_HEIGHT - 1) / 2).ravel(), (_ACROSS - (LUMA_WIDTH - 1) / 2).ravel()
"""Places of the pixels, from the picture's middle."""


def _fitted(flow: Flow, texture: Floats) -> tuple[float, float, float, float]:
    """Weighted least squares of shift and growth, reweighted against outliers; and the share of the
    texture that follows them."""
    u, v = flow[..., 0].ravel().astype(np.float64), flow[..., 1].ravel().astype(np.float64)
    sure = texture.ravel()
    summed = np.stack([np.ones_like(u), _X, _Y, u, v, _X * _X + _Y * _Y, _X * u + _Y * v])
    across, down, growth = float(np.median(u)), float(np.median(v)), 0.0
    for _ in range(_FIT_ROUNDS):
        aside, off = u - across - growth * _X, v - down - growth * _Y
        weight = sure / (1 + (aside * aside + off * off) / _FIT_SCALE**2)
        total, *sums = (summed @ weight).tolist()
        total += 1e-9
        mean_x, mean_y, mean_u, mean_v = (one / total for one in sums[:4])
        spread = sums[4] - total * (mean_x * mean_x + mean_y * mean_y)
        moved = sums[5] - total * (mean_x * mean_u + mean_y * mean_v)
        growth = moved / (spread + 1e-9)
        across, down = mean_u - growth * mean_x, mean_v - growth * mean_y
    apart = np.hypot(u - across - growth * _X, v - down - growth * _Y)
    follows = apart <= max(_FIT_SCALE, _ALIKE * float(np.hypot(across, down)))
    textured = max(float(sure.sum()), _TEXTURED * len(sure))
    return across, down, growth, float(sure @ follows) / textured


def label(motions: Sequence[PairMotion]) -> CameraMotion:
    """Return one word for a scene's motion; content that moves right means a camera that pans
    left."""
    if len(motions) < _FEWEST_PAIRS:
        return CameraMotion.UNKNOWN
    moves = np.array([(motion.across, motion.down, motion.growth) for motion in motions])
    net, gross = moves.mean(axis=0), np.abs(moves).mean(axis=0)
    if gross.max() < _STILL:
        return CameraMotion.STATIC
    usual = np.median(moves, axis=0) * np.sign(net)
    steady = (usual >= _MOVING) & (np.abs(net) >= np.maximum(_MOVING, _STEADY * gross))
    reach = np.abs(net) * (1.0, 1.0, 0.5)
    if steady.any():
        axis = int(np.where(steady, reach, 0.0).argmax())
        return _DIRECTIONS[axis][int(net[axis] > 0)]
    shared = np.median([motion.shared for motion in motions])
    if len(moves) >= _FEWEST_SHAKEN and shared >= _SHARED:
        # Most pairs move aside from the usual way, and to and fro: something that passes before the
        # camera, a cut that was missed or a pan that starts and stops do not.
        aside = moves[:, :2] - np.median(moves[:, :2], axis=0)
        turns = (aside[1:] * aside[:-1] < 0).mean(axis=0)
        if ((np.median(np.abs(aside), axis=0) >= _SHAKEN) & (turns >= _TURNS)).any():
            return CameraMotion.HANDHELD
    return CameraMotion.STATIC if gross.max() < _MOVING else CameraMotion.UNKNOWN


_DIRECTIONS = (
    (CameraMotion.PAN_RIGHT, CameraMotion.PAN_LEFT),
    (CameraMotion.TILT_DOWN, CameraMotion.TILT_UP),
    (CameraMotion.ZOOM_OUT, CameraMotion.ZOOM_IN),
)
"""For each axis: the camera's motion where the content's is negative, and positive."""
