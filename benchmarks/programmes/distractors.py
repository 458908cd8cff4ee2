"""What happens inside a shot and is no cut. Each takes a shot and gives one of equal length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.programmes.transitions import faded
from benchmarks.programmes.worlds import landscape, town

Picture = npt.NDArray[np.uint8]
Shot = list[Picture]

ROOM_FRAMES = 10
"""Left alone at both ends of a shot, so that a distractor never meets a transition."""


def _place(chance: random.Random, shot: Shot, length: int) -> int:
    return chance.randint(ROOM_FRAMES, max(ROOM_FRAMES, len(shot) - ROOM_FRAMES - length))


def flash(chance: random.Random, shot: Shot) -> Shot:
    """One to four photographers' flashes of one to three frames."""
    lit = list(shot)
    for _ in range(chance.randint(1, 4)):
        length, strength = chance.randint(1, 3), chance.uniform(0.5, 1.0)
        start = _place(chance, shot, length)
        for index in range(start, min(start + length, len(shot))):
            lit[index] = faded(shot[index], 255, strength)
    return lit


def strobe(chance: random.Random, shot: Shot) -> Shot:
    """Light that comes and goes several times a second."""
    length, period = min(chance.randint(15, 40), len(shot) - 2 * ROOM_FRAMES), chance.randint(2, 6)
    start, level = _place(chance, shot, length), chance.choice([0, 255])
    strength = chance.uniform(0.5, 0.95)
    return [
        faded(picture, level, strength)
        if start <= index < start + length and (index - start) % period < (period + 1) // 2
        else picture
        for index, picture in enumerate(shot)
    ]


def shake(chance: random.Random, shot: Shot) -> Shot:
    """A camera held by a nervous hand."""
    height, width = shot[0].shape[:2]
    force, x, y, shaken = chance.uniform(2, 9) * width / 640, 0.0, 0.0, []
    for picture in shot:
        x, y = 0.85 * x + chance.gauss(0, force), 0.85 * y + chance.gauss(0, force)
        matrix = np.array([[1.14, 0, -0.07 * width + x], [0, 1.14, -0.07 * height + y]], np.float32)
        shaken.append(
            np.asarray(
                cv2.warpAffine(picture, matrix, (width, height), borderMode=cv2.BORDER_REFLECT),
                np.uint8,
            )
        )
    return shaken


def fast_pan(chance: random.Random, shot: Shot) -> Shot:
    """Instead of the shot: a camera that rests, whips across a wide place and rests again."""
    height, width = shot[0].shape[:2]
    painter = chance.choice([landscape, town])
    place = painter(chance, (width * 3, height))
    length = chance.randint(6, 16)
    start, reach = _place(chance, shot, length), chance.uniform(1.0, 2.0) * width
    seen, before = [], 0.0
    for index in range(len(shot)):
        share = min(1.0, max(0.0, (index - start) / length))
        at = reach * (0.5 - 0.5 * math.cos(math.pi * share))
        blur = max(1, round(abs(at - before) * 0.5))
        left = min(round(at), 2 * width)
        part = place[:, left : left + width]
        seen.append(np.asarray(cv2.blur(part, (blur, 1)), np.uint8) if blur > 1 else part)
        before = at
    return seen


def passing(chance: random.Random, shot: Shot) -> Shot:
    """Something close to the camera goes by and fills the picture for a moment."""
    height, width = shot[0].shape[:2]
    wide, length = round(chance.uniform(0.7, 1.4) * width), chance.randint(10, 26)
    thing = cv2.GaussianBlur(town(chance, (wide, height)), (0, 0), width / 50)
    thing = np.asarray(thing * chance.uniform(0.2, 0.8), np.uint8)
    start, first_column = _place(chance, shot, length), chance.choice([1, -1])
    gone = []
    for index, picture in enumerate(shot):
        share = (index - start) / length
        if not 0 < share < 1:
            gone.append(picture)
            continue
        left = round((width + wide) * share) - wide
        covered = np.ascontiguousarray(picture[:, ::first_column])
        first, last = max(0, left), min(width, left + wide)
        covered[:, first:last] = thing[:, first - left : last - left]
        gone.append(np.ascontiguousarray(covered[:, ::first_column]))
    return gone


def slate(chance: random.Random, shot: Shot) -> Shot:
    """A clapper board comes into the picture, nearly fills it, claps and leaves."""
    height, width = shot[0].shape[:2]
    share = chance.uniform(0.72, 0.95)
    board = _board(chance, round(width * share), round(height * share))
    move = chance.randint(5, 10)
    hold = min(chance.randint(12, 35), max(4, len(shot) - 2 * move - 2 * ROOM_FRAMES))
    start = _place(chance, shot, 2 * move + hold)
    shown = []
    for index, picture in enumerate(shot):
        at = index - start
        inside = min(1.0, max(0.0, min(at / move, (2 * move + hold - at) / move)))
        shown.append(_with_board(picture, board, inside) if inside > 0 else picture)
    return shown


def _board(chance: random.Random, width: int, height: int) -> Picture:
    board = np.full((height, width, 3), 35, np.uint8)
    stripe = height // 6
    for left in range(0, width, 2 * stripe):
        corners = np.array(
            [[left, stripe], [left + stripe, stripe], [left + 2 * stripe, 0], [left + stripe, 0]]
        )
        cv2.fillPoly(board, [corners], (230, 230, 230))
    for line, label in enumerate(("SCENE", "TAKE", "ROLL")):
        text = f"{label} {chance.randint(1, 99)}"
        place = (width // 12, round(height * (0.42 + 0.2 * line)))
        cv2.putText(board, text, place, cv2.FONT_HERSHEY_DUPLEX, height / 200, (235, 235, 235), 2)
    return board


def _with_board(picture: Picture, board: Picture, inside: float) -> Picture:
    height, width = picture.shape[:2]
    tall, wide = board.shape[:2]
    left, top = (width - wide) // 2, round(height - ((height + tall) / 2) * inside)
    covered = picture.copy()
    seen = board[: max(0, min(tall, height - top))]
    covered[top : top + len(seen), left : left + wide] = seen
    return covered


def lamp(chance: random.Random, shot: Shot) -> Shot:
    """A light is switched on or off."""
    at, gain = _place(chance, shot, 1), chance.choice([0.45, 0.6, 1.5, 1.9])
    return [
        np.asarray(cv2.convertScaleAbs(picture, alpha=gain, beta=0), np.uint8)
        if index >= at
        else picture
        for index, picture in enumerate(shot)
    ]


DISTRACTORS: dict[str, Callable[[random.Random, Shot], Shot]] = {
    "flash": flash,
    "strobe": strobe,
    "shake": shake,
    "fast_pan": fast_pan,
    "passing": passing,
    "slate": slate,
    "lamp": lamp,
}
