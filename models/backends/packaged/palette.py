"""The few colours that make up a picture, clustered as eyes tell them apart.

Colours are compared in OKLab (Björn Ottosson, 2020, public domain): equal
distances there look about equally different, 0.02 being just noticeable.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import Picture

Floats = npt.NDArray[np.float64]

MAX_COLOURS = 5
_SAMPLE_WIDTH, _SAMPLE_HEIGHT = 96, 54
_FIRST_CLUSTERS = 10
_ROUNDS = 12
_SAME_COLOUR = 0.09
"""OKLab distance under which two clusters are shades of one colour."""
_LEAST_SHARE = 0.02
_COLOUR_COUNTS = 10.0
"""A vivid cluster (0.2 in OKLab) takes a place before a grey one of up to thrice its share."""

_RGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def palette(stills: Sequence[Picture], max_colours: int = MAX_COLOURS) -> tuple[str, ...]:
    """1 to ``max_colours`` colours as ``#rrggbb``, most of the pictures first."""
    colours, weights = _histogram(stills)
    centres, shares = _clusters(oklab(colours), weights)
    centres, shares = _merged(centres, shares)
    chosen = _telling(centres, shares)[:max_colours]
    by_share = sorted(chosen, key=lambda index: -shares[index])
    return tuple(_hex(centres[index]) for index in by_share)


def _telling(centres: Floats, shares: Floats) -> list[int]:
    """Clusters worth naming, best first: large ones, strong colours before greys."""
    strength = np.hypot(centres[:, 1], centres[:, 2])
    worth = shares * (1 + _COLOUR_COUNTS * strength)
    enough = (shares >= _LEAST_SHARE) | (shares == shares.max())
    return [int(index) for index in np.argsort(-worth, kind="stable") if enough[index]]


def oklab(rgb: npt.NDArray[np.uint8] | Floats) -> Floats:
    """OKLab (n, 3) of sRGB colours (n, 3), 0 to 255."""
    linear = _linear(np.asarray(rgb, np.float64) / 255)
    return np.asarray(np.cbrt(linear @ _RGB_TO_LMS.T) @ _LMS_TO_LAB.T)


def srgb(lab: Floats) -> npt.NDArray[np.uint8]:
    """The nearest sRGB colours (n, 3) of OKLab ones (n, 3)."""
    lms = (lab @ np.linalg.inv(_LMS_TO_LAB).T) ** 3
    linear = np.clip(lms @ np.linalg.inv(_RGB_TO_LMS).T, 0, 1)
    gamma = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(gamma * 255), np.uint8)


def _linear(encoded: Floats) -> Floats:
    low = encoded / 12.92
    return np.asarray(np.where(encoded <= 0.04045, low, ((encoded + 0.055) / 1.055) ** 2.4))


def _histogram(stills: Sequence[Picture]) -> tuple[Floats, Floats]:
    """Mean colours (n, 3) of the occupied cells of a 32 x 32 x 32 cube, and their shares."""
    size = (_SAMPLE_WIDTH, _SAMPLE_HEIGHT)
    small = [cv2.resize(still, size, interpolation=cv2.INTER_AREA) for still in stills]
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in small]).astype(np.int64)
    cells = (pixels[:, 0] >> 3) << 10 | (pixels[:, 1] >> 3) << 5 | pixels[:, 2] >> 3
    _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
    sums = [np.bincount(cell, weights=pixels[:, channel]) for channel in range(3)]
    return np.stack(sums, axis=1) / counts[:, None], counts / len(pixels)


def _clusters(points: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted k-means from fixed starting points: (centres, shares), no empty ones."""
    centres = _far_apart(points, weights)
    kept: Floats = np.ones(len(centres))
    for _ in range(_ROUNDS):
        nearest = _distances(points, centres).argmin(axis=1)
        shares = np.bincount(nearest, weights=weights, minlength=len(centres))
        sums = [
            np.bincount(nearest, weights=weights * points[:, axis], minlength=len(centres))
            for axis in range(3)
        ]
        held = shares > 0
        centres = np.stack(sums, axis=1)[held] / shares[held, None]
        kept = np.asarray(shares[held], np.float64)
    return centres, kept


def _far_apart(points: Floats, weights: Floats) -> Floats:
    """The commonest colour, then ever the one with most share times distance to those taken."""
    chosen = [int(weights.argmax())]
    while len(chosen) < min(_FIRST_CLUSTERS, len(points)):
        gap = _distances(points, points[chosen]).min(axis=1)
        chosen.append(int((gap * gap * weights).argmax()))
    return points[chosen]


def _merged(centres: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Near-duplicates joined, nearest first, into their weighted mean."""
    while len(centres) > 1:
        gaps = _distances(centres, centres) + np.eye(len(centres)) * 9
        one, other = divmod(int(gaps.argmin()), len(centres))
        if gaps[one, other] >= _SAME_COLOUR:
            break
        share = shares[one] + shares[other]
        centres[one] = (centres[one] * shares[one] + centres[other] * shares[other]) / share
        shares[one] = share
        centres, shares = np.delete(centres, other, axis=0), np.delete(shares, other)
    return centres, shares


def _distances(points: Floats, centres: Floats) -> Floats:
    return np.asarray(np.linalg.norm(points[:, None, :] - centres[None, :, :], axis=2))


def _hex(lab: Floats) -> str:
    red, green, blue = (int(value) for value in srgb(lab[None])[0])
    return f"#{red:02x}{green:02x}{blue:02x}"
