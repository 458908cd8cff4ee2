"""Faces: found, as vectors, and what they and a picture's lines show of the camera's angle.

They are found by a cascade of three small networks (MTCNN: Zhang et al., 2016). The first goes over
the picture in several sizes and marks windows that may show a face; the second and the third judge
each window at a higher resolution, drop most and straighten the rest. A missed face costs a word in
a description, a false one is a false statement: the last threshold is stricter than the authors'
0.7. Sizes and thresholds were chosen on the stills for tuning of
``benchmarks/descriptions.py``. Vectors are SFace's (Zhong et al. 2021), of faces straightened
by their landmarks.

What is upright in the world (walls, posts, door frames) leans alike all over the picture where the
camera is rolled, and a person whose face is seen from its own height is at eye level. Thresholds of
that were chosen on the tuning half of ``benchmarks/angles.toml``. The other angles are not
given: lines that run together upwards are as often a street seen from above as a tower from below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged import Network, Tensor
from models.contracts import Box, FaceVector, Picture, ShotAngle
from models.pictures import grey

_LONG_SIDE_PX = 480
"""Of the picture that is searched; 640 pixels found no more faces, in 1.5 times the time."""
_LEAST_FACE = 0.06
"""Height of the smallest face looked for, of the picture's height."""
_LEAST_FACE_PX = 20
_WINDOW_PX, _WINDOW_STRIDE_PX = 12, 2
"""Of the first network."""
_PYRAMID = 0.6
"""Each size of the picture over the one before; 0.709 found no more, in 1.6 times the time."""
_CANDIDATE, _LIKELY, _SURE = 0.6, 0.7, 0.85
"""Probability from which each network lets a window pass."""
_SAME_FACE = 0.5
_MOST_WINDOWS = 400
"""Handed to the second network, the most likely ones: foliage gives thousands."""

Windows = npt.NDArray[np.float32]
"""(n, 5): left, top, right, bottom in pixels, probability; of the third network (n, 15): then five
landmarks across and down."""


@dataclass(frozen=True, slots=True)
class MarkedFace:
    """A face and its landmarks, in shares of the picture's width and height."""

    box: Box
    landmarks: tuple[tuple[float, float], ...]
    """Eyes, tip of the nose, corners of the mouth; of two the left one in the picture first."""


class FaceFinder:
    """Upright faces, from the front or turned as long as both eyes can be seen."""

    def __init__(self, weights: Mapping[str, Path], gpu_bytes: int = 0) -> None:
        """``weights`` are the files of ``models.registry.MTCNN``."""
        names = ("pnet.onnx", "rnet.onnx", "onet.onnx")
        self._first, self._second, self._third = (
            Network(weights[name], gpu_bytes) for name in names
        )

    def find(self, still: Picture) -> tuple[Box, ...]:
        """Faces in the still, largest first."""
        return tuple(face.box for face in self.find_marked(still))

    def find_marked(self, still: Picture) -> tuple[MarkedFace, ...]:
        """As ``find``, with landmarks."""
        rows, columns = still.shape[:2]
        scale = min(1.0, _LONG_SIDE_PX / max(rows, columns))
        size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
        picture = np.asarray(cv2.resize(still, size, interpolation=cv2.INTER_AREA), np.uint8)
        windows = self._candidates(picture)
        windows = self._passed(self._second, 24, _LIKELY, picture, windows)
        windows = _distinct(windows, 0.7)
        windows = self._passed(self._third, 48, _SURE, picture, windows)
        windows = _distinct(windows, _SAME_FACE, of_smaller=True)
        faces = []
        for window in windows:
            points = (window[5:].reshape(2, 5).T / size).tolist()
            faces.append(MarkedFace(_box(window, size), tuple((x, y) for x, y in points)))
        return tuple(sorted(faces, key=lambda face: (-face.box.height, face.box.left)))

    def _candidates(self, picture: Picture) -> Windows:
        """Square windows that the first network marks."""
        rows, columns = picture.shape[:2]
        least = max(_LEAST_FACE_PX, _LEAST_FACE * rows)
        scale, found = _WINDOW_PX / least, [np.zeros((0, 5), np.float32)]
        while min(rows, columns) * scale >= _WINDOW_PX:
            size = (int(np.ceil(columns * scale)), int(np.ceil(rows * scale)))
            small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            shifts, scores = self._first(_prepared(small[None]))
            found.append(_distinct(_marked(shifts[0], scores[0, :, :, 1], scale), 0.5))
            scale *= _PYRAMID
        windows = _distinct(np.concatenate(found), 0.7)
        order = np.argsort(-windows[:, 4], kind="stable")[:_MOST_WINDOWS]
        return _squared(windows[order])

    def _passed(
        self, network: Network, side: int, least: float, picture: Picture, windows: Windows
    ) -> Windows:
        """The windows that ``network`` finds a face in, moved to where it is."""
        if len(windows) == 0:
            return windows
        cut = np.stack([_cut(picture, window, side) for window in windows])
        outputs = network(_prepared(cut))
        shifts, scores = outputs[0], outputs[-1][:, 1]
        passed = scores >= least
        moved = _moved(windows[passed], shifts[passed])
        moved[:, 4] = scores[passed]
        if network is not self._third:
            return _squared(moved)
        # Five across, then five down, in shares of the window that was judged.
        sides = np.repeat(windows[passed, 2:4] - windows[passed, 0:2], 5, axis=1)
        points = np.repeat(windows[passed, 0:2], 5, axis=1) + outputs[1][passed] * sides
        return np.column_stack([moved, points]).astype(np.float32)


