"""Stills of one colour, and a model of pictures and phrases that knows colours alone."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import PICTURE_DIMENSIONS, PhraseVector, Picture

RED, ORANGE, BLUE, GREEN = (220, 20, 20), (220, 90, 20), (20, 20, 220), (20, 200, 20)
NAMES = {"red": RED, "orange": ORANGE, "blue": BLUE, "green": GREEN}


def jpeg(colour: tuple[int, int, int]) -> bytes:
    """A still all of the colour (RGB)."""
    still = np.full((90, 160, 3), colour[::-1], np.uint8)
    return bytes(cv2.imencode(".jpg", still)[1])


class ColourEmbedder:
    """Tasks ``embed_pictures``: the mean colour as a unit vector; and ``embed_phrases``: that of a
    colour's name, which pictures of a cosine of 0.9 are as likely to show as not."""

    def __init__(self) -> None:
        self.most = 0
        """Stills of the largest call."""

    def embed_pictures(self, stills: Sequence[Picture]) -> npt.NDArray[np.float32]:
        self.most = max(self.most, len(stills))
        vectors = np.zeros((len(stills), PICTURE_DIMENSIONS), np.float32)
        vectors[:, :3] = [still.mean(axis=(0, 1)) for still in stills]
        unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit

    def embed_phrases(self, phrases: Sequence[str]) -> list[PhraseVector]:
        colours = [
            next((colour for name, colour in NAMES.items() if name in phrase), (1, 1, 1))
            for phrase in phrases
        ]
        stills = [np.full((1, 1, 3), colour, np.uint8) for colour in colours]
        return [PhraseVector(vector, 40.0, -36.0) for vector in self.embed_pictures(stills)]
