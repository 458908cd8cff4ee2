"""Task ``detect_boundaries`` with TransNetV2 on onnxruntime.

T. Souček, J. Lokoč, "TransNet V2: An effective deep network architecture for fast shot transition
detection", 2020 (arXiv:2008.04838): three stacks of dilated (2+1)-dimensional convolutions over
tiny pictures, beside them the similarity of each frame to its 100 neighbours in learned features
and in colour histograms. Only the published weights for PyTorch are used, which are read without
it: the convolutions become a graph of ONNX when the detector is opened, the layers after them are
NumPy. A frame takes 9 ms of one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models.backends import Backend
from models.backends.packaged.networks import Graph
from models.backends.packaged.tensors import Tensor, Tensors, read_tensors
from models.contracts import BOUNDARY_HEIGHT, BOUNDARY_WIDTH, BoundaryPictures, Probabilities
from models.weights import WeightsError

_FILTERS = (16, 32, 64)
_DILATIONS = (1, 2, 4, 8)
_LOOKUP = 101
_BINS = 512
_EPSILON = 1e-3
"""Added to variances, as the published network's batch normalisation does."""


def open_boundary_detector(row: Backend, models_dir: Path | None) -> TransNetBoundaryDetector:
    """The detector with its verified weights. Raises WeightsError."""
    [weights] = row.packaged().read(models_dir).values()
    return TransNetBoundaryDetector(weights)


class TransNetBoundaryDetector:
    """BoundaryDetector. Deterministic; keeps no state between calls; on one core."""

    def __init__(self, weights: bytes) -> None:
        """From the file's bytes. Raises WeightsError."""
        tensors = read_tensors(weights)
        try:
            self._session = _session(tensors)
            self._layers = {
                name: (tensors[f"{name}.weight"].T, tensors[f"{name}.bias"])
                for name in (
                    "frame_sim_layer.projection", "frame_sim_layer.fc", "color_hist_layer.fc",
                    "fc1", "cls_layer1",
                )
            }  # fmt: skip
        except KeyError as error:
            raise WeightsError(f"The file holds no weights of TransNetV2: {error}") from error

    def detect_boundaries(self, frames: BoundaryPictures) -> Probabilities:
        if not len(frames):
            return np.empty(0, np.float32)
        own, means = self._session.run(None, {"pictures": frames})
        similar = _similarities(self._linear("frame_sim_layer.projection", means))
        alike = _similarities(_histograms(frames))
        seen = [
            np.maximum(self._linear("color_hist_layer.fc", alike), 0),
            np.maximum(self._linear("frame_sim_layer.fc", similar), 0),
            own,
        ]
        hidden = np.maximum(self._linear("fc1", np.concatenate(seen, axis=1)), 0)
        logits = self._linear("cls_layer1", hidden)[:, 0]
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        weights, bias = self._layers[name]
        found: Tensor = rows @ weights + bias
        return found


def _histograms(frames: BoundaryPictures) -> Tensor:
    """How often each of 512 colours is in each frame."""
    coarse = frames.reshape(len(frames), -1, 3).astype(np.int64) >> 5
    bins = (coarse[..., 0] << 6) + (coarse[..., 1] << 3) + coarse[..., 2]
    return np.array([np.bincount(row, minlength=_BINS) for row in bins], np.float32)


def _similarities(vectors: Tensor) -> Tensor:
    """Cosines (frames, 101) with the frames from 50 before to 50 after; 0 where there is none."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-12)
    padded = np.pad(unit @ unit.T, ((0, 0), (_LOOKUP // 2, _LOOKUP // 2)))
    frames = np.arange(len(vectors))[:, None]
    near: Tensor = padded[frames, frames + np.arange(_LOOKUP)]
    return near


def _session(tensors: Tensors) -> Any:
    """The convolutions: frames to what is left of each (n, 4608), and the means over each stack's
    pictures (n, 448).

    A batch of pictures are the frames of a video: convolutions in space take it as it is.
    """
    from onnx import TensorProto

    graph = Graph()
    seen = graph.add("Cast", "pictures", to=TensorProto.FLOAT)
    seen = graph.add("Mul", seen, np.array(1 / 255, np.float32))
    seen = graph.add("Transpose", seen, perm=[0, 3, 1, 2])
    means = []
    for number, filters in enumerate(_FILTERS):
        first = _block(graph, tensors, f"SDDCNN.{number}.DDCNN.0", filters, seen)
        second = _block(graph, tensors, f"SDDCNN.{number}.DDCNN.1", filters, first)
        both = graph.add("Add", first, second)
        seen = graph.add("AveragePool", both, kernel_shape=[2, 2], strides=[2, 2])
        means.append(graph.add("ReduceMean", seen, np.array([2, 3]), keepdims=0))
    last = graph.add("Transpose", seen, perm=[0, 2, 3, 1])
    outputs = graph.add("Flatten", last), graph.add("Concat", *means, axis=1)
    return graph.session(["n", BOUNDARY_HEIGHT, BOUNDARY_WIDTH, 3], outputs)


def _block(graph: Graph, tensors: Tensors, name: str, filters: int, seen: str) -> str:
    """Convolutions in space, then in time, that reach 1, 2, 4 and 8 frames far, side by side.

    Those in time have the normalisation after them within.
    """
    scale = tensors[f"{name}.bn.weight"] / np.sqrt(tensors[f"{name}.bn.running_var"] + _EPSILON)
    shift = tensors[f"{name}.bn.bias"] - tensors[f"{name}.bn.running_mean"] * scale
    parts = []
    for at, dilation in enumerate(_DILATIONS):
        layer, own = f"{name}.Conv3D_{dilation}.layers", slice(filters * at, filters * (at + 1))
        space = tensors[f"{layer}.0.weight"][:, :, 0]
        part = graph.add("Conv", seen, space, pads=[1, 1, 1, 1])
        # (n, channels, rows, columns) to (1, channels, n, rows, columns).
        part = graph.add("Transpose", part, perm=[1, 0, 2, 3])
        part = graph.add("Unsqueeze", part, np.array([0]))
        kernel = tensors[f"{layer}.1.weight"] * scale[own, None, None, None, None]
        reach = {"pads": [dilation, 0, 0, dilation, 0, 0], "dilations": [dilation, 1, 1]}
        parts.append(graph.add("Conv", part, kernel, shift[own], **reach))
    found = graph.add("Squeeze", graph.add("Concat", *parts, axis=1), np.array([0]))
    return graph.add("Relu", graph.add("Transpose", found, perm=[1, 0, 2, 3]))
