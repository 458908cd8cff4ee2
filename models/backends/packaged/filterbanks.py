"""Kaldi's logarithmic mel filter banks (``compute-fbank-feats``), which speech networks take.

Frames of 25 ms every 10 ms, without the mean, pre-emphasis 0.97, Povey's window, power spectrum of
512 points, 80 triangles from 20 Hz to half the sample rate. Samples are scaled to 16-bit integers
and there is no dither, so that digital silence alone meets the floor.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from models.contracts import SAMPLE_RATE_HZ, Samples

Matrix = npt.NDArray[np.float32]

BANDS = 80
FRAME_SAMPLES = SAMPLE_RATE_HZ * 25 // 1000
HOP_SAMPLES = SAMPLE_RATE_HZ * 10 // 1000
_FFT_SAMPLES = 512
_LOWEST_HZ = 20.0
_PRE_EMPHASIS = 0.97
_FULL_SCALE = 32768.0
_FLOOR = float(np.finfo(np.float32).eps)


def filter_banks(samples: Samples) -> Matrix:
    """Shape (frames, BANDS), only of whole frames; none of fewer than FRAME_SAMPLES samples."""
    if len(samples) < FRAME_SAMPLES:
        return np.empty((0, BANDS), np.float32)
    scaled = samples * np.float32(_FULL_SCALE)
    frames = np.lib.stride_tricks.sliding_window_view(scaled, FRAME_SAMPLES)[::HOP_SAMPLES]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = (frames - _PRE_EMPHASIS * before) * _window()
    power = np.abs(np.fft.rfft(frames, _FFT_SAMPLES, axis=1)[:, :-1]) ** 2
    energies: Matrix = np.log(np.maximum(power.astype(np.float32) @ _triangles(), _FLOOR))
    return energies


@functools.cache
def _window() -> Matrix:
    angles = 2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1)
    window: Matrix = ((0.5 - 0.5 * np.cos(angles)) ** 0.85).astype(np.float32)
    return window


@functools.cache
def _triangles() -> Matrix:
    """Shape (_FFT_SAMPLES / 2, BANDS)."""

    def mel(hz: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        scale: npt.NDArray[np.floating] = 1127.0 * np.log(1.0 + hz / 700.0)
        return scale

    low, high = mel(np.array([_LOWEST_HZ, SAMPLE_RATE_HZ / 2]))
    edges = np.linspace(low, high, BANDS + 2)
    bins = mel(np.arange(_FFT_SAMPLES // 2) * (SAMPLE_RATE_HZ / _FFT_SAMPLES))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles: Matrix = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    return triangles
