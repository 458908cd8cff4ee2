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
from pipelines.media.decoding import upright
from pipelines.media_types import Orientation
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


_FREQUENT_MS = 2_500
"""Mean distance of key frames, up to which only these are kept: with others, which take the loop
filter of all that they refer to, 1080p with a key frame every 1.4 s took 8 % longer in all, 720p
with one every 5 s 21 % less."""


def has_frequent_keys(stream: VideoStream) -> bool:
    """Return whether only key frames of a stream are kept."""
    return stream.end_ms <= stream.keyframe_count * _FREQUENT_MS


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
                picture = np.asarray(cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB), np.uint8)
                shape = picture.shape[1] / picture.shape[0], Orientation(), long_side_px
                found[time_ms] = upright(picture, *shape)
    return found
