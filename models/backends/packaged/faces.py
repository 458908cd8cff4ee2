"""Faces and people by the detectors that OpenCV brings along, used strictly.

A missed face costs a word in a description; a false one is a false statement.
So one detector's word is not enough: a face needs eyes in it or the same face
in another still, a person the same person in another still or a high score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from cv2.data import haarcascades

from models.backends.packaged.pictures import Box, Grey, grey
from models.contracts import Picture

_FRONT_WIDTH, _SIDE_WIDTH = 400, 320
_PEOPLE_WIDTH = 480
_SCALE = 1.25
_FRONT_NEIGHBOURS, _SIDE_NEIGHBOURS = 3, 2
"""Steps between the sizes looked for, and how many of them must agree. Finer steps find no
more faces on the stills of ``tests/benchmarks/descriptions.py``, in three times the time. In 732
pairs of stills of real footage, 0.7 s apart, profiles sought like fronts were seen in 8 of 9 pairs
that show some and in 2 that show none; so in 8 and in none, in three fifths of the time."""
_LEAST_FACE, _LEAST_WINDOW = 0.07, 24
"""Of the picture's height, and in pixels; smaller ones are mostly texture."""
_SAME_PLACE = 0.35
_EYE_ROOM = 120
_SURE_PERSON, _POSSIBLE_PERSON = 1.6, 0.7
"""Margins of the linear classifier."""
_PERSON_SHARE = 0.75
"""Height of the person inside the detector's 64 x 128 window, which has a border."""


