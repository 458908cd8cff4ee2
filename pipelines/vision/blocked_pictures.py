"""Recognising blocked pictures: perceptual hashes, and those of a file to put on a list.

The hash is imagehash's ``phash`` of 64 bits (the signs of the lowest frequencies of a
discrete cosine transform), of the picture without plain borders. It outlasts re-encoding and
scaling, but not a crop; so a picture that is put on a list is hashed as it is and with its
edges cut off in several ways, and one of these is near to any small crop of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import av.error
import cv2
import imagehash
import numpy as np
from PIL import Image

from models.contracts import Picture
from pipelines.media.files import CONTAINERS, EXIF_ORIENTATIONS, OPEN_OPTIONS, orientation_of
from pipelines.media_types import Orientation

_PLAIN_CONTRAST = 12.0
"""Levels. The hash of a plainer picture identifies nothing: many plain pictures share one."""
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
    """Return the hash of a still to check; None for one too plain to recognise."""
    inside = without_borders(picture)
    return None if _is_plain(inside) else _phash(inside)


def listed_hashes(picture: Picture) -> tuple[int, ...]:
    """Hashes under which a picture is put on a list, no repeats; none if it is too plain."""
    inside = without_borders(picture)
    if _is_plain(inside):
        return ()
    return tuple(dict.fromkeys(_phash(part) for part in (inside, *_cropped(inside))))


def without_borders(picture: Picture) -> Picture:
    """Return the picture inside plain borders."""
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


_SHORT_SIDE_PX = 360
_PICTURE_FILES = (
    "bmp_pipe", "gif", "image2", "jpeg_pipe", "png_pipe", "tiff_pipe", "webp_pipe",
)  # fmt: skip
_OPEN_OPTIONS = OPEN_OPTIONS | {"format_whitelist": ",".join((*CONTAINERS, *_PICTURE_FILES))}
_EXIF_ORIENTATION = 0x0112


class UnreadableMediaError(ValueError):
    """The file is neither a picture nor a video that can be decoded."""


@dataclass(frozen=True, slots=True)
class ListedStill:
    """A still of a file and the hashes under which it is listed."""

    time_ms: int
    hashes: tuple[int, ...]


def listed_stills(path: Path, every_seconds: float) -> Iterator[ListedStill]:
    """Yield a still every ``every_seconds``, those left out that are too plain to recognise. Raises
    UnreadableMediaError."""
    found = False
    for time_ms, picture in _pictures(path, every_seconds):
        found = True
        hashes = listed_hashes(picture)
        if hashes:
            yield ListedStill(time_ms, hashes)
    if not found:
        raise UnreadableMediaError(f"{path} holds no picture that can be decoded.")


def _pictures(path: Path, every_seconds: float) -> Iterator[tuple[int, Picture]]:
    due, stated = float("-inf"), _find_exif_orientation(path)
    try:
        with av.open(str(path), options=_OPEN_OPTIONS) as container:
            if not container.streams.video:
                return
            for frame in container.decode(container.streams.video[0]):
                time = float(frame.time or 0.0)
                if time >= due:
                    due = time + every_seconds
                    orientation = stated or orientation_of(frame)
                    yield round(time * 1000), orientation.upright(_small(frame))
    except av.error.FFmpegError as error:
        raise UnreadableMediaError(f"{path} cannot be decoded: {error}") from error


def _find_exif_orientation(path: Path) -> Orientation | None:
    """Of a picture file; None of what is none."""
    try:
        with Image.open(path) as picture:
            return EXIF_ORIENTATIONS.get(picture.getexif().get(_EXIF_ORIENTATION, 1))
    except (OSError, Image.DecompressionBombError):
        return None


def _small(frame: av.VideoFrame) -> Picture:
    """Return the picture as stored, small enough for a hash."""
    picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    scale = _SHORT_SIDE_PX / min(picture.shape[:2])
    if scale < 1:
        size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
    return picture
