"""Task ``embed_voice`` with Resemblyzer's speaker encoder (GE2E, Wan et al. 2018) in NumPy.

Three LSTM layers of 256 cells over the mel spectrogram of 1.6 s, a linear layer, rectified, at
length 1; the vector of an utterance is the mean over its windows. Only the published weights are
used: they are read by an unpickler that constructs nothing but lists of numbers, never by torch.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from faster_whisper.feature_extractor import FeatureExtractor
from faster_whisper.vad import SileroVADModel

from models.backends import Backend
from models.contracts import SAMPLE_RATE_HZ, Probabilities, Samples
from models.weights import WeightsError

Matrix = npt.NDArray[np.float32]

DIMENSIONS = 256
_HIDDEN = 256
_LAYERS = 3
_MEL_BANDS = 40
_FFT_SAMPLES = SAMPLE_RATE_HZ * 25 // 1000
_HOP_SAMPLES = SAMPLE_RATE_HZ * 10 // 1000
_WINDOW_FRAMES = 160
"""What the encoder was trained on: 1.6 s."""
_STEP_FRAMES = 80
"""From one window to the next, at most: windows overlap by half."""
_LEVEL_DBFS = -30.0
"""Every utterance is scaled to it. Resemblyzer raises quieter ones only; with louder ones lowered
too, a vector does not depend on the level of the recording."""
_BATCH_WINDOWS = 64
"""Bounds memory; each window's result is its own."""


class ResemblyzerSpeakerEmbedder:
    """Keeps no state between calls."""

    def __init__(self, weights: bytes) -> None:
        tensors = read_tensors(weights)
        self._layers = [
            (
                tensors[f"lstm.weight_ih_l{layer}"].T.copy(),
                tensors[f"lstm.weight_hh_l{layer}"].T.copy(),
                tensors[f"lstm.bias_ih_l{layer}"] + tensors[f"lstm.bias_hh_l{layer}"],
            )
            for layer in range(_LAYERS)
        ]
        self._linear = tensors["linear.weight"].T.copy(), tensors["linear.bias"]
        self._filters: Matrix = np.asarray(
            FeatureExtractor.get_mel_filters(SAMPLE_RATE_HZ, _FFT_SAMPLES, n_mels=_MEL_BANDS),
            np.float32,
        )
        self._hann = np.hanning(_FFT_SAMPLES + 1)[:-1].astype(np.float32)

    def embed(self, utterances: Sequence[Samples]) -> Matrix:
        """Unit vectors, shape (utterances, DIMENSIONS), one a row, in order."""
        windows = [self._windows(samples) for samples in utterances]
        if not windows:
            return np.empty((0, DIMENSIONS), np.float32)
        every = np.concatenate(windows)
        parts = [
            self._encoded(every[first : first + _BATCH_WINDOWS])
            for first in range(0, len(every), _BATCH_WINDOWS)
        ]
        bounds = np.cumsum([len(each) for each in windows])[:-1]
        means = [part.mean(axis=0) for part in np.split(np.concatenate(parts), bounds)]
        return _unit(np.stack(means))

    def _windows(self, samples: Samples) -> Matrix:
        """Mel spectrograms of evenly spread windows, shape (windows, frames, bands)."""
        power = float(np.mean(samples.astype(np.float64) ** 2)) if len(samples) else 0.0
        gain = 10 ** (_LEVEL_DBFS / 20) / math.sqrt(power) if power > 0 else 1.0
        mel = self._mel((samples * gain).astype(np.float32))
        excess = max(0, len(mel) - _WINDOW_FRAMES)
        count = 1 + math.ceil(excess / _STEP_FRAMES)
        starts = np.linspace(0, excess, count).round().astype(int)
        padded = np.pad(mel, ((0, max(0, _WINDOW_FRAMES - len(mel))), (0, 0)))
        return np.stack([padded[start : start + _WINDOW_FRAMES] for start in starts])

    def _mel(self, samples: Samples) -> Matrix:
        """Mel power spectrogram (not its logarithm), shape (frames, bands)."""
        padded = np.pad(samples, _FFT_SAMPLES // 2)
        frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT_SAMPLES)[::_HOP_SAMPLES]
        power = np.abs(np.fft.rfft(frames * self._hann, axis=1)) ** 2
        mel: Matrix = power.astype(np.float32) @ self._filters.T
        return mel

    def _encoded(self, windows: Matrix) -> Matrix:
        """Unit vectors of windows of _WINDOW_FRAMES."""
        outputs = windows.transpose(1, 0, 2)
        for layer in self._layers:
            outputs = _lstm(outputs, *layer)
        weight, bias = self._linear
        return _unit(np.maximum(outputs[-1] @ weight + bias, 0.0))


