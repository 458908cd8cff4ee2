"""What is kept of a decoded frame: tiny pictures of it, and where writing may be."""

from __future__ import annotations

from typing import cast

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange

from models.pictures import text_strokes
from pipelines.media_types import Orientation

LUMA_WIDTH, LUMA_HEIGHT = 64, 36
CHROMA_WIDTH, CHROMA_HEIGHT = 16, 9

Bytes = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

_LINES_A_CELL = 4
"""Lines read for each line of a picture of twice the features' height."""

_EIGHT_BIT = frozenset(
    {"yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "yuv440p", "yuv411p"}
)
_TEN_BIT = frozenset({"yuv420p10le", "yuv422p10le", "yuv444p10le"})
_LIMITED_TO_FULL = np.clip((np.arange(256) - 16) * (255 / 219), 0, 255).round().astype(np.uint8)
_LIMITED_TO_FULL_CHROMA = (
    np.clip((np.arange(256) - 128) * (255 / 224) + 128, 0, 255).round().astype(np.uint8)
)

STROKES_EVERY_MS = 1_000
_STROKES_PX = 640, 480
"""Columns of the picture in which strokes are looked for: of a wide one, of an upright one."""


def frame_strokes(frame: av.VideoFrame, aspect: float, orientation: Orientation) -> Bytes:
    """Where in the upright picture writing may be, (90, 20) packed bits.

    ``aspect`` is the width over the height of the stored picture with square pixels.
    """
    ten_bit = frame.format.name in _TEN_BIT
    if frame.format.name not in _EIGHT_BIT | _TEN_BIT:
        frame = frame.reformat(format="gray")
    wide, upright = _STROKES_PX
    turned = 1 / aspect if orientation.swaps_sides else aspect
    plane = _plane(frame, 0, ten_bit)
    stored = plane.shape[0 if orientation.swaps_sides else 1]
    columns = min(wide if turned >= 1 else upright, stored)
    size = (columns, max(1, round(columns / turned)))
    size = size[::-1] if orientation.swaps_sides else size
    luma = orientation.upright(_shrunk(plane, *size, ten_bit))
    return np.packbits(text_strokes(np.ascontiguousarray(luma)), axis=1)


def frame_features(frame: av.VideoFrame) -> tuple[Bytes, Bytes]:
    """Luma (36, 64) and chroma (2, 9, 16) of one frame, both in full range."""
    if frame.format.name not in _EIGHT_BIT | _TEN_BIT:  # planes that cannot be read as they are
        frame = frame.reformat(format="yuv444p")
    ten_bit = frame.format.name in _TEN_BIT
    sizes = (LUMA_WIDTH, LUMA_HEIGHT), *[(CHROMA_WIDTH, CHROMA_HEIGHT)] * 2
    luma, *chroma = (
        _shrunk(_field(_plane(frame, index, ten_bit), size[1], frame), *size, ten_bit)
        for index, size in enumerate(sizes)
    )
    colour = np.stack(chroma)
    if frame.format.name.startswith("yuvj") or frame.color_range == ColorRange.JPEG:
        return luma, colour  # full range already
    return _LIMITED_TO_FULL[luma], _LIMITED_TO_FULL_CHROMA[colour]


def _field(plane: Plane, height: int, frame: av.VideoFrame) -> Plane:
    """The lines of one field, some of many, or all lines of a small progressive picture.

    Of two fields one: at a cut they may be of two scenes, and in motion they are of two times.
    Frames of telecined film are woven of two without being marked as interlaced.
    """
    lines = max(2, (plane.shape[0] // (2 * height * _LINES_A_CELL) + 1) // 2 * 2)
    least = (4 if height == CHROMA_HEIGHT else 1) * _LINES_A_CELL * height
    enough = plane.shape[0] >= least  # Half the lines of little colour are too few for its cells.
    return plane[::lines] if enough or (frame.interlaced_frame and len(plane) > 1) else plane


def _plane(frame: av.VideoFrame, index: int, ten_bit: bool) -> Plane:
    """A view of the plane's samples, without the padding at the ends of its lines."""
    plane = frame.planes[index]
    if ten_bit:
        wide = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
        return wide[: plane.height, : plane.width]
    samples = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return samples[: plane.height, : plane.width]


def _shrunk(plane: Plane, width: int, height: int, ten_bit: bool) -> Bytes:
    """The plane averaged down to (height, width).

    First to half, then by whole factors, to the size itself or to about twice that:
    OpenCV does both many times faster than broken factors. That leaves out less than
    1 % at the far edges. Of large pictures every few lines are enough: memory is what
    takes the time.
    """
    plane = plane[:: max(1, plane.shape[0] // (2 * height * _LINES_A_CELL))]
    if plane.shape[0] >= 4 * height and plane.shape[1] >= 4 * width:
        plane = _divided(plane, 2, 2)
    rows, columns = plane.shape
    if rows % height or columns % width:
        plane = _divided(plane, max(1, rows // (2 * height)), max(1, columns // (2 * width)))
    small = cv2.resize(plane, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(small >> 2 if ten_bit else small, np.uint8)


def _divided(plane: Plane, down: int, across: int) -> Plane:
    """Means of ``down`` by ``across`` samples each, without what is left over at the far edges."""
    if down == across == 1:
        return plane
    rows, columns = plane.shape[0] // down, plane.shape[1] // across
    whole = plane[: rows * down, : columns * across]
    return cast("Plane", cv2.resize(whole, (columns, rows), interpolation=cv2.INTER_AREA))
