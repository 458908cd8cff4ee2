"""Shots to edit programmes from: real footage beside the project, and drawn worlds.

A shot is a list of RGB pictures of one size, without any cut in it. Shots of one ``group`` show
the same place, so a join of two of them would be a jump cut; programmes never place them side
by side.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.programmes.worlds import WORLDS

MEDIA = Path(__file__).resolve().parents[2] / "../shared/media"

Picture = npt.NDArray[np.uint8]
Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class Footage:
    """A stretch of a real file that is one shot (see MANIFEST.md and the truth files there)."""

    group: str
    path: str
    start_seconds: float
    end_seconds: float
    held_out: bool = False
    """Used for the reported seed only: no threshold was ever tuned on generated edits of it."""


def _stretches(
    group: str, path: str, times: Sequence[tuple[float, float]], held_out: bool = False
) -> list[Footage]:
    return [Footage(group, path, start, end, held_out) for start, end in times]


FOOTAGE: tuple[Footage, ...] = (
    *(
        Footage(f"bikes-{index}", "cuts/bikes.mp4", start, end)
        for index, (start, end) in enumerate(
            [(0.0, 1.18), (1.24, 3.0), (3.08, 5.44), (5.52, 7.44), (7.52, 9.64)]
        )
    ),
    *_stretches("bottle", "cuts/bottle-detection.mp4", [(0, 6), (14, 20), (28, 34)]),
    *_stretches("friday", "cuts/friday.mp4", [(0, 3), (3.1, 6.1)]),
    *(
        Footage(f"bunny-{index}", "cuts/big_buck_bunny_0_30.webm", start, end)
        for index, (start, end) in enumerate(
            [(2.5, 11.7), (11.85, 15.6), (15.75, 22.9), (23.0, 29.9)]
        )
    ),
    *_stretches("car", "cuts/car-detection.mp4", [(0, 8), (16, 24)], held_out=True),
    *_stretches("flower", "cuts/flower.mp4", [(0, 5)], held_out=True),
    *(
        Footage(f"nasa-{index}", "cuts/nasa_13013.mp4", start, end, held_out=True)
        for index, (start, end) in enumerate([(0.0, 5.0), (6.0, 8.0), (8.2, 12.8)])
    ),
    Footage(
        "phone",
        "odd/internal_emulator_transformer_output_180_rotated.mp4",
        0,
        4.9,
        held_out=True,
    ),
    Footage("avi", "formats/sample.avi", 1.4, 4.0, held_out=True),
    Footage("range", "formats/bt709_full_range.mp4", 0, 1, held_out=True),
    Footage("handset", "odd/sample_15fps_720p_1s.mp4", 0, 1, held_out=True),
)


class ShotLibrary:
    """Hands out shots of any length, sized alike; decodes each real stretch once."""

    def __init__(self, size: Size, with_held_out: bool) -> None:
        self._size = size
        self._real = [
            footage
            for footage in FOOTAGE
            if (with_held_out or not footage.held_out) and (MEDIA / footage.path).exists()
        ]
        self._decoded: dict[Footage, list[Picture]] = {}

    def draw(self, chance: random.Random, frames: int, not_group: str) -> tuple[str, list[Picture]]:
        """A shot of up to ``frames`` pictures from another group than ``not_group``."""
        while True:
            if self._real and chance.random() < 0.6:
                footage = chance.choice(self._real)
                if footage.group != not_group:
                    return footage.group, self._part(footage, chance, frames)
            else:
                world = chance.choice(sorted(WORLDS))
                if world != not_group:
                    return world, WORLDS[world](chance, self._size, frames)

    def _part(self, footage: Footage, chance: random.Random, frames: int) -> list[Picture]:
        if footage not in self._decoded:
            self._decoded[footage] = decoded(footage, self._size)
        pictures = self._decoded[footage]
        count = min(frames, len(pictures))
        first = chance.randrange(len(pictures) - count + 1)
        return pictures[first : first + count]


def decoded(footage: Footage, size: Size) -> list[Picture]:
    """The stretch's pictures, cropped to the shape of ``size`` and scaled to it."""
    pictures = []
    with av.open(str(MEDIA / footage.path)) as container:
        for frame in container.decode(container.streams.video[0]):
            if frame.time < footage.start_seconds:
                continue
            if frame.time >= footage.end_seconds:
                break
            pictures.append(fitted(frame.to_ndarray(format="rgb24"), size))
    return pictures


def fitted(picture: Picture, size: Size) -> Picture:
    """The middle of the picture, in the shape and size asked for."""
    height, width = picture.shape[:2]
    scale = max(size[0] / width, size[1] / height)
    keep_width, keep_height = round(size[0] / scale), round(size[1] / scale)
    left, top = (width - keep_width) // 2, (height - keep_height) // 2
    part = picture[top : top + keep_height, left : left + keep_width]
    shrinks = scale < 1
    way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(part, size, interpolation=way), np.uint8)
