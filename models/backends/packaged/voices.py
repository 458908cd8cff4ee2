"""Voices: who speaks when within seconds, and a voice as a vector.

Task ``segment_speakers`` is pyannote's segmentation-3.0, a convolutional and recurrent network
(Bredin and Laurent 2021) whose classes are the sets of at most two of three local speakers (Plaquet
and Bredin 2023, "Powerset multi-class cross entropy loss for neural speaker diarization"): on
onnxruntime, or on a GPU the published network in PyTorch, through pyannote.audio.

Task ``embed_voice`` is CAM++ (H. Wang et al. 2023, "CAM++: A Fast and Efficient Network for Speaker
Verification Using Context-Aware Masking", arXiv:2303.00332), as 3D-Speaker publishes it for Chinese
and English: a two-dimensional convolutional head, three densely connected blocks of time-delay
layers, each masked by its context, mean and deviation over time, 192 values. Only the published
weights are used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.backends import Backend
from models.backends.packaged import Graph, Network, Tensor, Tensors, batched, read_tensors
from models.backends.packaged.sounds import BANDS, filter_banks
from models.contracts import ACTIVITY_WINDOW_SAMPLES, SAMPLE_RATE_HZ, Samples, SpeakerActivity
from models.weights import WeightsError

if TYPE_CHECKING:
    from models.backends.transformers import Hardware

DIMENSIONS = 192
LONGEST_SAMPLES = 20 * SAMPLE_RATE_HZ
"""More of a voice changes nothing but the memory that it takes."""
SHORTEST_SAMPLES = SAMPLE_RATE_HZ // 10
_FULL_FRAMES = 1_000
"""Ten seconds; of what is shorter so many more share a batch."""
_BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of each dense block."""
_CONTEXT_FRAMES = 100
_EPSILON = 1e-5
"""Added to variances, as torch's batch normalisation does."""


class CamPlusSpeakerEmbedder:
    """SpeakerEmbedder. Keeps no state between calls; on one core, or on a GPU."""

    def __init__(self, weights: bytes, gpu_bytes: int = 0, max_batch: int = 1) -> None:
        """From the file's bytes. Raises WeightsError."""
        self._session = _session(read_tensors(weights), gpu_bytes)
        self._max_batch = max_batch

    def embed(self, utterances: Sequence[Samples]) -> Tensor:
        """Unit vectors, shape (utterances, DIMENSIONS), one a row, in order.

        Of an utterance the first LONGEST_SAMPLES count; silence follows one of less than a tenth
        of a second. Those of one length share a batch: nothing has to be filled up.
        """
        features = [_features(samples) for samples in utterances]
        found = batched(self._run, features, self._max_batch, _FULL_FRAMES)
        vectors = np.array([each for [each] in found], np.float32).reshape(-1, DIMENSIONS)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Tensor = vectors / np.maximum(norms, 1e-12)
        return unit

    def _run(self, features: Tensor) -> list[Tensor]:
        vectors: list[Tensor] = self._session.run(None, {"features": features})
        return vectors


def _features(samples: Samples) -> Tensor:
    """Shape (bands, frames), less their mean."""
    missing = max(0, SHORTEST_SAMPLES - len(samples))
    found = filter_banks(np.pad(samples[:LONGEST_SAMPLES], (0, missing)))
    return np.ascontiguousarray((found - found.mean(axis=0)).T)


def _session(tensors: Tensors, gpu_bytes: int) -> Any:
    """Features, shape (n, bands, frames), to vectors (n, DIMENSIONS)."""
    graph = Graph()
    network = _CamPlus(graph, tensors)
    try:
        vectors = network.vectors(network.head("features"))
    except KeyError as error:
        raise WeightsError(f"The file holds no weights of CAM++: {error}") from error
    return graph.session(
        ["n", BANDS, "frames"], [vectors], gpu_bytes, name="features", kind=np.float32
    )


