"""Ways from one shot to the next, and which share of the picture each has reached.

``mixed(kind, a, b, share)`` gives the picture at ``share`` (0: all of A, 1: all of B).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.float32]


def dissolve(a: Picture, b: Picture, share: float) -> Picture:
    return np.asarray(cv2.addWeighted(a, 1 - share, b, share, 0), np.uint8)


def faded(picture: Picture, level: int, share: float) -> Picture:
    """The picture with ``share`` of it replaced by black (0) or white (255)."""
    return np.asarray(cv2.convertScaleAbs(picture, alpha=1 - share, beta=level * share), np.uint8)


def _grid(shape: tuple[int, ...]) -> tuple[Mask, Mask]:
    """Columns and rows from 0 to 1."""
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    return columns / (shape[1] - 1), rows / (shape[0] - 1)


def _order_right(across: Mask, down: Mask) -> Mask:
    return across


def _order_down(across: Mask, down: Mask) -> Mask:
    return down


def _order_diagonal(across: Mask, down: Mask) -> Mask:
    return np.asarray((across + down) / 2, np.float32)


def _order_iris(across: Mask, down: Mask) -> Mask:
    return np.asarray(np.hypot(across - 0.5, down - 0.5) / math.sqrt(0.5), np.float32)


def _order_doors(across: Mask, down: Mask) -> Mask:
    return np.asarray(np.abs(across - 0.5) * 2, np.float32)


def _order_clock(across: Mask, down: Mask) -> Mask:
    turn = np.arctan2(across - 0.5, 0.5 - down) / math.tau
    return np.asarray(turn % 1, np.float32)


def _order_blinds(across: Mask, down: Mask) -> Mask:
    return np.asarray((down * 6) % 1, np.float32)


_ORDERS: dict[str, tuple[Callable[[Mask, Mask], Mask], bool]] = {
    "right": (_order_right, False),
    "left": (_order_right, True),
    "down": (_order_down, False),
    "up": (_order_down, True),
    "diagonal": (_order_diagonal, False),
    "iris_out": (_order_iris, False),
    "iris_in": (_order_iris, True),
    "doors": (_order_doors, False),
    "clock": (_order_clock, False),
    "blinds": (_order_blinds, False),
}
"""In which order the places of the picture turn from A to B, and whether backwards."""

WIPES = (*_ORDERS, "cover", "push")


def wiped(kind: str, a: Picture, b: Picture, share: float, softness: float) -> Picture:
    """B has taken ``share`` of the picture; ``softness`` is the edge's width (share of it)."""
    if kind in ("cover", "push"):
        return _slid(a, b, share, moves=kind == "push")
    order, backwards = _ORDERS[kind]
    reached = order(*_grid(a.shape))
    reached = 1 - reached if backwards else reached
    front = share * (1 + softness)
    mask = np.clip((front - reached) / max(softness, 1e-3), 0, 1)[..., None]
    return np.asarray(a * (1 - mask) + b * mask + 0.5, np.uint8)


def _slid(a: Picture, b: Picture, share: float, moves: bool) -> Picture:
    """B slides in from the right over A, which stays or moves along."""
    width = a.shape[1]
    edge = round(width * (1 - share))
    picture = a.copy()
    if moves:
        picture[:, :edge] = a[:, width - edge :]
    picture[:, edge:] = b[:, : width - edge]
    return picture
