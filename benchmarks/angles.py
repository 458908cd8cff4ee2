"""Precision of each value of ``shotAngle`` that the packaged describer gives, on labelled stills.

    .venv/bin/python -m benchmarks.angles [--tuning] [--verbose]

``angles.toml`` has what a person sees. Stills turned by 12 to 25 degrees are dutch by construction:
each of those that are at eye level, once to either side, cut to what the turn leaves whole. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np

from benchmarks.descriptions import read_frame
from benchmarks.programmes.shots import MEDIA
from benchmarks.scenes import real_files
from models.backends.packaged.faces import FaceFinder, shot_angle_of
from models.contracts import Picture, ShotAngle
from models.registry import MTCNN

_MUSIC_VIDEO = "music video"
_DARK = 30
"""Level that columns and rows of bars do not have."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    finder = FaceFinder(MTCNN.paths(None))
    counts: Counter[str] = Counter()
    for name, picture, labels in stills("tuning" if options.tuning else "reported"):
        said = shot_angle_of(picture, finder.find_marked(picture))
        counts[f"{labels[0]} stills"] += 1
        counts[f"{said} said"] += 1
        counts[f"{said} right"] += said in labels or said is ShotAngle.UNKNOWN
        if options.verbose and said is not ShotAngle.UNKNOWN:
            print(f"{name}: {said}, labelled {labels}")
    print(json.dumps(dict(sorted(counts.items()))))


def stills(part: str) -> Iterator[tuple[str, Picture, list[str]]]:
    """Each labelled still of a part, without bars, and those turned."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    for number, (name, labels) in enumerate(table[part].items()):
        path, _, place = name.partition("@")
        picture = (
            _music_video(int(place))
            if path == _MUSIC_VIDEO
            else read_frame(MEDIA / path, float(place or 0))
        )
        lit = picture.max(axis=2) > _DARK
        rows, columns = (np.flatnonzero(lit.mean(axis=axis) > 0.02) for axis in (1, 0))
        if len(rows) and len(columns):
            picture = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        yield name, picture, labels
        if "eye_level" in labels:
            for degrees in (12 + number % 14, -12 - (number + 7) % 14):
                yield f"{name} turned by {degrees}", turned(picture, degrees), [ShotAngle.DUTCH]


def turned(picture: Picture, degrees: float) -> Picture:
    """The largest part of the turned picture, of its shape, that has no corner outside it."""
    rows, columns = picture.shape[:2]
    sine, cosine = abs(math.sin(math.radians(degrees))), math.cos(math.radians(degrees))
    scale = min(rows / (columns * sine + rows * cosine), columns / (columns * cosine + rows * sine))
    matrix = cv2.getRotationMatrix2D((columns / 2, rows / 2), degrees, 1 / scale)
    return np.asarray(cv2.warpAffine(picture, matrix, (columns, rows)), np.uint8)


def _music_video(number: int) -> Picture:
    with av.open(str(real_files()[-1].path)) as container:
        frame = next(islice(container.decode(video=0), number, None))
        return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


if __name__ == "__main__":
    main()