@dataclass(frozen=True, slots=True)
class _CamPlus:
    """The network's parts as nodes of a graph; each returns its output's name."""

    graph: Graph
    weights: Tensors

    def head(self, features: str) -> str:
        """32 maps of a tenth of the bands, side by side: shape (n, 320, frames)."""
        maps = self.graph.add("Unsqueeze", features, np.array([1]))
        maps = self.graph.add("Relu", self._convolved(maps, "head.conv1"))
        for layer in ("head.layer1", "head.layer2"):
            for block, stride in ((f"{layer}.0", 2), (f"{layer}.1", 1)):
                inner = self.graph.add("Relu", self._convolved(maps, f"{block}.conv1", stride))
                if stride > 1:
                    maps = self._convolved(maps, f"{block}.shortcut.0", stride)
                inner = self._convolved(inner, f"{block}.conv2")
                maps = self.graph.add("Relu", self.graph.add("Add", inner, maps))
        maps = self.graph.add("Relu", self._convolved(maps, "head.conv2", 2))
        return self.graph.add("Reshape", maps, np.array([0, 320, 1, -1]))

    def vectors(self, hidden: str) -> str:
        """Shape (n, DIMENSIONS)."""
        add = self.graph.add
        hidden = self._over_time(hidden, "xvector.tdnn.linear", strides=[1, 2])
        hidden = self._active(hidden, "xvector.tdnn.nonlinear")
        # The hundred of each frame.
        frames = add("Slice", add("Shape", hidden), np.array([3]), np.array([4]))
        count = add("Squeeze", frames, np.array([0]))
        places = add("Range", np.array(0), count, np.array(1))
        hundreds = add("Div", places, np.array(_CONTEXT_FRAMES))
        for index, (layers, dilation) in enumerate(_BLOCKS, start=1):
            for number in range(1, layers + 1):
                layer = f"xvector.block{index}.tdnnd{number}"
                narrow = self._active(hidden, f"{layer}.nonlinear1")
                narrow = self._over_time(narrow, f"{layer}.linear1")
                narrow = self._active(narrow, f"{layer}.nonlinear2")
                made = self._masked(narrow, f"{layer}.cam_layer", dilation, hundreds)
                hidden = add("Concat", hidden, made, axis=1)
            hidden = self._active(hidden, f"xvector.transit{index}.nonlinear")
            hidden = self._over_time(hidden, f"xvector.transit{index}.linear")
        hidden = self._active(hidden, "xvector.out_nonlinear")
        mean = add("ReduceMean", hidden, np.array([3]), keepdims=1)
        apart = add("Sub", hidden, mean)
        squares = add("ReduceSum", add("Mul", apart, apart), np.array([3]), keepdims=1)
        others = add("Cast", add("Sub", count, np.array(1)), to=1)
        deviation = add("Sqrt", add("Div", squares, others))
        pooled = add("Concat", mean, deviation, axis=1)
        vector = self._over_time(pooled, "xvector.dense.linear")
        vector = self._normal(vector, "xvector.dense.nonlinear.batchnorm")
        return add("Squeeze", vector, np.array([2, 3]))

    def _convolved(self, maps: str, name: str, stride: int = 1) -> str:
        """Maps (n, channels, bands, frames) by a square kernel, with the normalisation after it;
        the stride is in bands."""
        kernel = self.weights[f"{name}.weight"]
        how = {"pads": [kernel.shape[2] // 2] * 4, "strides": [stride, 1]}
        maps = self.graph.add("Conv", maps, kernel, **how)
        return self._normal(maps, name.replace("conv", "bn").replace("shortcut.0", "shortcut.1"))

    def _over_time(self, hidden: str, name: str, dilation: int = 1, **how: Any) -> str:
        kernel = self.weights[f"{name}.weight"]
        kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
        biases = [self.weights[f"{name}.bias"]] if f"{name}.bias" in self.weights else []
        edge = dilation * (kernel.shape[3] // 2)
        how |= {"pads": [0, edge, 0, edge], "dilations": [1, dilation]}
        return self.graph.add("Conv", hidden, kernel, *biases, **how)

    def _masked(self, narrow: str, name: str, dilation: int, hundreds: str) -> str:
        """A convolution over time, less what the mean of all frames and of each hundred masks."""
        add = self.graph.add
        size = {"kernel_shape": [1, _CONTEXT_FRAMES], "strides": [1, _CONTEXT_FRAMES]}
        means = add("AveragePool", narrow, ceil_mode=1, count_include_pad=0, **size)
        context = add("Add", means, add("ReduceMean", narrow, np.array([3]), keepdims=1))
        context = add("Relu", self._over_time(context, f"{name}.linear1"))
        mask = add("Sigmoid", self._over_time(context, f"{name}.linear2"))
        kept = add("Gather", mask, hundreds, axis=3)
        return add("Mul", self._over_time(narrow, f"{name}.linear_local", dilation), kept)

    def _active(self, hidden: str, name: str) -> str:
        """Normalised and rectified."""
        return self.graph.add("Relu", self._normal(hidden, f"{name}.batchnorm"))

    def _normal(self, hidden: str, name: str) -> str:
        """Normalised: onnxruntime puts it into a convolution that it follows."""
        mean, variance = (self.weights[f"{name}.running_{it}"] for it in ("mean", "var"))
        scale = self.weights.get(f"{name}.weight", np.ones_like(mean))
        shift = self.weights.get(f"{name}.bias", np.zeros_like(mean))
        given = scale, shift, mean, variance
        return self.graph.add("BatchNormalization", hidden, *given, epsilon=_EPSILON)


def open_speaker_embedder(row: Backend, models_dir: Path | None) -> CamPlusSpeakerEmbedder:
    """The embedder with its verified weights. Raises WeightsError."""
    [weights] = row.packaged().read(models_dir).values()
    return CamPlusSpeakerEmbedder(weights, row.session_bytes, row.max_batch)


POWERSET = np.array(
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], np.bool_
)
"""Class of the network -> which local speakers speak."""


class OnnxSpeakerSegmenter:
    """Deterministic; one window at a time, on one core: 0.04 s of it."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def segment(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        found = []
        for samples in windows:
            window = np.pad(samples, (0, ACTIVITY_WINDOW_SAMPLES - len(samples)))
            # Logarithms of probabilities, shape (frames, classes).
            scores = self._network(window[None, None].astype(np.float32))[0][0]
            found.append(activity_of(scores))
        return found


def activity_of(scores: Tensor) -> SpeakerActivity:
    """From logarithms of the classes' probabilities, shape (ACTIVITY_FRAMES, 7)."""
    speech = (1.0 - np.exp(scores[:, 0])).astype(np.float32).clip(0.0, 1.0)
    return SpeakerActivity(speech, POWERSET[scores.argmax(axis=1)])


def open_speaker_segmenter(row: Backend, models_dir: Path | None) -> OnnxSpeakerSegmenter:
    """The segmenter with its verified weights. Raises WeightsError."""
    [path] = row.packaged().paths(models_dir).values()
    return OnnxSpeakerSegmenter(Network(path))


class PyannoteSpeakerSegmenter:
    """SpeakerSegmenter on a GPU. In float32: recurrent layers gain nothing from less."""

    def __init__(self, checkpoint: Path, hardware: Hardware, *, max_batch: int = 32) -> None:
        """``checkpoint`` is a verified file."""
        # The library reports each model that it opens unless that is disabled before its import.
        os.environ["PYANNOTE_METRICS_ENABLED"] = "0"
        from pyannote.audio import Model

        from models.backends.transformers import Batches

        model: Any = Model.from_pretrained(checkpoint, map_location=hardware.device)
        self._model = model.to(hardware.device).eval()
        self._device = hardware.device
        self._batches = Batches(max_batch)

    def segment(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        return self._batches.run(self._segmented, windows)

    def _segmented(self, windows: Sequence[Samples]) -> list[SpeakerActivity]:
        import torch

        padded = [np.pad(each, (0, ACTIVITY_WINDOW_SAMPLES - len(each))) for each in windows]
        inputs = torch.from_numpy(np.stack(padded, dtype=np.float32)).unsqueeze(1)
        with torch.inference_mode():
            # Logarithms of probabilities, shape (windows, frames, classes).
            scores = self._model(inputs.to(self._device)).float().cpu().numpy()
        return [activity_of(each) for each in scores]


def open_pyannote_segmenter(row: Backend, models_dir: Path | None) -> PyannoteSpeakerSegmenter:
    """The segmenter with its verified weights. Raises WeightsError."""
    from models.backends.transformers import pick_hardware

    [path] = row.packaged().paths(models_dir).values()
    return PyannoteSpeakerSegmenter(path, pick_hardware(row.device), max_batch=row.max_batch)
