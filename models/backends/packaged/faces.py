"""Faces, by a cascade of three small networks (MTCNN: Zhang et al., 2016).

The first network goes over the picture in several sizes and marks windows that may show a face;
the second and the third judge each window at a higher resolution, drop most and straighten the
rest. A missed face costs a word in a description, a false one is a false statement: the last
threshold is stricter than the authors' 0.7. Sizes and thresholds were chosen on the stills for
tuning of ``benchmarks/descriptions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from models.backends.packaged.networks import Network, Tensor
from models.contracts import Box, Picture

_LONG_SIDE_PX = 480
"""Of the picture that is searched; 640 pixels found no more faces, in 1.5 times the time."""
_LEAST_FACE = 0.06
"""Height of the smallest face looked for, of the picture's height."""
_LEAST_FACE_PX = 20
_WINDOW_PX, _WINDOW_STRIDE_PX = 12, 2
"""Of the first network."""
_PYRAMID = 0.6
"""Each size of the picture over the one before; 0.709 found no more, in 1.6 times the time."""
_CANDIDATE, _LIKELY, _SURE = 0.6, 0.7, 0.85
"""Probability from which each network lets a window pass."""
_SAME_FACE = 0.5
_MOST_WINDOWS = 400
"""Handed to the second network, the most likely ones: foliage gives thousands."""

Windows = npt.NDArray[np.float32]
"""(n, 5): left, top, right, bottom in pixels, probability; of the third network (n, 15): then five
landmarks across and down."""


@dataclass(frozen=True, slots=True)
class MarkedFace:
    """A face and its landmarks, in shares of the picture's width and height."""

    box: Box
    landmarks: tuple[tuple[float, float], ...]
    """Eyes, tip of the nose, corners of the mouth; of two the left one in the picture first."""


class FaceFinder:
    """Upright faces, from the front or turned as long as both eyes can be seen."""

    def __init__(self, weights: Mapping[str, Path]) -> None:
        """``weights`` are the files of ``models.registry.packaged.MTCNN``."""
        names = ("pnet.onnx", "rnet.onnx", "onet.onnx")
        self._first, self._second, self._third = (Network(weights[name]) for name in names)

    def find(self, still: Picture) -> tuple[Box, ...]:
        """Faces in the still, largest first."""
        return tuple(face.box for face in self.find_marked(still))

    def find_marked(self, still: Picture) -> tuple[MarkedFace, ...]:
        """As ``find``, with landmarks."""
        rows, columns = still.shape[:2]
        scale = min(1.0, _LONG_SIDE_PX / max(rows, columns))
        size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
        picture = np.asarray(cv2.resize(still, size, interpolation=cv2.INTER_AREA), np.uint8)
        windows = self._candidates(picture)
        windows = self._passed(self._second, 24, _LIKELY, picture, windows)
        windows = _distinct(windows, 0.7)
        windows = self._passed(self._third, 48, _SURE, picture, windows)
        windows = _distinct(windows, _SAME_FACE, of_smaller=True)
        faces = []
        for window in windows:
            points = (window[5:].reshape(2, 5).T / size).tolist()
            faces.append(MarkedFace(_box(window, size), tuple((x, y) for x, y in points)))
        return tuple(sorted(faces, key=lambda face: (-face.box.height, face.box.left)))

    def _candidates(self, picture: Picture) -> Windows:
        """Square windows that the first network marks."""
        rows, columns = picture.shape[:2]
        least = max(_LEAST_FACE_PX, _LEAST_FACE * rows)
        scale, found = _WINDOW_PX / least, [np.zeros((0, 5), np.float32)]
        while min(rows, columns) * scale >= _WINDOW_PX:
            size = (int(np.ceil(columns * scale)), int(np.ceil(rows * scale)))
            small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            shifts, scores = self._first(_prepared(small[None]))
            found.append(_distinct(_marked(shifts[0], scores[0, :, :, 1], scale), 0.5))
            scale *= _PYRAMID
        windows = _distinct(np.concatenate(found), 0.7)
        order = np.argsort(-windows[:, 4], kind="stable")[:_MOST_WINDOWS]
        return _squared(windows[order])

    def _passed(
        self, network: Network, side: int, least: float, picture: Picture, windows: Windows
    ) -> Windows:
        """The windows that ``network`` finds a face in, moved to where it is."""
        if len(windows) == 0:
            return windows
        cut = np.stack([_cut(picture, window, side) for window in windows])
        outputs = network(_prepared(cut))
        shifts, scores = outputs[0], outputs[-1][:, 1]
        passed = scores >= least
        moved = _moved(windows[passed], shifts[passed])
        moved[:, 4] = scores[passed]
        if network is not self._third:
            return _squared(moved)
        # Five across, then five down, in shares of the window that was judged.
        sides = np.repeat(windows[passed, 2:4] - windows[passed, 0:2], 5, axis=1)
        points = np.repeat(windows[passed, 0:2], 5, axis=1) + outputs[1][passed] * sides
        return np.column_stack([moved, points]).astype(np.float32)


