"""The network of TransNetV2, for inference.

T. Souček, J. Lokoč, "TransNet V2: An effective deep network architecture for fast shot
transition detection", 2020 (arXiv:2008.04838): three stacks of dilated (2+1)-dimensional
convolutions over tiny pictures, beside them the similarity of each frame to its 100
neighbours in learned features and in colour histograms. Module names are those of the
authors' published weights, so that their state dictionary loads.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH, BoundaryPictures, Probabilities
from models.weights import WeightsError

_FILTERS = (16, 32, 64)
_DILATIONS = (1, 2, 4, 8)
_LOOKUP = 101
_SIMILARITY_DIMENSIONS = 128
_HIDDEN = 1024
_BINS = 512
_CELLS = (BOUNDARY_HEIGHT // 8) * (BOUNDARY_WIDTH // 8)


class TransNetV2(nn.Module):
    """Pictures (batch, frames, 27, 48, 3) of bytes to logits (batch, frames) of a boundary."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, *(len(_DILATIONS) * filters for filters in _FILTERS)]
        self.SDDCNN = nn.ModuleList(
            _Stack(before, filters)
            for (before, _), filters in zip(pairwise(widths), _FILTERS, strict=True)
        )
        self.frame_sim_layer = _FrameSimilarity(sum(widths[1:]))
        self.color_hist_layer = _ColourSimilarity()
        self.fc1 = nn.Linear(widths[-1] * _CELLS + 2 * _SIMILARITY_DIMENSIONS, _HIDDEN)
        self.cls_layer1 = nn.Linear(_HIDDEN, 1)
        # Trained beside the first to mark all frames of a transition; kept to load the weights.
        self.cls_layer2 = nn.Linear(_HIDDEN, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        seen = pictures.permute(0, 4, 1, 2, 3).float() / 255
        levels = []
        for stack in self.SDDCNN:
            seen = stack(seen)
            levels.append(seen)
        own = seen.permute(0, 2, 3, 4, 1).flatten(start_dim=2)
        similar = self.frame_sim_layer(levels)
        alike = self.color_hist_layer(pictures)
        hidden = functional.relu(self.fc1(torch.cat([alike, similar, own], dim=2)))
        logits: Tensor = self.cls_layer1(hidden)
        return logits.squeeze(2)


class _Stack(nn.Module):
    """Two dilated blocks with a shortcut around the second, then half the size."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        wide = len(_DILATIONS) * filters
        self.DDCNN = nn.ModuleList([_Dilated(channels, filters), _Dilated(wide, filters)])

    def forward(self, seen: Tensor) -> Tensor:
        first = functional.relu(self.DDCNN[0](seen))
        second = functional.relu(self.DDCNN[1](first))
        return functional.avg_pool3d(second + first, kernel_size=(1, 2, 2))


class _Dilated(nn.Module):
    """Convolutions that reach 1, 2, 4 and 8 frames far, side by side."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        for dilation in _DILATIONS:
            self.add_module(f"Conv3D_{dilation}", _Separable(channels, filters, dilation))
        self.bn = nn.BatchNorm3d(len(_DILATIONS) * filters, eps=1e-3)

    def forward(self, seen: Tensor) -> Tensor:
        found = [self.get_submodule(f"Conv3D_{dilation}")(seen) for dilation in _DILATIONS]
        normal: Tensor = self.bn(torch.cat(found, dim=1))
        return normal


class _Separable(nn.Module):
    """A convolution in space, then one in time."""

    def __init__(self, channels: int, filters: int, dilation: int) -> None:
        super().__init__()
        space = nn.Conv3d(channels, 2 * filters, (1, 3, 3), padding=(0, 1, 1), bias=False)
        time = nn.Conv3d(
            2 * filters,
            filters,
            (3, 1, 1),
            dilation=(dilation, 1, 1),
            padding=(dilation, 0, 0),
            bias=False,
        )
        self.layers = nn.ModuleList([space, time])

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.layers[1](self.layers[0](seen))
        return found


class _FrameSimilarity(nn.Module):
    """Cosines between each frame's learned features and its neighbours'."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.projection = nn.Linear(channels, _SIMILARITY_DIMENSIONS)
        self.fc = nn.Linear(_LOOKUP, _SIMILARITY_DIMENSIONS)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        means = torch.cat([level.mean(dim=(3, 4)) for level in levels], dim=1).transpose(1, 2)
        return functional.relu(self.fc(_neighbours(self.projection(means))))


class _ColourSimilarity(nn.Module):
    """Cosines between each frame's histogram of 512 colours and its neighbours'."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(_LOOKUP, _SIMILARITY_DIMENSIONS)

    def forward(self, pictures: Tensor) -> Tensor:
        coarse = pictures.flatten(2, 3).long() >> 5
        bins = (coarse[..., 0] << 6) + (coarse[..., 1] << 3) + coarse[..., 2]
        counts = torch.zeros(*bins.shape[:2], _BINS, device=pictures.device)
        counts.scatter_add_(2, bins, torch.ones_like(bins, dtype=counts.dtype))
        return functional.relu(self.fc(_neighbours(counts)))


def _neighbours(vectors: Tensor) -> Tensor:
    """(batch, frames, n) to cosines (batch, frames, 101) with the frames from 50 before to
    50 after; 0 where there is none."""
    unit = functional.normalize(vectors, dim=2)
    cosines = functional.pad(unit @ unit.transpose(1, 2), (_LOOKUP // 2, _LOOKUP // 2))
    frames = torch.arange(vectors.shape[1], device=vectors.device)
    near = frames[:, None] + torch.arange(_LOOKUP, device=vectors.device)
    return cosines.gather(2, near.expand(len(vectors), -1, -1))


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
