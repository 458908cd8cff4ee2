"""Painting on float32 RGB arrays (height, width, 3), values 0 to 1."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.float32]
"""(height, width, 3), RGB, 0 to 1."""
Mask = NDArray[np.float32]
"""(height, width), 0 to 1."""
Color = tuple[float, float, float]
Point = tuple[float, float]


def rgb(code: str) -> Color:
    """``#rrggbb`` as three numbers from 0 to 1."""
    return (int(code[1:3], 16) / 255, int(code[3:5], 16) / 255, int(code[5:7], 16) / 255)


def cloud_noise(width: int, height: int, cell: int, octaves: int, seed: int) -> Mask:
    """Fractal value noise, 0 to 1; ``cell`` is the size of the largest blobs in pixels."""
    random = np.random.default_rng(seed)
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        size = max(1, cell >> octave)
        grid = random.random((height // size + 3, width // size + 3), dtype=np.float32)
        shape = ((width // size + 3) * size, (height // size + 3) * size)
        smooth = cv2.resize(grid, shape, interpolation=cv2.INTER_CUBIC)
        total += smooth[size : size + height, size : size + width] / 2**octave
    low, high = np.percentile(total, (1, 99))
    noise: Mask = np.clip((total - low) / (high - low), 0, 1).astype(np.float32)
    return noise


def ellipse_mask(
    shape: tuple[int, int], center: Point, axes: Point, angle: float = 0.0, soft: float = 0.0
) -> Mask:
    """A filled ellipse, ``axes`` its half widths, blurred by ``soft`` pixels."""
    mask = np.zeros(shape, np.float32)
    middle = (round(center[0] * 16), round(center[1] * 16))
    half = (max(1, round(axes[0] * 16)), max(1, round(axes[1] * 16)))
    cv2.ellipse(mask, middle, half, angle, 0, 360, 1.0, -1, cv2.LINE_AA, 4)
    return soften(mask, soft)


def polygon_mask(shape: tuple[int, int], points: list[Point], soft: float = 0.0) -> Mask:
    """A filled polygon, blurred by ``soft`` pixels."""
    mask = np.zeros(shape, np.float32)
    corners = np.round(np.array(points) * 16).astype(np.int32)
    cv2.fillPoly(mask, [corners], 1.0, cv2.LINE_AA, 4)
    return soften(mask, soft)


def stroke_mask(
    shape: tuple[int, int], points: list[Point], thickness: int, soft: float = 0.0
) -> Mask:
    """An open line through the points."""
    mask = np.zeros(shape, np.float32)
    corners = np.round(np.array(points) * 16).astype(np.int32)
    cv2.polylines(mask, [corners], False, 1.0, thickness, cv2.LINE_AA, 4)
    return soften(mask, soft)


def soften(mask: Mask, soft: float) -> Mask:
    """Gaussian blur with a standard deviation of ``soft`` pixels (0: none)."""
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), soft), np.float32) if soft > 0 else mask


def paint(picture: Picture, color: Color | Picture, mask: Mask, strength: float = 1.0) -> None:
    """Lay a colour (or a picture) over ``picture`` in place where the mask says."""
    weight = (mask * strength)[..., np.newaxis]
    picture += (np.asarray(color, np.float32) - picture) * weight


def glow(picture: Picture, color: Color, mask: Mask, strength: float = 1.0) -> None:
    """Add light in place; it saturates softly (screen blending)."""
    light = np.asarray(color, np.float32) * (mask * strength)[..., np.newaxis]
    picture += light * (1 - picture)


def shade(picture: Picture, amount: Mask, strength: float) -> None:
    """Multiply brightness in place by 1 +- ``strength`` after a 0..1 texture."""
    picture *= (1 + strength * (amount - 0.5) * 2)[..., np.newaxis]