class FaceFinder:
    """Upright faces, from the front or the side (Viola and Jones, 2001)."""

    def __init__(self) -> None:
        self._front = _cascade("haarcascade_frontalface_alt2.xml")
        self._side = _cascade("haarcascade_profileface.xml")
        self._eyes = (
            _cascade("haarcascade_eye.xml"),
            _cascade("haarcascade_eye_tree_eyeglasses.xml"),
        )

    def find(self, stills: Sequence[Picture]) -> list[list[Box]]:
        """Faces in each still."""
        lumas = [grey(still, _FRONT_WIDTH) for still in stills]
        fronts = [_boxes(self._front, luma, _FRONT_NEIGHBOURS) for luma in lumas]
        small = [grey(still, _SIDE_WIDTH) for still in stills]
        sides = _looked_for(self._both_sides, small, known=any(fronts))
        found = []
        for index, luma in enumerate(lumas):
            others = [
                box
                for other in range(len(lumas))
                if other != index
                for box in fronts[other] + sides[other]
            ]
            sure = [box for box in fronts[index] if self._has_eyes(luma, box)]
            again = [box for box in fronts[index] + sides[index] if _seen(box, others)]
            found.append(_distinct(sure + again))
        return found

    def _both_sides(self, luma: Grey) -> list[Box]:
        """Profiles looking either way; the cascade knows one."""
        mirrored = _boxes(self._side, np.ascontiguousarray(luma[:, ::-1]), _SIDE_NEIGHBOURS)
        turned = [Box(1 - box.left - box.width, box.top, box.width, box.height) for box in mirrored]
        return _boxes(self._side, luma, _SIDE_NEIGHBOURS) + turned

    def _has_eyes(self, luma: Grey, face: Box) -> bool:
        """Two eyes at like height in the upper part of the face."""
        rows, columns = luma.shape
        left, top = round(face.left * columns), round(face.top * rows)
        width, height = round(face.width * columns), round(face.height * rows)
        part = luma[top : top + round(0.6 * height), left : left + width]
        if part.size == 0:
            return False
        factor = max(1.0, _EYE_ROOM / width)
        part = cv2.resize(part, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        return any(
            _is_pair(cascade.detectMultiScale(part, 1.05, 4), part) for cascade in self._eyes
        )


class PeopleFinder:
    """Standing people (Dalal and Triggs, 2005).

    Looked for where the scene's first still may show one: of the detectors it is the slowest.
    """

    def __init__(self) -> None:
        self._detector = cv2.HOGDescriptor()
        self._detector.setSVMDetector(cv2.HOGDescriptor.getDefaultPeopleDetector())

    def find(self, stills: Sequence[Picture]) -> list[list[Box]]:
        """People in each still, from head to foot."""
        first = self._scored(stills[0]) if stills else []
        if not first:
            return [[] for _ in stills]
        scored = [first, *(self._scored(still) for still in stills[1:])]
        found = []
        for index, boxes in enumerate(scored):
            others = [box for other, rest in enumerate(scored) if other != index for box, _ in rest]
            kept = [box for box, score in boxes if score >= _SURE_PERSON or _seen(box, others)]
            found.append(_distinct(kept))
        return found

    def _scored(self, still: Picture) -> list[tuple[Box, float]]:
        luma = grey(still, _PEOPLE_WIDTH)
        rows, columns = luma.shape
        if rows < 128 or columns < 64:
            return []
        hits, scores = self._detector.detectMultiScale(
            luma, hitThreshold=_POSSIBLE_PERSON, winStride=(8, 8), scale=1.08
        )
        boxes = []
        for (left, top, width, height), score in zip(
            _sorted(hits), np.ravel(scores)[_order(hits)], strict=True
        ):
            trim = (1 - _PERSON_SHARE) / 2
            box = Box(
                (left + width * trim) / columns,
                (top + height * trim) / rows,
                width * _PERSON_SHARE / columns,
                height * _PERSON_SHARE / rows,
            )
            boxes.append((box, float(score)))
        return boxes


def _looked_for(
    look: Callable[[Grey], list[Box]], lumas: Sequence[Grey], *, known: bool
) -> list[list[Box]]:
    """What ``look`` finds in each picture, as far as it can be seen again in another one.

    Where nothing is ``known`` of any picture, the last one could only confirm
    what an earlier one showed; a single picture could confirm nothing.
    """
    found: list[list[Box]] = []
    for index, luma in enumerate(lumas):
        is_last = index == len(lumas) - 1
        confirmable = known or any(found) or not is_last
        found.append(look(luma) if confirmable else [])
    return found


def _boxes(cascade: cv2.CascadeClassifier, luma: Grey, neighbours: int) -> list[Box]:
    rows, columns = luma.shape
    least = max(_LEAST_WINDOW, round(_LEAST_FACE * rows))
    hits = cascade.detectMultiScale(
        cv2.equalizeHist(luma), _SCALE, neighbours, minSize=(least, least)
    )
    return [
        Box(left / columns, top / rows, width / columns, height / rows)
        for left, top, width, height in _sorted(hits)
    ]


def _cascade(name: str) -> cv2.CascadeClassifier:
    path = Path(haarcascades) / name
    cascade = cv2.CascadeClassifier(str(path))
    if cascade.empty():
        raise FileNotFoundError(path)
    return cascade


def _order(hits: object) -> list[int]:
    rows = np.asarray(hits).reshape(-1, 4).tolist()
    return sorted(range(len(rows)), key=lambda index: rows[index])


def _sorted(hits: object) -> list[tuple[int, int, int, int]]:
    rows = np.asarray(hits).reshape(-1, 4).tolist()
    return [tuple(rows[index]) for index in _order(hits)]


def _is_pair(hits: object, part: Grey) -> bool:
    eyes = _sorted(hits)
    rows, columns = part.shape
    for first in eyes:
        for second in eyes:
            level = abs(first[1] - second[1]) <= 0.25 * rows
            apart = 0.2 * columns <= second[0] - first[0] <= 0.7 * columns
            if level and apart:
                return True
    return False


def _seen(box: Box, others: Sequence[Box]) -> bool:
    return any(box.overlap(other) >= _SAME_PLACE for other in others)


def _distinct(boxes: Sequence[Box]) -> list[Box]:
    """Without boxes that mostly cover an earlier one."""
    kept: list[Box] = []
    for box in boxes:
        if not _seen(box, kept):
            kept.append(box)
    return kept
