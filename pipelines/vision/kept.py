"""Pictures of sampled frames, kept while a segment is read, so that later steps do not decode them.

A segment has one file of them beside its features: a zip archive, in it a JPEG for each, named by
its time in ms.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from models.contracts import Picture
from pipelines.types import VideoStream

KEPT_LONG_SIDE_PX = 960
"""What stills, faces and writing need; objects and the policy need less."""
_MOST_BYTES = 32 << 20
"""Of a segment: a minute of the most detailed pictures that were tried, half a megabyte each."""
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, 0x111111]
"""Colours in full: 45 to 48 dB from the picture itself, in 100 to 200 KB."""


def keeps_pictures(stream: VideoStream) -> bool:
    """Return whether pictures of a stream are kept.

    Of interlaced ones a field may be smoothed and the other not; tone mapping those of a high
    dynamic range takes longer than decoding the few again that are needed.
    """
    return not (stream.interlaced or stream.hdr)


@dataclass(slots=True)
class KeptFrames:
    """Pictures of a segment as it is read, up to ``_MOST_BYTES``."""

    encoded: dict[int, bytes] = field(default_factory=dict)
    """By time in ms."""
    _size_bytes: int = 0

    def add(self, time_ms: int, picture: Picture) -> None:
        """Keep an upright picture, no side of which is over ``KEPT_LONG_SIDE_PX``, if it fits."""
        if self._size_bytes >= _MOST_BYTES:
            return
        jpeg = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), _JPEG)[1].tobytes()
        self.encoded[time_ms] = jpeg
        self._size_bytes += len(jpeg)

    def to_bytes(self) -> bytes:
        """Return the archive; equal pictures give equal bytes."""
        buffer = io.BytesIO()
        with closing(zipfile.ZipFile(buffer, "w")) as archive:
            for time_ms, jpeg in self.encoded.items():
                archive.writestr(zipfile.ZipInfo(str(time_ms)), jpeg)
        return buffer.getvalue()


def kept_pictures(path: Path, times_ms: Iterable[int], long_side_px: int) -> dict[int, Picture]:
    """Return those of the pictures at ``times_ms`` that the archive at ``path`` has.

    None where ``long_side_px`` is more than they were kept with.
    """
    found: dict[int, Picture] = {}
    if long_side_px > KEPT_LONG_SIDE_PX:
        return found
    with zipfile.ZipFile(path) as archive:
        names = {*archive.namelist()}
        for time_ms in times_ms:
            if str(time_ms) in names:
                jpeg = np.frombuffer(archive.read(str(time_ms)), np.uint8)
                picture = cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB)
                found[time_ms] = _bounded(np.asarray(picture, np.uint8), long_side_px)
    return found


def _bounded(picture: Picture, long_side_px: int) -> Picture:
    height, width = picture.shape[:2]
    scale = long_side_px / max(height, width)
    if scale >= 1:
        return picture
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
