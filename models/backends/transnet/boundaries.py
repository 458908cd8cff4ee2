"""BoundaryDetector by TransNetV2: windows of 100 frames, of which the middle 50 count.

Windows are counted from the first frame of the video, so predictions do not depend on the
pieces in which the frames come, and at most two windows of tiny pictures are in memory.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import torch

from models.backends.transnet.network import TransNetV2
from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH, BoundaryPictures, Probabilities
from models.weights import WeightsError

WINDOW_FRAMES = 100
STEP_FRAMES = 50
_NOTHING = np.empty((0, BOUNDARY_HEIGHT, BOUNDARY_WIDTH, 3), np.uint8)
_NO_ANSWER = np.empty(0, np.float32)
_MARGIN = (WINDOW_FRAMES - STEP_FRAMES) // 2


class TransNetBoundaries:
    """Loads a state dictionary as published with TransNetV2 for PyTorch; never downloads."""

    def __init__(self, weights: Path | bytes) -> None:
        """From a file, or from what it holds. Raises WeightsError."""
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        network = TransNetV2()
        try:
            source = io.BytesIO(weights) if isinstance(weights, bytes) else weights
            stored = torch.load(source, map_location="cpu", weights_only=True)
            network.load_state_dict(stored)
        except (OSError, RuntimeError, TypeError, EOFError, pickle.UnpicklingError) as error:
            name = "The file" if isinstance(weights, bytes) else weights
            raise WeightsError(f"{name} holds no weights of TransNetV2: {error}") from error
        self._network = network.eval().to(self._device)

    def start(self) -> TransNetRun:
        return TransNetRun(self)

    def middle(self, window: BoundaryPictures) -> Probabilities:
        """Probabilities of the middle 50 of a window's 100 frames."""
        with torch.inference_mode():
            shown = torch.from_numpy(np.ascontiguousarray(window))[None].to(self._device)
            found = torch.sigmoid(self._network(shown))[0, _MARGIN : _MARGIN + STEP_FRAMES]
        return np.asarray(found.float().cpu().numpy(), np.float32)


class TransNetRun:
    """One video's frames; see ``models.contracts.BoundaryRun``."""

    def __init__(self, model: TransNetBoundaries) -> None:
        self._model = model
        self._kept: BoundaryPictures = _NOTHING
        self._open = 0

    def feed(self, pictures: BoundaryPictures) -> Probabilities:
        if len(pictures) == 0:
            return _NO_ANSWER
        if len(self._kept) == 0:
            self._kept = np.repeat(pictures[:1], _MARGIN, axis=0)
        self._kept = np.concatenate([self._kept, pictures])
        self._open += len(pictures)
        found = [_NO_ANSWER]
        while len(self._kept) >= WINDOW_FRAMES:
            found.append(self._step())
        return np.concatenate(found)

    def finish(self) -> Probabilities:
        found = [_NO_ANSWER]
        while self._open > 0:
            missing = np.repeat(self._kept[-1:], WINDOW_FRAMES - len(self._kept), axis=0)
            self._kept = np.concatenate([self._kept, missing])
            found.append(self._step())
        return np.concatenate(found)

    def _step(self) -> Probabilities:
        """Answer for the first window's middle and let go of its first half."""
        found = self._model.middle(self._kept[:WINDOW_FRAMES])[: self._open]
        self._kept = self._kept[STEP_FRAMES:]
        self._open -= len(found)
        return found
