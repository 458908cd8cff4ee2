"""Task ``embed_voice`` with CAM++ in NumPy.

H. Wang et al. 2023, "CAM++: A Fast and Efficient Network for Speaker Verification Using
Context-Aware Masking" (arXiv:2303.00332), as 3D-Speaker publishes it for Chinese and English: a
two-dimensional convolutional head, three densely connected blocks of time-delay layers, each
masked by its context, mean and deviation over time, 192 values. Only the published weights are
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged.filterbanks import filter_banks
from models.backends.packaged.tensors import Tensors, read_tensors
from models.contracts import SAMPLE_RATE_HZ, Samples

Matrix = npt.NDArray[np.float32]
"""Mostly shape (channels, frames)."""

DIMENSIONS = 192
LONGEST_SAMPLES = 20 * SAMPLE_RATE_HZ
"""More of a voice changes nothing but the memory that it takes."""
SHORTEST_SAMPLES = SAMPLE_RATE_HZ // 10
_BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of each dense block."""
_CONTEXT_FRAMES = 100
_EPSILON = 1e-5
"""Added to variances, as torch's batch normalisation does."""


class CamPlusSpeakerEmbedder:
    """SpeakerEmbedder. Keeps no state between calls; one utterance at a time, on one core."""

    def __init__(self, weights: bytes) -> None:
        """From the file's bytes. Raises WeightsError."""
        self._weights = _prepared(read_tensors(weights))

    def embed(self, utterances: Sequence[Samples]) -> Matrix:
        """Unit vectors, shape (utterances, DIMENSIONS), one a row, in order.

        Of an utterance the first LONGEST_SAMPLES count; silence follows one of less than a tenth
        of a second.
        """
        vectors = np.empty((len(utterances), DIMENSIONS), np.float32)
        for row, samples in zip(vectors, utterances, strict=True):
            missing = max(0, SHORTEST_SAMPLES - len(samples))
            features = filter_banks(np.pad(samples[:LONGEST_SAMPLES], (0, missing)))
            row[:] = self._encoded((features - features.mean(axis=0)).T)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Matrix = vectors / np.maximum(lengths, 1e-12)
        return unit

    def _encoded(self, features: Matrix) -> Matrix:
        """The vector of features of shape (bands, frames)."""
        weights = self._weights
        hidden = _time_convolution(self._head(features), weights["xvector.tdnn.linear"], stride=2)
        hidden = self._normal(hidden, "xvector.tdnn.nonlinear")
        for index, (layers, dilation) in enumerate(_BLOCKS, start=1):
            hidden = self._dense_block(hidden, f"xvector.block{index}", layers, dilation)
            hidden = self._normal(hidden, f"xvector.transit{index}.nonlinear")
            hidden = weights[f"xvector.transit{index}.linear"] @ hidden
        hidden = self._normal(hidden, "xvector.out_nonlinear")
        pooled = np.concatenate([hidden.mean(axis=1), hidden.std(axis=1, ddof=1)])
        vector = weights["xvector.dense.linear"] @ pooled[:, None]
        name = "xvector.dense.nonlinear.batchnorm"
        result: Matrix = vector * weights[f"{name}.scale"] + weights[f"{name}.shift"]
        return result[:, 0]

    def _head(self, features: Matrix) -> Matrix:
        """32 maps of a tenth of the bands, side by side: shape (320, frames)."""
        maps = np.maximum(self._convolved(features[None], "head.conv1"), 0)
        for layer in ("head.layer1", "head.layer2"):
            for block, stride in ((f"{layer}.0", 2), (f"{layer}.1", 1)):
                inner = np.maximum(self._convolved(maps, f"{block}.conv1", stride), 0)
                if stride > 1:
                    maps = self._convolved(maps, f"{block}.shortcut.0", stride)
                maps = np.maximum(self._convolved(inner, f"{block}.conv2") + maps, 0)
        maps = np.maximum(self._convolved(maps, "head.conv2", 2), 0)
        return maps.reshape(-1, maps.shape[2])

    def _convolved(self, maps: Matrix, name: str, stride: int = 1) -> Matrix:
        """Maps of shape (channels, bands, frames) by a square kernel; the stride is in bands."""
        kernel, shift = self._weights[f"{name}.weight"], self._weights[f"{name}.shift"]
        _, _, size, _ = kernel.shape
        channels, bands, frames = maps.shape
        edge = size // 2
        padded = np.pad(maps, ((0, 0), (edge, edge), (edge, edge)))
        rows = -(-bands // stride)
        found = np.repeat(shift, rows * frames, axis=1)
        for band in range(size):
            of_rows = padded[:, band : band + stride * (rows - 1) + 1 : stride]
            near = np.stack([of_rows[:, :, at : at + frames] for at in range(size)])
            across = kernel[:, :, band].transpose(0, 2, 1).reshape(len(kernel), -1)
            found += across @ near.reshape(size * channels, rows * frames)
        return found.reshape(len(kernel), rows, frames)

    def _dense_block(self, inputs: Matrix, name: str, layers: int, dilation: int) -> Matrix:
        """The inputs and, below them, what each layer makes of all before it."""
        weights, count = self._weights, len(inputs)
        grown = weights[f"{name}.tdnnd1.cam_layer.linear_local"].shape[1]
        hidden = np.empty((count + layers * grown, inputs.shape[1]), np.float32)
        hidden[:count] = inputs
        for number in range(1, layers + 1):
            layer = f"{name}.tdnnd{number}"
            narrow = weights[f"{layer}.linear1"] @ self._normal(
                hidden[:count], f"{layer}.nonlinear1"
            )
            narrow = self._normal(narrow, f"{layer}.nonlinear2")
            hidden[count : count + grown] = self._masked(narrow, f"{layer}.cam_layer", dilation)
            count += grown
        return hidden

    def _masked(self, narrow: Matrix, name: str, dilation: int) -> Matrix:
        """A convolution over time, less what the mean of all frames and of each hundred masks."""
        weights, frames = self._weights, narrow.shape[1]
        starts = np.arange(0, frames, _CONTEXT_FRAMES)
        counts = np.diff(np.append(starts, frames))
        means = np.add.reduceat(narrow, starts, axis=1) / counts.astype(np.float32)
        context = narrow.mean(axis=1, keepdims=True) + means
        context = weights[f"{name}.linear1"] @ context + weights[f"{name}.linear1.bias"]
        mask = weights[f"{name}.linear2"] @ np.maximum(context, 0) + weights[f"{name}.linear2.bias"]
        kept: Matrix = np.repeat(1 / (1 + np.exp(-mask)), counts, axis=1)
        local = _time_convolution(narrow, weights[f"{name}.linear_local"], dilation=dilation)
        return local * kept

    def _normal(self, hidden: Matrix, name: str) -> Matrix:
        """Normalised and rectified."""
        weights = self._weights
        found: Matrix = hidden * weights[f"{name}.batchnorm.scale"]
        found += weights[f"{name}.batchnorm.shift"]
        return np.maximum(found, 0, out=found)


def _time_convolution(
    hidden: Matrix, kernel: Matrix, *, stride: int = 1, dilation: int = 1
) -> Matrix:
    """Over shape (channels, frames), padded; the kernel has shape (taps, outputs, channels)."""
    edge = dilation * (len(kernel) // 2)
    padded = np.pad(hidden, ((0, 0), (edge, edge)))
    frames = -(-hidden.shape[1] // stride)
    found = np.zeros((kernel.shape[1], frames), np.float32)
    for tap, weights in enumerate(kernel):
        start = tap * dilation
        found += weights @ padded[:, start : start + stride * (frames - 1) + 1 : stride]
    return found


def _prepared(tensors: Tensors) -> Tensors:
    """Normalisations as a scale and a shift, those of the head inside the convolutions before;
    convolutions over time as (taps, outputs, channels), of one tap as (outputs, channels)."""
    found: Tensors = {}
    for name, mean in tensors.items():
        if name.endswith(".running_mean"):
            norm = name.removesuffix(".running_mean")
            scale = 1 / np.sqrt(tensors[f"{norm}.running_var"] + _EPSILON)
            scale = scale * tensors.get(f"{norm}.weight", np.float32(1))
            shift = tensors.get(f"{norm}.bias", np.float32(0)) - mean * scale
            found[f"{norm}.scale"], found[f"{norm}.shift"] = scale[:, None], shift[:, None]
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if tensor.ndim == 4:
            after = layer.replace("conv", "bn").replace("shortcut.0", "shortcut.1")
            found[name] = tensor * found[f"{after}.scale"][:, :, None, None]
            found[f"{layer}.shift"] = found[f"{after}.shift"]
        elif tensor.ndim == 3:
            taps = np.ascontiguousarray(tensor.transpose(2, 0, 1))
            found[layer] = taps if len(taps) > 1 else taps[0]
        elif name.endswith(("linear1.bias", "linear2.bias")):
            found[name] = tensor[:, None]
    return found


def open_speaker_embedder(row: Backend, models_dir: Path | None) -> CamPlusSpeakerEmbedder:
    """The embedder with its verified weights. Raises WeightsError."""
    [weights] = row.packaged().read(models_dir).values()
    return CamPlusSpeakerEmbedder(weights)
