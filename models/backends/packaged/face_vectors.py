"""Faces as vectors: found and straightened by their landmarks, then SFace (Zhong et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from models.backends import Backend
from models.backends.packaged.faces import FaceFinder, MarkedFace
from models.contracts import FaceVector, Picture

_LEAST_FACE_PX = 40
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
                if face.box.height * rows < _LEAST_FACE_PX or not _is_frontal(face):
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
    return SFaceEmbedder(FaceFinder(row.packaged("faces").paths(models_dir)), path)
