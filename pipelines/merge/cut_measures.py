"""How different two tiny pictures are. Pure array functions over frame features."""

from __future__ import annotations

from enum import StrEnum

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.merge.frame_features import LUMA_HEIGHT, LUMA_WIDTH, Bytes, FrameFeatures

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_BLOCK_ROWS, _BLOCK_COLUMNS = 4, 8
_PIXELS_A_BLOCK = (LUMA_HEIGHT // _BLOCK_ROWS) * (LUMA_WIDTH // _BLOCK_COLUMNS)
_COLUMN_OF_BLOCK = np.repeat(
    np.eye(_BLOCK_COLUMNS, dtype=np.float32), LUMA_WIDTH // _BLOCK_COLUMNS, axis=0
)
"""Adds up the columns of each block when multiplied from the right."""
_CHROMA_WEIGHT = 1.5
"""Chroma differences are that much smaller than luma ones between unrelated pictures."""
_CONTRAST_FLOOR = 12.0
"""Levels added to the contrast that differences are measured against; keeps noise in
flat pictures from counting as change."""
_MOVED_FROM = 3.0
"""Below this mean difference in levels, looking for motion cannot change a decision."""
_BLANK_CONTRAST, _BLACK_BELOW, _WHITE_ABOVE = 6.0, 28.0, 225.0
"""Levels; wide enough for grain, and for the black of a badly mastered file."""


class Blank(StrEnum):
    """A picture of nothing but one of the colours that films fade to."""

    BLACK = "black"
    WHITE = "white"


def blank(level: float, spread: float) -> Blank | None:
    """What a picture of this brightness and contrast is, None where it shows something."""
    if spread > _BLANK_CONTRAST:
        return None
    if level < _BLACK_BELOW:
        return Blank.BLACK
    return Blank.WHITE if level > _WHITE_ABOVE else None


def contrast(luma: Bytes) -> Floats:
    """Standard deviation of each picture (n, rows, columns), in levels."""
    flat = luma.reshape(len(luma), -1)
    return np.asarray(flat.std(axis=1, dtype=np.float64))


def brightness(luma: Bytes) -> Floats:
    """Mean of each picture, in levels."""
    return np.asarray(luma.reshape(len(luma), -1).mean(axis=1, dtype=np.float64))


def mean_difference(first: Bytes, second: Bytes) -> Floats:
    """Mean absolute difference of pictures (n, ...), in levels."""
    difference = np.abs(first.astype(np.int16) - second)
    return np.asarray(difference.reshape(len(first), -1).mean(axis=1, dtype=np.float64))


def moved_difference(first: Bytes, second: Bytes, reach: tuple[int, int]) -> Floats:
    """``mean_difference`` after each of 32 blocks found its best place nearby.

    ``reach`` = (rows, columns) that a block may have moved: exhaustive block
    matching, so that pans, shake and moving things count for little.
    """
    down, across = reach
    padded = np.pad(second, ((0, 0), (down, down), (across, across)), mode="edge")
    before = first.astype(np.float32)[:, :, None, :]
    best = np.full((len(first), _BLOCK_ROWS, _BLOCK_COLUMNS), np.inf, np.float32)
    for y in range(2 * down + 1):
        lines = padded[:, y : y + LUMA_HEIGHT].astype(np.float32)
        placed = np.lib.stride_tricks.sliding_window_view(lines, LUMA_WIDTH, axis=2)
        sums = _block_sums(np.abs(before - placed))
        best = np.minimum(best, sums.min(axis=2))
    return np.asarray(best.mean(axis=(1, 2), dtype=np.float64) / _PIXELS_A_BLOCK)


def _block_sums(difference: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sums over blocks, (n, 36, places, 64) to (n, 4, places, 8); whole numbers, so exact."""
    pictures, rows, places, _ = difference.shape
    narrow = difference @ _COLUMN_OF_BLOCK
    blocks = narrow.reshape(pictures, _BLOCK_ROWS, rows // _BLOCK_ROWS, places, _BLOCK_COLUMNS)
    return np.asarray(blocks.sum(axis=2))


def change(
    features: FrameFeatures, first: Indices, second: Indices, reach: tuple[int, int]
) -> Floats:
    """How much frames ``second`` differ from ``first`` in content, motion aside.

    0 for the same picture, about 0.2 for strong motion, about 0.5 to 1.5 for
    unrelated pictures: differences are taken relative to the contrast.
    """
    before, after = features.luma[first], features.luma[second]
    level = mean_difference(before, after)
    moved = level > _MOVED_FROM
    if moved.any():
        level[moved] = moved_difference(before[moved], after[moved], reach)
    colour = mean_difference(features.chroma[first], features.chroma[second])
    scale = (contrast(before) + contrast(after)) / 2 + _CONTRAST_FLOOR
    return np.asarray((level + _CHROMA_WEIGHT * colour) / scale)


def change_beside_light(first: Bytes, second: Bytes, reach: tuple[int, int]) -> float:
    """Change of two pictures' luma on ``change``'s scale, after giving both one brightness."""
    levels = brightness(np.stack([first, second]))
    level = (levels[0] + levels[1]) / 2
    even = [
        np.clip(picture.astype(np.float64) + level - own, 0, 255).astype(np.uint8)[None]
        for picture, own in zip((first, second), levels, strict=True)
    ]
    moved = moved_difference(even[0], even[1], reach)
    scale = contrast(np.stack([first, second])).mean() + _CONTRAST_FLOOR
    return float(moved[0] / scale)


def likeness(first: Bytes, second: Bytes, reach: int = 6) -> float:
    """Best correlation of two pictures' fine structure over small shifts, -1 to 1.

    Blind to brightness and contrast: it tells a change of light from a change
    of scene.
    """
    a, b = _structure(first), _structure(second)
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    if norm < 1e-6:
        return 0.0
    product = np.fft.rfft2(a) * np.conj(np.fft.rfft2(b))
    correlation = np.fft.irfft2(product, s=a.shape)
    near = np.roll(correlation, (reach, reach), axis=(0, 1))[: 2 * reach + 1, : 2 * reach + 1]
    return float(near.max() / norm)


def _structure(picture: Bytes) -> Floats:
    """The picture without what is smooth over a fifth of its height."""
    grey = picture.astype(np.float64)
    return np.asarray(grey - cv2.blur(grey, (9, 9), borderType=cv2.BORDER_REFLECT))
