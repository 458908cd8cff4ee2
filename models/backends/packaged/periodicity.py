"""How periodic sound is, and at which pitch: normalised autocorrelation (Boersma 1993)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.contracts import SAMPLE_RATE_HZ

PITCH_WINDOW_SAMPLES = 1024
"""Long enough for three periods of the lowest pitch."""

_LOWEST_HZ, _HIGHEST_HZ = 60, 400
_SHORTEST, _LONGEST = SAMPLE_RATE_HZ // _HIGHEST_HZ, SAMPLE_RATE_HZ // _LOWEST_HZ
_NEARLY_BEST = 0.93
"""Multiples of the period correlate as well as the period: the shortest lag whose
correlation is this near to the best one is taken."""

Matrix = npt.NDArray[np.float64]


def pitch_of(windows: Matrix) -> tuple[Matrix, Matrix]:
    """Pitch in Hz (60 to 400) and its correlation (1: perfectly periodic), one a window.

    ``windows`` has the shape (windows, PITCH_WINDOW_SAMPLES).
    """
    taper = np.hanning(PITCH_WINDOW_SAMPLES)
    own = _autocorrelation(taper[None, :])
    found = _autocorrelation((windows - windows.mean(axis=1, keepdims=True)) * taper)
    energy = np.maximum(found[:, :1], 1e-9)
    ratio = found[:, _SHORTEST:_LONGEST] / energy * (own[:, :1] / own[:, _SHORTEST:_LONGEST])
    best = ratio.max(axis=1, keepdims=True)
    lags = _SHORTEST + np.argmax(ratio >= _NEARLY_BEST * best, axis=1)
    return SAMPLE_RATE_HZ / lags, best[:, 0]


def _autocorrelation(rows: Matrix) -> Matrix:
    size = 2 * rows.shape[1]
    correlation: Matrix = np.fft.irfft(np.abs(np.fft.rfft(rows, size)) ** 2)
    return correlation
