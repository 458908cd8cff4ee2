"""Things of COCO's 80 classes, by SSD-MobileNetV2 (Sandler et al. 2018) on OpenCV's dnn.

The network sees a still at 300 x 300 pixels and takes 85 ms of one core. What it is in doubt about
is looked at a second time, in a square around it (of a picture that is about square: mirrored), and
the mean of both confidences decides. On 79 stills of ``tests/benchmarks/things.toml`` that are for
tuning, one look has a precision of 0.83 from 0.6 on, the mean of two 0.90, and it finds as much.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from models.backends import Backend
from models.contracts import Box, DetectedObject, Picture

_SIDE_PX = 300
_CANDIDATE = 0.4
"""What has less at the first look is not looked at again."""
_CERTAIN = 0.9
"""Nor is what has this: the second look confirmed all of these in the tuning stills."""
_MOST_SECOND_LOOKS = 3
"""A still, the most confident first; what is left of the doubtful is dropped."""
_LEAST_CONTRAST = 4.0
"""Standard deviation of a picture's levels; nothing is in plainer ones."""
_SQUARE = 1.25
"""Ratio of the sides up to which a square shows nothing larger than the whole."""
_SAME_PLACE, _SAME_THING, _OTHER_THING = 0.3, 0.5, 0.7
"""Overlap of a thing's boxes in both looks, from which two boxes of a class are one thing, and from
which boxes of two classes are: the cup and the bottle, the dog and the cat in one place."""
_PART = 0.8
"""Share of a box inside another of its class from which it is a part of that thing."""

_LIKELY, _LOOKALIKES = 0.55, 0.8
_USUAL = 0.65
"""Least mean confidence by class. Taken for each other, or for what has no class (fruit, balls,
boxes, signs), are: the lookalikes; people and vehicles seldom are."""

CLASSES = {
    _LIKELY: {
        1: "person", 2: "bicycle", 3: "car", 4: "motorcycle", 5: "airplane", 6: "bus", 7: "train",
        8: "truck", 9: "boat", 17: "cat", 18: "dog", 19: "horse", 21: "cow", 22: "elephant",
        24: "zebra", 25: "giraffe", 65: "bed", 73: "laptop", 72: "tv", 76: "keyboard",
    },
    _USUAL: {
        10: "traffic light", 11: "fire hydrant", 13: "stop sign", 14: "parking meter", 16: "bird",
        20: "sheep", 27: "backpack", 28: "umbrella", 32: "tie", 35: "skis", 36: "snowboard",
        37: "sports ball", 39: "baseball bat", 40: "baseball glove", 41: "skateboard",
        42: "surfboard", 43: "tennis racket", 44: "bottle", 46: "wine glass", 47: "cup",
        48: "fork", 51: "bowl", 56: "broccoli", 58: "hot dog", 59: "pizza", 60: "donut",
        62: "chair", 63: "couch", 64: "potted plant", 67: "dining table", 70: "toilet",
        78: "microwave", 79: "oven", 81: "sink", 82: "refrigerator", 84: "book",
        77: "cell phone", 88: "teddy bear",
    },
    _LOOKALIKES: {
        15: "bench", 23: "bear", 31: "handbag", 33: "suitcase", 34: "frisbee", 38: "kite",
        49: "knife", 50: "spoon", 52: "banana", 53: "apple", 54: "sandwich", 55: "orange",
        57: "carrot", 61: "cake", 74: "mouse", 75: "remote", 80: "toaster", 85: "clock",
        86: "vase", 87: "scissors", 89: "hair drier", 90: "toothbrush",
    },
}  # fmt: skip
"""Least confidence -> number in the network -> class."""
_NAMES = {number: name for names in CLASSES.values() for number, name in names.items()}
_LEAST = {name: least for least, names in CLASSES.items() for name in names.values()}
_ONLY_BESIDE = {"mouse": frozenset({"keyboard", "laptop", "tv"})}
"""Classes that are taken for others unless one of these is in the picture too."""

_ANY_WAY_ROUND = frozenset({"cell phone"})
"""Classes of what lies any way round, and is seen so when the picture of it is turned: phones with
0.98 and 1.00; cars from above, which are taken for phones with 0.99, are not."""
_AROUND = 1.6
"""Side of the square that is turned, over the longer one of the thing."""


def open_object_detector(row: Backend, models_dir: Path | None) -> PackagedObjectDetector:
    """The detector with its verified weights. Raises WeightsError."""
    return PackagedObjectDetector(*row.packaged().paths(models_dir).values())


