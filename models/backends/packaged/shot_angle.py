"""From where the camera looks, as far as a picture's lines and faces show it.

What is upright in the world (walls, posts, door frames) leans alike all over the picture where the
camera is rolled, and a person whose face is seen from its own height is at eye level. Thresholds
were chosen on the tuning half of ``benchmarks/angles.toml``. The other values are not given:
lines that run together upwards are as often a street seen from above as a tower from below.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from models.backends.packaged.faces import MarkedFace
from models.contracts import Picture, ShotAngle
from models.pictures import grey

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
