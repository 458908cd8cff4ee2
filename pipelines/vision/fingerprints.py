"""Fingerprints of shots: small pictures of what each shows, to find it again in other media.

Every ``EVERY_MS`` of a shot, twice as often in a short one, counted from its own start so that
trimming the film before it changes nothing, one picture of the features' luma is kept: the active
picture without bars, upright, stretched to ROWS x COLUMNS, its levels replaced by their ranks
(histogram equalisation), in 16 steps. So it outlasts re-encoding, scaling, bars and any new grade
that keeps darker places darker; colour is not kept, and a picture that is all but plain is marked,
for it identifies nothing.

``descriptors`` are what is compared: the low frequencies of the discrete cosine transform of the
whole picture, or of a window of it where the other was reframed, as unit vectors. The cosine of two
is near 1 for the same frame. Comparing two cuts uses them (``comparison``); an index of near
duplicates may as well: 288 bytes a sample, two samples a second, four in short shots.

NumPy only: the API process compares.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROWS, COLUMNS = 18, 32
EVERY_MS = 500
SHORT_MS = 4_000
"""A shot of at most this length has few samples, and trimmed they lie between those of before."""
MOST_SAMPLES = 64
"""A shot: longer than 32 seconds is sampled the more seldom."""
FREQUENCIES = 8
"""Lowest ones of either direction, the mean left out: 63 numbers a picture."""
_PLAIN_LEVELS = 3.0
"""Standard deviation of what identifies nothing: black, white, fog."""
_STEPS = 16

Pictures = npt.NDArray[np.uint8]
"""(n, ROWS, COLUMNS), 0 to 15."""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PictureWindow:
    """A part of a picture, in shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


WHOLE = PictureWindow(0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprints:
    """Of all shots of a video in order, end to end; without cuts it is one shot.

    ``starts_ms``, ``ends_ms`` (shots,); ``counts`` (shots,): how many samples each has;
    ``times_ms``, ``plain`` (samples,): when each is in the video, and whether it is all but plain;
    ``pictures`` (samples, ROWS, COLUMNS).
    """

    starts_ms: npt.NDArray[np.int64]
    ends_ms: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    times_ms: npt.NDArray[np.int64]
    plain: npt.NDArray[np.bool_]
    pictures: Pictures

    @property
    def shots(self) -> npt.NDArray[np.int64]:
        """The shot of each sample."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def to_bytes(self) -> bytes:
        """Equal ones give equal bytes."""
        buffer = io.BytesIO()
        packed = self.pictures[..., ::2] << 4 | self.pictures[..., 1::2]
        arrays = self.starts_ms, self.ends_ms, self.counts, self.times_ms, self.plain, packed
        for array in arrays:
            np.lib.format.write_array(buffer, array, allow_pickle=False)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Fingerprints:
        """Return what ``to_bytes`` wrote. Raises ValueError on other bytes."""
        buffer = io.BytesIO(data)
        starts, ends, counts, times, plain, packed = (
            np.lib.format.read_array(buffer, allow_pickle=False) for _ in range(6)
        )
        pictures = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1, ROWS, COLUMNS)
        return Fingerprints(starts, ends, counts, times, plain, pictures)


def sample_times(start_ms: int, end_ms: int) -> npt.NDArray[np.int64]:
    """Return where a shot is sampled: in the middle of each ``EVERY_MS``, or of more in a long one;
    in a short one also between these."""
    every = EVERY_MS
    while (end_ms - start_ms) > every * MOST_SAMPLES:
        every *= 2
    first = every // 2
    if end_ms - start_ms <= SHORT_MS:
        every //= 2
    count = max(1, (end_ms - start_ms - 2 * first) // every + 1)
    if count == 1:
        return np.array([(start_ms + end_ms) // 2], np.int64)
    return start_ms + first + every * np.arange(count, dtype=np.int64)


def picture_of(luma: npt.NDArray[np.uint8]) -> tuple[Pictures, bool]:
    """(ROWS, COLUMNS) of an upright luma without bars, and whether it is all but plain."""
    small = averaged(luma.astype(np.float32), ROWS, COLUMNS)
    plain = bool(small.std() < _PLAIN_LEVELS)
    # Ranks; equal levels have one, else noise would order them.
    flat = np.round(small).ravel()
    _, inverse, counts = np.unique(flat, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - counts / 2)[inverse] / flat.size
    return (ranks * _STEPS).astype(np.uint8).clip(0, _STEPS - 1).reshape(ROWS, COLUMNS), plain


def averaged(picture: Floats, rows: int, columns: int) -> Floats:
    """Return the picture's means over a grid of rows and columns."""
    height, width = picture.shape
    means = _means(height, 0.0, 1.0, rows) @ picture @ _means(width, 0.0, 1.0, columns).T
    found: Floats = means.astype(np.float32)
    return found


@functools.lru_cache(maxsize=512)
def _means(size: int, first: float, length: float, count: int) -> Floats:
    """(count, size): means of ``count`` equal parts of a stretch of ``size`` places."""
    edges = (first + length * np.arange(count + 1) / count) * size
    places = np.arange(size)
    low, high = edges[:-1, None], edges[1:, None]
    shared = np.clip(np.minimum(high, places + 1) - np.maximum(low, places), 0, None)
    weights: Floats = (shared / (high - low)).astype(np.float32)
    return weights


NOTHING = np.zeros((ROWS, COLUMNS), np.uint8), True
"""Of a sample that could not be decoded."""


def joined_shots(
    spans: Sequence[tuple[int, int]], samples: Mapping[int, tuple[Pictures, bool]]
) -> Fingerprints:
    """Shots by their starts and ends, with what ``picture_of`` found at their sample times."""
    times = [sample_times(*span) for span in spans]
    shown = [samples.get(int(each), NOTHING) for own in times for each in own]
    return Fingerprints(
        np.array([start for start, _ in spans], np.int64),
        np.array([end for _, end in spans], np.int64),
        np.array([len(own) for own in times], np.int64),
        np.concatenate(times),
        np.array([plain for _, plain in shown], np.bool_),
        np.stack([picture for picture, _ in shown]),
    )


def descriptors(pictures: Pictures, window: PictureWindow = WHOLE) -> Floats:
    """Unit vectors (n, 63) of a window of each picture."""
    basis = _basis(window)
    flat = pictures.reshape(len(pictures), ROWS * COLUMNS).astype(np.float32)
    found: Floats = flat @ basis
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-6)
    return found


@functools.lru_cache(maxsize=512)
def _basis(window: PictureWindow) -> Floats:
    """(ROWS * COLUMNS, 63): what a picture's window has of each low frequency."""
    down = _cosines(ROWS) @ _means(ROWS, window.top, window.height, ROWS)
    across = _cosines(COLUMNS) @ _means(COLUMNS, window.left, window.width, COLUMNS)
    both = np.einsum("ir,jc->rcij", down, across).reshape(ROWS * COLUMNS, -1)
    found: Floats = np.ascontiguousarray(both[:, 1:], np.float32)
    return found


def _cosines(size: int) -> Floats:
    """(FREQUENCIES, size): the orthonormal DCT-II, its lowest frequencies."""
    places = (np.arange(size) + 0.5) * np.pi / size
    found = np.cos(np.arange(FREQUENCIES)[:, None] * places) * np.sqrt(2 / size)
    found[0] /= np.sqrt(2)
    cosines: Floats = found.astype(np.float32)
    return cosines
