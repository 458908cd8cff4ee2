"""The active picture: where a film is between black bars (letterbox, pillarbox, or both).

Found from all frames together, as a dark scene has black edges too, and from how often each place
is lit, as titles may stand in the bars. Places are those of the features' luma, as stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import Box, Picture
from pipelines.media_types import Orientation
from pipelines.vision.features import LUMA_HEIGHT, LUMA_WIDTH, Bytes, FrameFacts, FrameFeatures

WHOLE = Box(0.0, 0.0, 1.0, 1.0)

_SHOWN_SHARE = 0.05
"""Of all frames must light a place of the picture: idents in full frame are shorter."""
_FILLED = 0.85
"""Of a line must be lit by then; a title in a bar leaves its ends black."""
_MIDDLE = 0.1
"""Half of the band, as a share, in which the picture is looked for first."""
_BLACK_LEVEL = 12.0
"""The most that a bar's mean may have: noise, and the setup of analogue video."""
_SHARP, _EDGE_PERCENTILE = 0.4, 10
"""Just inside a bar nearly all places are lit so often, as a share of those further in: what is lit
on a dark stage has no straight edge."""
_EVEN = 0.8
"""Or else as often as the median of the line, as a share: shots that fill the width are few where
most of a film is narrower still, but light all of a line."""
_CLEAN = 0.5
"""Of the lines of one bar at least have nothing in them, whatever titles there are. In a dark film
something is lit anywhere, some time."""
_LEAST_BAR, _MOST_BARS = 0.015, 0.8
"""Of height or width: of each bar, and of both."""
_UNEVEN = 0.04
"""Bars that differ by more are as wide as the smaller one: the rest is a dark part of the picture,
as the ground below a sunset."""
_INSET = 0.004
"""Of the size is left out beside bars when a picture is cropped: edges are blurred by encoders."""

Shares = npt.NDArray[np.float64]


def active_picture(facts: Iterable[FrameFacts]) -> Box:
    """Return the active picture of a film whose frames these are, as stored; WHOLE without bars."""
    each = list(facts)
    frames = sum(len(one.times_ms) for one in each)
    if not frames:
        return WHOLE
    lit = np.sum([one.lit for one in each], axis=0) / frames
    level = np.sum([one.sums for one in each], axis=0) / frames
    shown = lit >= _SHOWN_SHARE
    rows, columns = slice(0, LUMA_HEIGHT), slice(0, LUMA_WIDTH)
    middle = slice(*(round(LUMA_HEIGHT * (0.5 + side * _MIDDLE)) for side in (-1, 1)))
    for part, needed in ((middle, 0.5), (None, _FILLED)):
        columns = _extent(shown[part or rows].mean(axis=0) >= needed)
        rows = _extent(shown[:, columns].mean(axis=1) >= _FILLED)
    top, bottom = _bars(lit[:, columns], level[:, columns], rows)
    left, right = _bars(lit[rows].T, level[rows].T, columns)
    return Box(left, top, 1.0 - left - right, 1.0 - top - bottom)


def _extent(filled: npt.NDArray[np.bool_]) -> slice:
    """From the first line to the last one that is filled; all lines where none is."""
    lines = np.flatnonzero(filled)
    return slice(int(lines[0]), int(lines[-1]) + 1) if len(lines) else slice(0, len(filled))


def _bars(lit: Shares, level: Shares, inside: slice) -> tuple[float, float]:
    """Widths of the bars before and after the lines ``inside``, as shares of all lines."""
    size = len(lit)
    before = _bar(lit, level, inside.start) / size
    after = _bar(lit[::-1], level[::-1], size - inside.stop) / size
    if abs(before - after) > _UNEVEN:
        before = after = min(before, after)
    if min(before, after) < _LEAST_BAR or before + after > _MOST_BARS:
        return 0.0, 0.0
    clean = np.all(lit < _SHOWN_SHARE, axis=1)
    cleaner = max(clean[: inside.start].mean(), clean[inside.stop :].mean())
    return (before, after) if cleaner >= _CLEAN else (0.0, 0.0)


def _bar(lit: Shares, level: Shares, lines: int) -> float:
    """Return how many lines the first ``lines`` are, to a fraction; 0 where they are no bar."""
    if not 0 < lines < len(lit) // 2:
        return 0.0
    outside = level[:lines][lit[:lines] < _SHOWN_SHARE]
    if not len(outside) or outside.mean() > _BLACK_LEVEL:
        return 0.0
    # Each place by those further in: shots that are narrower than the film light its sides seldom.
    further_in = np.maximum(np.median(lit[lines:-lines], axis=0), _SHOWN_SHARE)
    first = lit[lines : lines + 2].max(axis=0)
    edge = np.percentile(first / further_in, _EDGE_PERCENTILE)
    if edge < _SHARP and np.percentile(first, _EDGE_PERCENTILE) < _EVEN * np.median(first):
        return 0.0
    # The first line inside is of the bar in part: its level is that of the next one, less so.
    covered = float(level[lines].mean() / max(1.0, level[lines + 1].mean()))
    return lines + (1.0 - covered if covered < 1.0 - _BLURRED else 0.0)


_BLURRED = 0.1
"""Neighbouring lines of a picture differ by as much."""


def inside(features: FrameFeatures, active: Box) -> FrameFeatures:
    """Return the features as those of the active picture alone, stretched to their shape."""
    if active == WHOLE:
        return features
    return replace(
        features,
        luma=_stretched(features.luma, active),
        chroma=np.stack([_stretched(features.chroma[:, one], active) for one in (0, 1)], axis=1),
    )


def _stretched(pictures: Bytes, active: Box) -> Bytes:
    """Return pictures (n, rows, columns, ...), each with the box of it as large as it was."""
    rows, columns = pictures.shape[1:3]
    matrix = np.array(
        [
            [active.width, 0, active.left * columns + active.width / 2 - 0.5],
            [0, active.height, active.top * rows + active.height / 2 - 0.5],
        ]
    )
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    stretched = np.empty_like(pictures)
    for picture, target in zip(pictures, stretched, strict=True):
        target[...] = cv2.warpAffine(
            picture, matrix, (columns, rows), flags=how, borderMode=cv2.BORDER_REPLICATE
        )
    return stretched


def cropped(picture: Picture, active: Box) -> Picture:
    """Return the active part of an upright picture, whose bars ``active`` leaves out."""
    rows, columns = picture.shape[:2]
    top, bottom = _kept(active.top, active.height, rows)
    left, right = _kept(active.left, active.width, columns)
    return np.ascontiguousarray(picture[top:bottom, left:right])


def _kept(start: float, length: float, pixels: int) -> tuple[int, int]:
    first = math.ceil((start + _INSET) * pixels) if start > 0 else 0
    end = start + length
    last = math.floor((end - _INSET) * pixels) if end < 1 else pixels
    return (first, last) if last > first else (0, pixels)


def upright_box(box: Box, orientation: Orientation) -> Box:
    """Return a box in the stored picture as it is in the upright one."""
    left, top, width, height = box.left, box.top, box.width, box.height
    if orientation.mirrored:
        left = 1.0 - left - width
    for _ in range(orientation.degrees // 90):
        left, top, width, height = 1.0 - top - height, left, height, width
    return Box(left, top, width, height)