def _prepared(pictures: npt.NDArray[np.uint8] | cv2.typing.MatLike) -> Tensor:
    """Levels as -1 to 1, columns before rows: so these networks were trained."""
    levels = (np.asarray(pictures, np.float32) - np.float32(127.5)) * np.float32(1 / 128)
    return np.ascontiguousarray(levels.transpose(0, 2, 1, 3))


def _marked(shifts: Tensor, scores: Tensor, scale: float) -> Windows:
    """Windows in pixels of the whole picture, by a map (columns, rows) of the first network."""
    across, down = np.nonzero(scores >= _CANDIDATE)
    corner = np.stack([across, down], axis=1) * _WINDOW_STRIDE_PX
    edges = np.concatenate([corner, corner + _WINDOW_PX], axis=1) / scale
    windows = np.column_stack([edges, scores[across, down]]).astype(np.float32)
    return _moved(windows, shifts[across, down])


def _moved(windows: Windows, shifts: Tensor) -> Windows:
    """Each edge moved by its share of the window's width or height."""
    sides = windows[:, 2:4] - windows[:, 0:2]
    edges = windows[:, :4] + shifts * np.tile(sides, 2)
    return np.column_stack([edges, windows[:, 4]]).astype(np.float32)


def _squared(windows: Windows) -> Windows:
    centres = (windows[:, 0:2] + windows[:, 2:4]) / 2
    halves = (windows[:, 2:4] - windows[:, 0:2]).max(axis=1, initial=0)[:, None] / 2
    return np.column_stack([centres - halves, centres + halves, windows[:, 4]]).astype(np.float32)


def _cut(picture: Picture, window: Windows, side: int) -> Picture:
    """The window's part of the picture in the size that a network takes; black beyond the edges."""
    left, top, right, bottom = (round(float(edge)) for edge in window[:4])
    rows, columns = picture.shape[:2]
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    part = picture[max(0, top) : max(0, bottom), max(0, left) : max(0, right)]
    above, below = max(0, -top), max(0, bottom - max(rows, top))
    beside = max(0, -left), max(0, right - max(columns, left))
    whole = cv2.copyMakeBorder(part, above, below, *beside, cv2.BORDER_CONSTANT)
    return np.asarray(cv2.resize(whole, (side, side), interpolation=cv2.INTER_AREA), np.uint8)


def _distinct(windows: Windows, most: float, *, of_smaller: bool = False) -> Windows:
    """Without windows that cover a more likely one: their common area over their union, or over
    the smaller of the two."""
    left, top, right, bottom, scores = windows[:, :5].T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        across = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        down = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        common = np.maximum(across, 0) * np.maximum(down, 0)
        smaller = np.minimum(areas[best], areas[rest])
        whole = smaller if of_smaller else areas[best] + areas[rest] - common
        order = rest[common <= most * whole]
    return windows[kept]


def _box(window: Windows, size: tuple[int, int]) -> Box:
    """Clipped to the picture, in shares of it."""
    columns, rows = size
    left, right = (float(np.clip(window[edge] / columns, 0, 1)) for edge in (0, 2))
    top, bottom = (float(np.clip(window[edge] / rows, 0, 1)) for edge in (1, 3))
    return Box(left, top, right - left, bottom - top)


_LEAST_EMBEDDED_PX = 40
"""Height of a face in its still: of smaller ones the network, which takes 112 pixels, gets mush."""
_TURNED = 0.25
"""The tip of the nose is so far from both eyes, of their distance across: else it is a profile."""


class SFaceEmbedder:
    """Task ``embed_faces``: a vector for each face that is large enough and not in profile."""

    def __init__(self, finder: FaceFinder, weights: Path) -> None:
        self._finder = finder
        self._recognizer = cv2.FaceRecognizerSF.create(str(weights), "")

    def embed_faces(self, stills: Sequence[Picture]) -> list[tuple[FaceVector, ...]]:
        """The faces of each still, in order, the largest first."""
        found = []
        for still in stills:
            rows, columns = still.shape[:2]
            bgr = cv2.cvtColor(still, cv2.COLOR_RGB2BGR)
            own = []
            for face in self._finder.find_marked(still):
                if face.box.height * rows < _LEAST_EMBEDDED_PX or not _is_frontal(face):
                    continue
                box = face.box
                edges = [box.left * columns, box.top * rows, box.width * columns, box.height * rows]
                points = np.array(face.landmarks) * (columns, rows)
                row = np.array([*edges, *points.ravel()], np.float32)
                vector = self._recognizer.feature(self._recognizer.alignCrop(bgr, row)).ravel()
                own.append(FaceVector(box, tuple((vector / np.linalg.norm(vector)).tolist())))
            found.append(tuple(own))
        return found


