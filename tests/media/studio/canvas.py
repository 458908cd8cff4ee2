"""Painting on float32 RGB arrays (height, width, 3), values 0 to 1.

Shots are painted at twice the film's size and scaled down, which is what smooths edges.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FILM_WIDTH, FILM_HEIGHT = 640, 360
SCALE = 2
WIDTH, HEIGHT = FILM_WIDTH * SCALE, FILM_HEIGHT * SCALE

Picture = NDArray[np.float32]
"""(height, width, 3), RGB, 0 to 1."""
Mask = NDArray[np.float32]
"""(height, width), 0 to 1."""
Color = tuple[float, float, float]
Point = tuple[float, float]


def rgb(code: str) -> Color:
    """``#rrggbb`` as three numbers from 0 to 1."""
    return (int(code[1:3], 16) / 255, int(code[3:5], 16) / 255, int(code[5:7], 16) / 255)


def gradient(width: int, height: int, stops: list[tuple[float, str]]) -> Picture:
    """A vertical gradient through ``(position 0..1, colour)`` stops."""
    rows = np.linspace(0, 1, height)
    positions = [position for position, _ in stops]
    channels = [np.interp(rows, positions, [rgb(code)[c] for _, code in stops]) for c in range(3)]
    column: Picture = np.stack(channels, axis=-1).astype(np.float32)
    return np.repeat(column[:, np.newaxis], width, axis=1)


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


def ridge(width: int, base: float, height: float, cell: int, seed: int) -> NDArray[np.float32]:
    """A mountain line: for each column the y of its top, jagged at all sizes."""
    random = np.random.default_rng(seed)
    line = np.zeros(width, np.float32)
    size, weight = cell, 1.0
    while size >= 4:
        knots = random.random(width // size + 2)
        line += weight * np.interp(np.arange(width), np.arange(len(knots)) * size, knots)
        size, weight = size // 2, weight * 0.5
    line = (line - line.min()) / (line.max() - line.min())
    top: NDArray[np.float32] = (base - height * line).astype(np.float32)
    return top


def below(line: NDArray[np.float32], height: int) -> Mask:
    """1 below the line, 0 above, one pixel soft."""
    rows = np.arange(height, dtype=np.float32)[:, np.newaxis]
    mask: Mask = np.clip(rows - line[np.newaxis], 0, 1).astype(np.float32)
    return mask


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


def write_text(
    picture: Picture, text: str, center: Point, size: int, color: Color, *, spacing: int = 0
) -> None:
    """Write one line in Pillow's bundled font, centred, letters ``spacing`` pixels apart."""
    font: Any = ImageFont.load_default(size)
    widths = [font.getlength(letter) + spacing for letter in text]
    image = Image.new("L", (picture.shape[1], picture.shape[0]))
    pen, x = ImageDraw.Draw(image), center[0] - (sum(widths) - spacing) / 2
    for letter, width in zip(text, widths, strict=True):
        pen.text((x, center[1]), letter, font=font, fill=255, anchor="lm")
        x += width
    paint(picture, color, np.asarray(image).astype(np.float32) / np.float32(255))


def vignette(picture: Picture, strength: float) -> None:
    """Darken the corners in place."""
    height, width = picture.shape[:2]
    x = np.linspace(-1, 1, width, dtype=np.float32)[np.newaxis]
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, np.newaxis]
    picture *= (1 - strength * np.clip((x * x + y * y) / 2, 0, 1) ** 1.5)[..., np.newaxis]


def warp(picture: Picture, zoom: float, center: Point, size: tuple[int, int]) -> Picture:
    """Look at ``picture`` through a frame of ``size`` (width, height) around ``center``."""
    matrix = np.array(
        [
            [zoom, 0, size[0] / 2 - zoom * center[0]],
            [0, zoom, size[1] / 2 - zoom * center[1]],
        ]
    )
    flags = cv2.INTER_LINEAR
    view = cv2.warpAffine(picture, matrix, size, flags=flags, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(view, np.float32)


def to_film(picture: Picture) -> NDArray[np.uint8]:
    """Scale a painting down to the film's size, 8 bits a channel."""
    small = cv2.resize(picture, (FILM_WIDTH, FILM_HEIGHT), interpolation=cv2.INTER_AREA)
    film: NDArray[np.uint8] = np.clip(small * 255 + 0.5, 0, 255).astype(np.uint8)
    return film
