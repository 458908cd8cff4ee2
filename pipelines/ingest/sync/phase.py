"""Fine alignment: generalised cross-correlation with phase transform, over many windows.

C. H. Knapp and G. C. Carter, "The generalized correlation method for estimation
of time delay", IEEE Transactions on Acoustics, Speech, and Signal Processing
24(4), 1976, 320-327: the cross-spectrum is divided by its magnitude, so that
every frequency counts the same and what remains is the delay. Here the windows'
correlations are added up along lines in time and lag, as two clocks that run
apart draw them; how far the best line stands out tells right from chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft as scipy_fft

from models.contracts import SAMPLE_RATE_HZ
from pipelines.ingest.sync.onsets import Pcm

WINDOW_SAMPLES = 4 * SAMPLE_RATE_HZ
_LEAST_SAMPLES = SAMPLE_RATE_HZ
_BAND_HZ = (150.0, 6000.0)
_MEDIAN_TO_SPREAD = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

_LEAST_PEAK = 5.0
_PEAK_WITHIN_SAMPLES = 64

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """How the target lies against the reference.

    Target sample *n* is reference sample *n* + ``lag`` + ``drift`` (*n* - ``anchor``);
    ``score`` counts standard deviations over what chance gives.
    """

    lag: float
    anchor: float
    drift: float
    score: float

    def lag_at(self, sample: float) -> float:
        """The lag in samples at a sample of the target."""
        return self.lag + self.drift * (sample - self.anchor)


@dataclass(frozen=True, slots=True)
class Grid:
    """Which lines are tried around one that is guessed."""

    half_range: int
    """Lags on both sides, in samples."""
    drifts: tuple[float, ...]
    """Differences from the guessed drift."""


def correlations(
    reference: Pcm, target: Pcm, starts: Sequence[int], guess: Line, half_range: int
) -> tuple[Floats, Floats]:
    """(windows' middles, their correlations) where both recordings have sound.

    A row holds lags -half_range to half_range around ``guess``, in standard deviations.
    """
    middles, rows = [], []
    for start in starts:
        middle = start + WINDOW_SAMPLES // 2
        lag = round(guess.lag_at(middle))
        first, last = max(start, -lag, 0), min(start + WINDOW_SAMPLES, len(reference) - lag)
        last = min(last, len(target))
        if last - first < _LEAST_SAMPLES:
            continue
        row = _correlation(reference[first + lag : last + lag], target[first:last], half_range)
        if row is not None:
            middles.append(middle)
            rows.append(row)
    shape = (len(rows), 2 * half_range + 1)
    return np.array(middles, np.float64), np.array(rows, np.float64).reshape(shape)


def _correlation(reference: Pcm, target: Pcm, half_range: int) -> Floats | None:
    """PHAT correlation at lags around 0; None where either is silent."""
    size = scipy_fft.next_fast_len(len(target) + half_range, real=True)
    shape = np.hanning(len(target)).astype(np.float32)
    cross = scipy_fft.rfft(reference * shape, size) * np.conj(scipy_fft.rfft(target * shape, size))
    magnitude = np.abs(cross)
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE_HZ)
    inside = (frequencies >= _BAND_HZ[0]) & (frequencies <= _BAND_HZ[1])
    mean = float(magnitude[inside].mean())
    if mean <= 0:
        return None
    whitened = np.where(inside, cross / (magnitude + np.float32(1e-3 * mean)), 0)
    values = scipy_fft.irfft(whitened, size)
    spread = _MEDIAN_TO_SPREAD * float(np.median(np.abs(values)))
    if spread <= 0:
        return None
    near = np.concatenate([values[-half_range:], values[: half_range + 1]])
    return np.asarray(near / spread, np.float64)


def best_line(
    reference: Pcm, target: Pcm, starts: Sequence[int], guess: Line, grid: Grid
) -> Line | None:
    """The line near ``guess`` along which the windows' correlations add up highest."""
    middles, rows = correlations(reference, target, starts, guess, grid.half_range)
    if len(rows) == 0:
        return None
    best: Line | None = None
    for change in grid.drifts:
        shifts = np.round(change * (middles - guess.anchor)).astype(int)
        summed = _along(rows, shifts)
        peak = int(np.argmax(np.abs(summed)))
        score = float(abs(summed[peak]))
        if best is None or score > best.score:
            lag = guess.lag + peak - grid.half_range
            best = Line(lag, guess.anchor, guess.drift + change, score)
    return best


def _along(rows: Floats, shifts: npt.NDArray[np.int_]) -> Floats:
    """Sum of the rows, each moved by its shift, over the root of their number."""
    total = np.zeros(rows.shape[1])
    for row, shift in zip(rows, shifts.tolist(), strict=True):
        if shift >= 0:
            total[: len(row) - shift] += row[shift:]
        else:
            total[-shift:] += row[:shift]
    return np.asarray(total / np.sqrt(len(rows)))


@dataclass(frozen=True, slots=True)
class DriftFit:
    """A straight line through the windows' own peaks; drift in samples a sample."""

    line: Line
    uncertainty: float
    """Standard error of the drift."""
    windows: int


def fitted(reference: Pcm, target: Pcm, starts: Sequence[int], line: Line) -> DriftFit | None:
    """``line`` refined below a sample by least squares; None with too few clear peaks."""
    middles, rows = correlations(reference, target, starts, line, _PEAK_WITHIN_SAMPLES)
    points = [
        (middle - line.anchor, lag, height)
        for middle, row in zip(middles.tolist(), rows, strict=True)
        for lag, height in [_peak(row)]
        if height >= _LEAST_PEAK
    ]
    if len(points) < 3:
        return None
    times, lags, weights = np.array(points).T
    # The windows' lags are whole samples away from the line, rounded like correlations() does.
    base = np.array([round(line.lag_at(t + line.anchor)) for t in times.tolist()])
    return _least_squares(times, base + lags, weights, line)


def _peak(row: Floats) -> tuple[float, float]:
    """Lag and height of the highest peak, between samples by a parabola."""
    height = np.abs(row)
    top = int(np.argmax(height))
    lag = float(top - len(row) // 2)
    if 0 < top < len(row) - 1:
        before, at, after = height[top - 1 : top + 2]
        bend = before - 2 * at + after
        lag += float(0.5 * (before - after) / bend) if bend < 0 else 0.0
    return lag, float(height[top])


def _least_squares(times: Floats, lags: Floats, weights: Floats, line: Line) -> DriftFit:
    keep = np.abs(lags - np.array([line.lag_at(t + line.anchor) for t in times])) < (
        _PEAK_WITHIN_SAMPLES / 2
    )
    if np.count_nonzero(keep) >= 3:
        times, lags, weights = times[keep], lags[keep], weights[keep]
    mean_time = float(np.average(times, weights=weights))
    centred = times - mean_time
    spread = float(np.sum(weights * centred**2))
    middle = float(np.average(lags, weights=weights))
    if spread <= 0:
        return DriftFit(Line(middle, line.anchor + mean_time, 0.0, line.score), np.inf, len(times))
    drift = float(np.sum(weights * centred * (lags - middle)) / spread)
    residual = lags - middle - drift * centred
    variance = float(np.average(residual**2, weights=weights)) / max(1, len(times) - 2)
    variance *= len(times)
    error = float(np.sqrt(max(variance, 0.25) * float(weights.mean()) / spread))
    return DriftFit(Line(middle, line.anchor + mean_time, drift, line.score), error, len(times))