def _is_frontal(face: MarkedFace) -> bool:
    (left, _), (right, _), (nose, _), *_ = face.landmarks
    least = _TURNED * (right - left)
    return right > left and nose - left > least and right - nose > least


def open_face_embedder(row: Backend, models_dir: Path | None) -> SFaceEmbedder:
    """Raises WeightsError where weights are missing or altered."""
    [path] = row.packaged().paths(models_dir).values()
    faces = row.packaged("faces").paths(models_dir)
    return SFaceEmbedder(FaceFinder(faces, row.session_bytes // 3), path)


_WIDTH_PX = 480
_LEAST_LINE, _EDGE = 0.06, 0.02
"""Of the picture's height: shortest line that counts. Of its width: the rim, whose lines may be
those of bars."""
_MOST_LEAN = 35.0
"""Degrees from the vertical up to which a line may be of something upright."""
_ROLLS, _CONVERGENCES = np.arange(-30.0, 30.5, 1.0), np.arange(-60.0, 60.5, 4.0)
"""Tried: degrees of lean in the middle, and by how many more it changes over the width, as the
lines of a camera that looks up or down run together."""
_SAME_LEAN = 2.5
_DUTCH = 10.0
"""Degrees of roll: what is held by hand is up to 8 off."""
_AGREEING, _ENOUGH, _EACH_SIDE = 0.5, 2.5, 0.5
"""Least share of the length of all nearly upright lines that must lean alike, and its least sum
over the picture's height, in all and in both the left and the right part."""
_LEVEL = (0.42, 0.68)
"""How far the tip of the nose is from the eyes towards the mouth, of a face seen from its height;
seen from below it is nearer to the eyes."""
_FACING, _HELD_UPRIGHT = 0.4, 8.0
"""Most shift of the nose to one side, over the distance of the eyes, and most degrees of these off
the level: a head, or the camera, is tilted then."""


def shot_angle_of(still: Picture, faces: Sequence[MarkedFace]) -> ShotAngle:
    """``dutch`` or ``eye_level`` where there is evidence of it, else unknown."""
    if abs(camera_roll(still)) >= _DUTCH:
        return ShotAngle.DUTCH
    return ShotAngle.EYE_LEVEL if faces and _is_level(still, faces[0]) else ShotAngle.UNKNOWN


def camera_roll(still: Picture) -> float:
    """Degrees by which all that is upright leans, right side down positive; 0 without evidence."""
    luma = grey(still, _WIDTH_PX)
    rows, columns = luma.shape
    found = cv2.createLineSegmentDetector(cv2.LSD_REFINE_STD).detect(luma)[0]
    if found is None:
        return 0.0
    ends = np.asarray(found, np.float64)[:, 0]
    run = ends[:, 2:] - ends[:, :2]
    run *= np.where(run[:, 1:] < 0, -1, 1)
    lean = np.degrees(np.arctan2(run[:, 0], run[:, 1]))
    length = np.hypot(*run.T) / rows
    across = (ends[:, 0] + ends[:, 2]) / 2 / columns - 0.5
    counts = (length >= _LEAST_LINE) & (np.abs(lean) < _MOST_LEAN) & (np.abs(across) < 0.5 - _EDGE)
    lean, length, across = lean[counts], length[counts], across[counts]
    rolls, changes = (each.ravel() for each in np.meshgrid(_ROLLS, _CONVERGENCES))
    off = np.abs(lean - (rolls[:, None] + changes[:, None] * across))
    agreeing = (off < _SAME_LEAN) @ length
    # Of two that fit as well, the one that needs less of both.
    best = int(np.argmax(agreeing - 0.004 * np.abs(rolls) - 0.002 * np.abs(changes)))
    alike = off[best] < _SAME_LEAN
    sides = [float(length[alike & side].sum()) for side in (across < -0.1, across > 0.1)]
    is_sure = agreeing[best] >= max(_ENOUGH, _AGREEING * length.sum()) and min(sides) >= _EACH_SIDE
    return float(rolls[best]) if is_sure else 0.0


def _is_level(still: Picture, face: MarkedFace) -> bool:
    """Whether the face is seen from its own height and nearly from the front."""
    points = np.array(face.landmarks) * (still.shape[1], still.shape[0])
    left, right, nose, *mouth = points
    down = (left + right) / 2, np.mean(mouth, axis=0)
    height, apart = down[1][1] - down[0][1], float(np.hypot(*(right - left)))
    if height <= 0 or apart <= 0:
        return False
    is_upright = _LEVEL[0] <= (nose[1] - down[0][1]) / height <= _LEVEL[1]
    is_facing = abs(nose[0] - down[0][0]) <= _FACING * apart
    tilt = np.degrees(np.arctan2(right[1] - left[1], right[0] - left[0]))
    return bool(is_upright and is_facing and abs(tilt) <= _HELD_UPRIGHT)
