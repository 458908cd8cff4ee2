"""What is kept of each frame: a tiny grey picture and a tinier colour one.

Nothing here compares frames; whatever is pairwise is worked out later over the
whole video, so that it cannot depend on where the video was cut into segments.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

LUMA_WIDTH, LUMA_HEIGHT = 64, 36
CHROMA_WIDTH, CHROMA_HEIGHT = 16, 9
_ARRAYS = ("times_ms", "luma", "chroma", "key_times_ms")

Bytes = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_LEVEL = 1
"""Fastest: the higher levels save a tenth of the size for several times the time."""


@dataclass(frozen=True, slots=True)
class FrameFeatures:
    """Features of frames in order of time.

    ``times_ms`` (n,) strictly rising; ``luma`` (n, 36, 64), full range, whole
    picture stretched to that shape; ``chroma`` (n, 2, 9, 16), Cb and Cr around 128.
    ``pictures`` (n, 27, 48, 3), RGB, are there where a learned detector is to see them.
    ``key_times_ms`` (k,) are the times of those frames that decode without any other.
    """

    times_ms: Times
    luma: Bytes
    chroma: Bytes
    pictures: Bytes | None = None
    key_times_ms: Times = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.times_ms)

    def part(self, start: int, end: int) -> FrameFeatures:
        """Frames ``start`` to ``end``, as views; which are key frames is not kept."""
        pictures = None if self.pictures is None else self.pictures[start:end]
        return FrameFeatures(
            self.times_ms[start:end], self.luma[start:end], self.chroma[start:end], pictures
        )


def no_frames() -> FrameFeatures:
    return FrameFeatures(
        np.empty(0, np.int64),
        np.empty((0, LUMA_HEIGHT, LUMA_WIDTH), np.uint8),
        np.empty((0, 2, CHROMA_HEIGHT, CHROMA_WIDTH), np.uint8),
    )


def in_time_order(
    times_ms: Sequence[int],
    luma: Sequence[Bytes],
    chroma: Sequence[Bytes],
    pictures: Sequence[Bytes] = (),
    key_times_ms: Sequence[int] = (),
) -> FrameFeatures:
    """Features of decoded frames sorted by time; of frames at one time the first is kept.

    Of ``key_times_ms`` those are kept at which there is a frame.
    """
    if not times_ms:
        return no_frames()
    unique, first = np.unique(np.asarray(times_ms, np.int64), return_index=True)
    seen = np.stack(pictures)[first] if pictures else None
    keys = np.intersect1d(unique, np.asarray(key_times_ms, np.int64))
    return FrameFeatures(unique, np.stack(luma)[first], np.stack(chroma)[first], seen, keys)


def joined(parts: Sequence[FrameFeatures]) -> FrameFeatures:
    """Parts of one video laid end to end, without their pictures and key frames."""
    if not parts:
        return no_frames()
    return FrameFeatures(
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.luma for part in parts]),
        np.concatenate([part.chroma for part in parts]),
    )


def to_bytes(features: FrameFeatures) -> bytes:
    """``features`` as an .npz, without their pictures; equal ones give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in _ARRAYS:
            entry = zipfile.ZipInfo(f"{name}.npy", _ZIP_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            content = io.BytesIO()
            np.lib.format.write_array(content, getattr(features, name), allow_pickle=False)
            archive.writestr(entry, content.getvalue(), compresslevel=_ZIP_LEVEL)
    return buffer.getvalue()


def from_bytes(data: bytes) -> FrameFeatures:
    """What ``to_bytes`` stored. Raises ValueError or KeyError on other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return FrameFeatures(**{name: arrays[name] for name in _ARRAYS})


def times_from_bytes(data: bytes) -> tuple[Times, Times]:
    """``times_ms`` and ``key_times_ms`` of what ``to_bytes`` stored, without unpacking the rest.

    Raises ValueError or KeyError on other bytes.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return arrays["times_ms"], arrays["key_times_ms"]


def pictures_to_bytes(pictures: Bytes) -> bytes:
    """Frames' pictures (n, 27, 48, 3), packed."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, pictures, allow_pickle=False)
    return zlib.compress(buffer.getvalue(), _ZIP_LEVEL)


def pictures_from_bytes(data: bytes) -> Bytes:
    """What ``pictures_to_bytes`` packed. Raises zlib.error or ValueError on other bytes."""
    return np.asarray(np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False), np.uint8)
