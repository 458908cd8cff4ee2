"""The shape of a spectrum in a few numbers: mel-frequency cepstra (Davis and Mermelstein 1980)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.fft import dct

from models.contracts import SAMPLE_RATE_HZ, Samples

CEPSTRA = 20
WINDOW_SAMPLES = 400
_FFT = 512
_MELS = 30
_LOW_HZ, _HIGH_HZ = 100.0, 6800.0

Matrix = npt.NDArray[np.float64]


def windows_of(samples: Samples, size: int, hop: int) -> Matrix:
    """Windows of ``size`` every ``hop`` samples, shape (at least 1, size)."""
    padded = np.pad(samples.astype(np.float64), (0, size))
    count = max(1, 1 + (len(samples) - WINDOW_SAMPLES) // hop)
    return np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][:count]


def cepstra_of(windows: Matrix) -> tuple[Matrix, Matrix]:
    """Cepstra without the zeroth, shape (windows, CEPSTRA), and levels in dB.

    ``windows`` has the shape (windows, WINDOW_SAMPLES).
    """
    emphasised = np.diff(windows, prepend=windows[:, :1], axis=1) + 0.03 * windows
    power = np.abs(np.fft.rfft(emphasised * np.hamming(WINDOW_SAMPLES), _FFT)) ** 2
    mel = np.log(np.maximum(power @ _mel_filters().T, 1e-10))
    levels = 10 * np.log10(np.maximum(np.mean(windows**2, axis=1), 1e-12))
    cepstra: Matrix = dct(mel, type=2, norm="ortho", axis=1)[:, 1 : CEPSTRA + 1]
    return cepstra, levels


def _mel_filters() -> Matrix:
    """Triangles even on the mel scale, shape (_MELS, bins)."""
    mel = np.linspace(_hz_to_mel(_LOW_HZ), _hz_to_mel(_HIGH_HZ), _MELS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.fft.rfftfreq(_FFT, 1 / SAMPLE_RATE_HZ)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)))


def _hz_to_mel(hz: float) -> float:
    return float(2595 * np.log10(1 + hz / 700))
