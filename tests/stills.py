"""Stills of one colour, and a picture model that knows colours alone."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import PICTURE_DIMENSIONS, Picture

RED, ORANGE, BLUE, GREEN = (220, 20, 20), (220, 90, 20), (20, 20, 220), (20, 200, 20)


def jpeg(colour: tuple[int, int, int]) -> bytes:
    """A still all of the colour (RGB)."""
    still = np.full((90, 160, 3), colour[::-1], np.uint8)
    return bytes(cv2.imencode(".jpg", still)[1])


class ColourEmbedder:
    """Task ``embed_pictures``: the mean colour as a unit vector."""

    def __init__(self) -> None:
        self.most = 0
        """Stills of the largest call."""

    def embed_pictures(self, stills: Sequence[Picture]) -> npt.NDArray[np.float32]:
        self.most = max(self.most, len(stills))
        vectors = np.zeros((len(stills), PICTURE_DIMENSIONS), np.float32)
        vectors[:, :3] = [still.mean(axis=(0, 1)) for still in stills]
        unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit
