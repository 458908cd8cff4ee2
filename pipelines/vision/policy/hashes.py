"""Perceptual hashes of pictures: equal or near for what looks the same.

The hash is imagehash's ``phash`` of 64 bits (the signs of the lowest frequencies of a
discrete cosine transform), of the picture without plain borders. It outlasts re-encoding and
scaling, but not a crop; so a picture that is put on a list is hashed as it is and as it looks
with its edges cut off in several ways, and one of these is near to any small crop of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import imagehash
import numpy as np
from PIL import Image

from models.contracts import Picture

_PLAIN_CONTRAST = 12.0
"""Levels. The hash of a plainer picture says little, and many plain pictures share one."""
_BORDER_CONTRAST = 3.0
"""Lines at the edges with less are border: letterboxes, pillarboxes."""
_LEAST_INSIDE = 0.4
"""Of the height or width must be left between borders, or they are none."""
_CROPS = (
    *((even, even, even, even) for even in (0.03, 0.06, 0.10)),
    *((cut, 0.0, 0.0, 0.0) for cut in (0.05, 0.10)),
    *((0.0, cut, 0.0, 0.0) for cut in (0.05, 0.10)),
    *((0.0, 0.0, cut, 0.0) for cut in (0.05, 0.10)),
    *((0.0, 0.0, 0.0, cut) for cut in (0.05, 0.10)),
)
"""Shares cut off at the left, top, right and bottom."""


def still_hash(picture: Picture) -> int | None:
    """The hash of a picture that is looked at; None for one too plain to tell."""
    inside = without_borders(picture)
    return None if _is_plain(inside) else _phash(inside)


def listed_hashes(picture: Picture) -> tuple[int, ...]:
    """Hashes under which a picture is put on a list, no repeats; none if it is too plain."""
    inside = without_borders(picture)
    if _is_plain(inside):
        return ()
    return tuple(dict.fromkeys(_phash(part) for part in (inside, *_cropped(inside))))


def without_borders(picture: Picture) -> Picture:
    """The picture inside plain borders."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    rows = _inside(grey.std(axis=1))
    columns = _inside(grey[rows].std(axis=0))
    return np.ascontiguousarray(picture[rows, columns])


def _inside(spreads: np.typing.NDArray[np.float32]) -> slice:
    shown = np.flatnonzero(spreads > _BORDER_CONTRAST)
    if len(shown) == 0 or shown[-1] + 1 - shown[0] < _LEAST_INSIDE * len(spreads):
        return slice(0, len(spreads))
    return slice(int(shown[0]), int(shown[-1]) + 1)


def _is_plain(picture: Picture) -> bool:
    return float(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).std()) < _PLAIN_CONTRAST


def _cropped(picture: Picture) -> Iterator[Picture]:
    height, width = picture.shape[:2]
    for left, top, right, bottom in _CROPS:
        rows = slice(round(top * height), height - round(bottom * height))
        columns = slice(round(left * width), width - round(right * width))
        yield picture[rows, columns]


def _phash(picture: Picture) -> int:
    bits: Sequence[bool] = imagehash.phash(Image.fromarray(picture)).hash.ravel().tolist()
    return int("".join("1" if bit else "0" for bit in bits), 2)