class PackagedObjectDetector:
    """ObjectDetector. Deterministic; any thread may call, one still is worked on at a time."""

    def __init__(self, graph: Path, layers: Path) -> None:
        """``graph`` holds the weights, ``layers`` what OpenCV makes of their post-processing."""
        # A task has one core; with more threads OpenCV's are no faster for a picture this small.
        cv2.setNumThreads(1)
        self._network = cv2.dnn.readNetFromTensorflow(str(graph), str(layers))
        self._working = threading.Lock()

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        return [self._find(still) for still in stills]

    def _find(self, still: Picture) -> tuple[DetectedObject, ...]:
        small = cv2.resize(still, (32, 18), interpolation=cv2.INTER_AREA)
        if float(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).std()) < _LEAST_CONTRAST:
            return ()
        looks = _MOST_SECOND_LOOKS
        sure: list[DetectedObject] = []
        for thing in _distinct(self._look(still)):
            is_another = any(each.label == thing.label for each in sure)
            if is_another or thing.confidence >= _CERTAIN:
                sure.append(thing)
            elif looks:
                looks -= 1
                sure.append(replace(thing, confidence=self._confirmed(still, thing)))
        sure = [
            thing
            for thing in sure
            if thing.confidence >= _LEAST[thing.label]
            and (thing.label not in _ANY_WAY_ROUND or self._is_seen_turned(still, thing))
        ]
        sure = _distinct(sorted(sure, key=lambda each: -each.confidence), _OTHER_THING)
        labels = {thing.label for thing in sure}
        return tuple(each for each in sure if _ONLY_BESIDE.get(each.label, labels) & labels)

    def _look(self, picture: Picture) -> list[DetectedObject]:
        """Candidates, the most confident first."""
        size = (_SIDE_PX, _SIDE_PX)
        shrinks = min(picture.shape[:2]) > _SIDE_PX
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        square = cv2.resize(picture, size, interpolation=how)
        with self._working:
            self._network.setInput(cv2.dnn.blobFromImage(square))
            # (1, 1, n, 7): picture, class, confidence, left, top, right, bottom.
            rows = self._network.forward()[0, 0]
        found = []
        for _, number, confidence, *sides in rows[rows[:, 2] >= _CANDIDATE].tolist():
            left, top, right, bottom = np.clip(sides, 0, 1).tolist()
            box = Box(left, top, right - left, bottom - top)
            if box.width > 0 and box.height > 0 and int(number) in _NAMES:
                found.append(DetectedObject(_NAMES[int(number)], min(1.0, confidence), box))
        return sorted(found, key=lambda each: -each.confidence)

    def _is_seen_turned(self, still: Picture, thing: DetectedObject) -> bool:
        """Whether the square around it shows such a thing when it is turned by 90 degrees."""
        rows, columns = still.shape[:2]
        box = thing.box
        x, y = (box.left + box.width / 2) * columns, (box.top + box.height / 2) * rows
        half = _AROUND / 2 * max(box.width * columns, box.height * rows)
        top, left = max(0, int(y - half)), max(0, int(x - half))
        part = still[top : int(y + half) + 1, left : int(x + half) + 1]
        turned = np.ascontiguousarray(np.rot90(part))
        return any(each.label == thing.label for each in self._look(turned))

    def _confirmed(self, still: Picture, thing: DetectedObject) -> float:
        """The mean of the confidence and that of a second look; 0 there if it is not seen."""
        rows, columns = still.shape[:2]
        side = min(rows, columns)
        if max(rows, columns) <= _SQUARE * side:
            looked = self._look(np.ascontiguousarray(still[:, ::-1]))
            box = thing.box
            expected = replace(box, left=1 - box.left - box.width)
        else:
            middle = thing.box.left + thing.box.width / 2, thing.box.top + thing.box.height / 2
            x = int(np.clip(middle[0] * columns - side / 2, 0, columns - side))
            y = int(np.clip(middle[1] * rows - side / 2, 0, rows - side))
            looked = self._look(np.ascontiguousarray(still[y : y + side, x : x + side]))
            expected = thing.box.within(Box(x / columns, y / rows, side / columns, side / rows))
        again = (
            each.confidence
            for each in looked
            if each.label == thing.label and each.box.overlap(expected) >= _SAME_PLACE
        )
        return (thing.confidence + max(again, default=0.0)) / 2


def _distinct(found: Sequence[DetectedObject], other: float = 2.0) -> list[DetectedObject]:
    """Without further boxes of a thing, which the network leaves where they overlap little or one
    is a part (a neck, a wheel); of another class where they overlap by ``other``."""
    kept: list[DetectedObject] = []
    for each in found:
        for one in kept:
            overlap, least = each.box.overlap(one.box), other
            if one.label == each.label:
                # People stand before each other, so a box inside another may be somebody.
                is_part = each.label != "person" and _share_inside(each.box, one.box) >= _PART
                least = 0.0 if is_part else _SAME_THING
            if overlap >= least:
                break
        else:
            kept.append(each)
    return kept


def _share_inside(box: Box, other: Box) -> float:
    """How much of the smaller of two boxes lies in the other, 0 to 1."""
    areas = box.width * box.height, other.width * other.height
    shared = box.overlap(other) * sum(areas) / (1 + box.overlap(other))
    return shared / min(areas)