def _lstm(inputs: Matrix, from_input: Matrix, from_hidden: Matrix, bias: Matrix) -> Matrix:
    """Hidden states of one layer, shape (frames, batch, cells); gates in the order i, f, g, o."""
    frames, batch, _ = inputs.shape
    driven = inputs @ from_input + bias
    hidden = np.zeros((batch, _HIDDEN), np.float32)
    cell = np.zeros((batch, _HIDDEN), np.float32)
    states = np.empty((frames, batch, _HIDDEN), np.float32)
    for frame in range(frames):
        gates = driven[frame] + hidden @ from_hidden
        keep, forget, value, out = np.split(gates, 4, axis=1)
        cell = _sigmoid(forget) * cell + _sigmoid(keep) * np.tanh(value)
        hidden = _sigmoid(out) * np.tanh(cell)
        states[frame] = hidden
    return states


def _sigmoid(values: Matrix) -> Matrix:
    result: Matrix = 0.5 + 0.5 * np.tanh(0.5 * values)
    return result


def _unit(vectors: Matrix) -> Matrix:
    """Rows at length 1; a row of zeros points the same way in all directions."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    even = np.full_like(vectors, 1 / math.sqrt(vectors.shape[1]))
    return np.where(lengths > 0, vectors / np.maximum(lengths, 1e-12), even).astype(np.float32)


class _Storage:
    """Stands for the numbers of a tensor, which follow the pickled objects in the file."""

    def __init__(self, key: str, count: int) -> None:
        self.key = key
        self.count = count


class _Tensor:
    """Stands for a tensor: its storage, where it begins in there, and its shape."""

    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], *_: object) -> None:
        self.storage = storage
        self.offset = offset
        self.shape = shape


class _TensorUnpickler(pickle.Unpickler):
    """Constructs dictionaries and stand-ins for float32 tensors; raises for all else."""

    _ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
        ("torch", "FloatStorage"): _Storage,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in weights")
        return self._ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        _, _, key, _, count, _ = pid
        return _Storage(key, count)


def read_tensors(data: bytes) -> dict[str, Matrix]:
    """The model's tensors by name, from a file that torch.save wrote before version 1.6.

    Such a file is five pickles (magic number, version, platform, objects, keys of the storages)
    and, for each key, the count of its numbers as int64 and the numbers. Raises WeightsError.
    """
    stream = io.BytesIO(data)
    try:
        for _ in range(3):
            _TensorUnpickler(stream).load()
        state: dict[str, _Tensor] = _TensorUnpickler(stream).load()["model_state"]
        numbers: dict[str, Matrix] = {}
        for key in _TensorUnpickler(stream).load():
            count = int.from_bytes(stream.read(8), "little")
            numbers[key] = np.frombuffer(stream.read(4 * count), "<f4", count)
        return {
            name: numbers[each.storage.key][each.offset :][: math.prod(each.shape)].reshape(
                each.shape
            )
            for name, each in state.items()
        }
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"The weights of the speaker encoder are unreadable: {error}") from error


def open_speaker_embedder(row: Backend, models_dir: Path | None) -> ResemblyzerSpeakerEmbedder:
    """The embedder of the profile ``packaged``."""
    [weights] = row.packaged().read(models_dir).values()
    return ResemblyzerSpeakerEmbedder(weights)


FRAME_SAMPLES = 512
"""Samples of one probability: 32 ms."""
SPEECH_PROBABILITY = 0.5
"""From which speech begins: Silero's own default."""
SILENCE_PROBABILITY = 0.35
"""Below which speech may end; Silero's default is 0.15 less than the other."""
MIN_SPEECH_SECONDS = 0.1
MIN_SILENCE_SECONDS = 0.1
"""Shorter gaps are part of speech: closures of stops last 50 to 80 ms."""

Region = tuple[float, float]


class SileroSpeechDetector:
    """Speech regions on a grid of 32 ms. Keeps no state between calls; one thread."""

    def __init__(self, weights: bytes) -> None:
        self._model: Any = SileroVADModel(weights)

    def detect(self, samples: Samples) -> list[Region]:
        """Regions (start, end) in seconds, sorted, disjoint, inside the samples."""
        if not len(samples):
            return []
        padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
        probabilities = np.asarray(self._model(padded)).reshape(-1)
        return regions_of(probabilities, len(samples) / SAMPLE_RATE_HZ)


def regions_of(probabilities: Probabilities, seconds: float) -> list[Region]:
    """Where speech begins at SPEECH_PROBABILITY and lasts until below SILENCE_PROBABILITY."""
    frame_seconds = FRAME_SAMPLES / SAMPLE_RATE_HZ
    regions: list[Region] = []
    start: int | None = None
    for index, probability in enumerate([*probabilities, 0.0]):
        if start is None and probability >= SPEECH_PROBABILITY:
            start = index
        elif start is not None and probability < SILENCE_PROBABILITY:
            region = (start * frame_seconds, min(seconds, index * frame_seconds))
            start = None
            if regions and region[0] - regions[-1][1] < MIN_SILENCE_SECONDS:
                region = (regions.pop()[0], region[1])
            regions.append(region)
    return [(start, end) for start, end in regions if end - start >= MIN_SPEECH_SECONDS]


def open_speech_detector(row: Backend, models_dir: Path | None) -> SileroSpeechDetector:
    """The detector of the profile ``packaged``."""
    [weights] = row.packaged().read(models_dir).values()
    return SileroSpeechDetector(weights)