def _prepared(pictures: npt.NDArray[np.uint8] | cv2.typing.MatLike) -> Tensor:
    """Levels as -1 to 1, columns before rows: so these networks were trained."""
    levels = (np.asarray(pictures, np.float32) - np.float32(127.5)) * np.float32(1 / 128)
    return np.ascontiguousarray(levels.transpose(0, 2, 1, 3))


def _marked(shifts: Tensor, scores: Tensor, scale: float) -> Windows:
    """Windows in pixels of the whole picture, by a map (columns, rows) of the first network."""
    across, down = np.nonzero(scores >= _CANDIDATE)
    corner = np.stack([across, down], axis=1) * _WINDOW_STRIDE_PX
    edges = np.concatenate([corner, corner + _WINDOW_PX], axis=1) / scale
    windows = np.column_stack([edges, scores[across, down]]).astype(np.float32)
    return _moved(windows, shifts[across, down])


def _moved(windows: Windows, shifts: Tensor) -> Windows:
    """Each edge moved by its share of the window's width or height."""
    sides = windows[:, 2:4] - windows[:, 0:2]
    edges = windows[:, :4] + shifts * np.tile(sides, 2)
    return np.column_stack([edges, windows[:, 4]]).astype(np.float32)


def _squared(windows: Windows) -> Windows:
    centres = (windows[:, 0:2] + windows[:, 2:4]) / 2
    halves = (windows[:, 2:4] - windows[:, 0:2]).max(axis=1, initial=0)[:, None] / 2
    return np.column_stack([centres - halves, centres + halves, windows[:, 4]]).astype(np.float32)


def _cut(picture: Picture, window: Windows, side: int) -> Picture:
    """The window's part of the picture in the size that a network takes; black beyond the edges."""
    left, top, right, bottom = (round(float(edge)) for edge in window[:4])
    rows, columns = picture.shape[:2]
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    part = picture[max(0, top) : max(0, bottom), max(0, left) : max(0, right)]
    whole = cv2.copyMakeBorder(
        part,
        max(0, -top),
        max(0, bottom - max(rows, top)),
        max(0, -left),
        max(0, right - max(columns, left)),
        cv2.BORDER_CONSTANT,
    )
    return np.asarray(cv2.resize(whole, (side, side), interpolation=cv2.INTER_AREA), np.uint8)


def _distinct(windows: Windows, most: float, *, of_smaller: bool = False) -> Windows:
    """Without windows that cover a more likely one: their common area over their union, or over
    the smaller of the two."""
    left, top, right, bottom, scores = windows[:, :5].T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        across = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        down = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        common = np.maximum(across, 0) * np.maximum(down, 0)
        smaller = np.minimum(areas[best], areas[rest])
        whole = smaller if of_smaller else areas[best] + areas[rest] - common
        order = rest[common <= most * whole]
    return windows[kept]


def _box(window: Windows, size: tuple[int, int]) -> Box:
    """Clipped to the picture, in shares of it."""
    columns, rows = size
    left, right = (float(np.clip(window[edge] / columns, 0, 1)) for edge in (0, 2))
    top, bottom = (float(np.clip(window[edge] / rows, 0, 1)) for edge in (1, 3))
    return Box(left, top, right - left, bottom - top)
