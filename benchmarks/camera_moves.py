"""Precision of the words for camera motion, on made moves over real stills.

    .venv/bin/python -m benchmarks.camera_moves

A window goes over each picture of the shared media's ``objects`` for four seconds: it stands (with
noise of a sensor), stands while something of a fifth of its height passes, pans, tilts, zooms at a
speed by chance, or is shaken as a hand does it (a sway of one to three turns a second, of 0.5 to
3 % of the width). Precision of a word: of the windows that get it, those that are moved so. The
last line is JSON.
"""

from __future__ import annotations

import json
from collections import Counter

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.programmes.shots import MEDIA
from models.contracts import CameraMotion
from pipelines.vision.camera_motion import MAX_PAIRS, PAIR_GAP_MS, PairMotion, label, pair_motion
from pipelines.vision.features import LUMA_HEIGHT, LUMA_WIDTH

_SIZE = (640, 360)
_PASSING = "something passes"
_SPEEDS = (0.03, 0.2)
"""Of pans and tilts in widths or heights a second, of zooms in sizes a second."""


def main() -> None:
    """Measure, print."""
    kinds = [kind for kind in CameraMotion if kind is not CameraMotion.UNKNOWN] + [_PASSING]
    counts: Counter[tuple[str, str]] = Counter()
    for number, path in enumerate(sorted((MEDIA / "objects").glob("*.jpg"))):
        still = np.asarray(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE), np.uint8)
        scale = min(1.0, 960 / max(still.shape))
        shown = cv2.resize(still, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        for kind in kinds:
            chance = np.random.default_rng([number, kinds.index(kind)])
            found = label(moves(shown, kind, chance))
            counts[str(kind), str(found)] += 1
    figures = {}
    for word in map(str, kinds[:-1]):
        said = {kind: count for (kind, found), count in counts.items() if found == word}
        right = said.get(word, 0) + (said.get(_PASSING, 0) if word == CameraMotion.STATIC else 0)
        there = sum(count for (kind, _), count in counts.items() if kind == word)
        print(f"{word:10} said {sum(said.values()):4} right {right:4} of {there}: {said}")
        precision = right / sum(said.values()) if said else None
        figures[word] = {"precision": precision and round(precision, 3),
                         "recall": round(said.get(word, 0) / there, 3)}  # fmt: skip
    print(json.dumps(figures))


def moves(still: cv2.typing.MatLike, kind: str, chance: np.random.Generator) -> list[PairMotion]:
    """As the scene's pairs of frames show them."""
    seconds, gap = 4.0, PAIR_GAP_MS / 1000
    starts = np.linspace(0, seconds - gap, min(MAX_PAIRS, int(seconds / gap)))
    speed = float(np.exp(chance.uniform(*np.log(_SPEEDS))))
    sway = chance.uniform(0.005, 0.03), chance.uniform(1, 3, (2, 3)), chance.uniform(0, 7, (2, 3))

    def frame(at: float) -> npt.NDArray[np.uint8]:
        across = down = 0.0
        size, way = 0.6, speed * (at - seconds / 2)
        if kind in {CameraMotion.PAN_LEFT, CameraMotion.PAN_RIGHT}:
            across = way if kind == CameraMotion.PAN_RIGHT else -way
        elif kind in {CameraMotion.TILT_UP, CameraMotion.TILT_DOWN}:
            down = way if kind == CameraMotion.TILT_DOWN else -way
        elif kind in {CameraMotion.ZOOM_IN, CameraMotion.ZOOM_OUT}:
            size *= float(np.exp(-way if kind == CameraMotion.ZOOM_IN else way))
        elif kind == CameraMotion.HANDHELD:
            reach, turns, phases = sway
            across, down = reach * np.sin(2 * np.pi * turns * at + phases).mean(axis=1) * 1.7
        rows, columns = still.shape[:2]
        scale = _SIZE[0] / (size * columns)
        left = columns / 2 + across * size * columns - _SIZE[0] / 2 / scale
        top = rows / 2 + down * _SIZE[1] / scale - _SIZE[1] / 2 / scale
        view = np.array([[scale, 0, -left * scale], [0, scale, -top * scale]])
        shown = cv2.warpAffine(still, view, _SIZE, borderMode=cv2.BORDER_REFLECT)
        if kind == _PASSING:
            x = int((at / seconds) * (_SIZE[0] + 80)) - 80
            cv2.rectangle(shown, (x, 200), (x + 80, 272), 200, -1)
        noisy = shown + chance.normal(0, 3, shown.shape)
        small = cv2.resize(noisy, (LUMA_WIDTH, LUMA_HEIGHT), interpolation=cv2.INTER_AREA)
        return np.asarray(np.clip(small, 0, 255), np.uint8)

    return [pair_motion(frame(at), frame(at + gap), gap) for at in starts.tolist()]


if __name__ == "__main__":
    main()
