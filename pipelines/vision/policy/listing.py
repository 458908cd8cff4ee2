"""Hashes to put on a list, of a picture file or of a video's stills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import av.error
import cv2
import numpy as np

from models.contracts import Picture
from pipelines.media.files import CONTAINERS, OPEN_OPTIONS
from pipelines.vision.policy.hashes import listed_hashes

_SHORT_SIDE_PX = 360
_PICTURE_FILES = (
    "bmp_pipe", "gif", "image2", "jpeg_pipe", "png_pipe", "tiff_pipe", "webp_pipe",
)  # fmt: skip
_OPEN_OPTIONS = OPEN_OPTIONS | {"format_whitelist": ",".join((*CONTAINERS, *_PICTURE_FILES))}
_TURNS = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}


class UnreadableMediaError(ValueError):
    """The file is neither a picture nor a video that can be decoded."""


@dataclass(frozen=True, slots=True)
class ListedStill:
    """A still of a file and the hashes under which it is listed."""

    time_ms: int
    hashes: tuple[int, ...]


def listed_stills(path: Path, every_seconds: float) -> Iterator[ListedStill]:
    """A still every ``every_seconds``, those left out that are too plain to recognise.

    Raises UnreadableMediaError.
    """
    found = False
    for time_ms, picture in _pictures(path, every_seconds):
        found = True
        hashes = listed_hashes(picture)
        if hashes:
            yield ListedStill(time_ms, hashes)
    if not found:
        raise UnreadableMediaError(f"{path} holds no picture that can be decoded.")


def _pictures(path: Path, every_seconds: float) -> Iterator[tuple[int, Picture]]:
    due = float("-inf")
    try:
        with av.open(str(path), options=_OPEN_OPTIONS) as container:
            if not container.streams.video:
                return
            for frame in container.decode(container.streams.video[0]):
                time = float(frame.time or 0.0)
                if time >= due:
                    due = time + every_seconds
                    yield round(time * 1000), _upright(frame)
    except av.error.FFmpegError as error:
        raise UnreadableMediaError(f"{path} cannot be decoded: {error}") from error


def _upright(frame: av.VideoFrame) -> Picture:
    """The picture turned as its container says, small enough for a hash."""
    picture = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    scale = _SHORT_SIDE_PX / min(picture.shape[:2])
    if scale < 1:
        size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
    turn = _TURNS.get(int(frame.rotation) % 360)
    return picture if turn is None else np.asarray(cv2.rotate(picture, turn), np.uint8)
