"""Alignment of two recordings of the same sound: coarse, fine, then along the whole overlap.

Coarse, to about 20 ms: how the loudness of a few frequency bands rises and falls, each in decibels
against its own recent mean, so that a microphone's colour, its level and steady noise drop out. 50
values a second keep a day of audio in 45 MB.

Fine: generalised cross-correlation with phase transform (C. H. Knapp and G. C. Carter, "The
generalized correlation method for estimation of time delay", IEEE Transactions on Acoustics,
Speech, and Signal Processing 24(4), 1976, 320-327): the cross-spectrum is divided by its magnitude,
so that every frequency counts the same and what remains is the delay. The windows' correlations are
added up along lines in time and lag, as two clocks with different rates draw them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy

from models.contracts import SAMPLE_RATE_HZ
from pipelines.codec import Artifact
from pipelines.execution.chain import Control, Workspace
from pipelines.media.audio import read_blocks
from pipelines.types import AudioTrack
from storage.objects.local_files import temporary_folder

Pcm = npt.NDArray[np.int16]
"""Mono 16-bit samples at SAMPLE_RATE_HZ; may be a memory map."""

Singles = npt.NDArray[np.float32]
Envelopes = npt.NDArray[np.float16]
"""(bands, frames) of level changes, mean 0, spread 1 in each band."""

ENVELOPE_RATE_HZ = 50
_HOP = SAMPLE_RATE_HZ // ENVELOPE_RATE_HZ
_WINDOW = 2 * _HOP
_BAND_EDGES_HZ = (150, 400, 800, 1500, 2800, 5500)
_BLOCK_FRAMES = 30_000
"""Ten minutes of audio are transformed at once."""

_SHARE_BELOW_FLOOR = 0.2
"""The level of a band's quietest fifth counts as its noise."""

_RECENT_FRAMES = 75
_LOUDEST = 4.0

CHUNK_FRAMES = 60 * ENVELOPE_RATE_HZ
_MOST_CHUNKS = 24
_PEAKS_A_CHUNK = 6
_PEAK_APART_FRAMES = 6
_LEAST_OVERLAP_FRAMES = 3 * ENVELOPE_RATE_HZ


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where the target may belong.

    Target sample *n* would be reference sample *n* + ``lag``; ``anchor`` is the
    target sample around which the two were found alike.
    """

    lag: int
    anchor: int
    score: float


def envelopes(samples: Pcm) -> Envelopes:
    """Return the level changes of each band, 50 times a second."""
    levels = np.concatenate([_levels(block) for block in _blocks(samples)], axis=1)
    if levels.shape[1] == 0:
        return np.empty(levels.shape, np.float16)
    moved: Envelopes = np.stack([_movement(band) for band in levels])
    return moved


def _blocks(samples: Pcm) -> Iterator[Pcm]:
    """Yield parts of the samples for a whole number of frames each, with the window's overlap."""
    frames = max(0, (len(samples) - _WINDOW) // _HOP + 1)
    for first in range(0, frames, _BLOCK_FRAMES):
        count = min(_BLOCK_FRAMES, frames - first)
        yield samples[first * _HOP : (first + count - 1) * _HOP + _WINDOW]
    if frames == 0:
        yield samples[:0]


def _levels(samples: Pcm) -> Singles:
    """(bands, frames) energy of the bands; 2 000 frames at a time, to stay small."""
    edges = np.round(np.array(_BAND_EDGES_HZ) * _WINDOW / SAMPLE_RATE_HZ).astype(int)
    if len(samples) < _WINDOW:
        return np.empty((len(edges) - 1, 0), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[::_HOP]
    shape = np.hanning(_WINDOW).astype(np.float32)
    parts = []
    for first in range(0, len(frames), 2_000):
        spectra = scipy.fft.rfft(frames[first : first + 2_000].astype(np.float32) * shape)
        power = np.square(np.abs(spectra))
        parts.append(np.add.reduceat(power, edges, axis=1)[:, : len(edges) - 1].T)
    return np.concatenate(parts, axis=1)


def _movement(energy: Singles) -> Envelopes:
    """Return one band's level in dB over its noise, less its recent mean, scaled to spread 1."""
    floor = np.float32(np.quantile(energy, _SHARE_BELOW_FLOOR)) + np.float32(1.0)
    level = np.log10(energy / floor + np.float32(1.0))
    moving = level - scipy.ndimage.uniform_filter1d(level, _RECENT_FRAMES, mode="nearest")
    spread = float(moving.std())
    if spread < 1e-4:
        return np.zeros(len(energy), np.float16)
    bounded: Envelopes = np.clip(moving / spread, -_LOUDEST, _LOUDEST).astype(np.float16)
    return bounded


def candidates(reference: Envelopes, target: Envelopes, most: int) -> list[Candidate]:
    """Return the likeliest places for the target, best first, at most ``most``.

    Intervals of the shorter one, up to a minute long, are looked for anywhere in
    the longer one, each by itself: clocks that run apart then blur nothing.
    """
    if reference.shape[1] < _LEAST_OVERLAP_FRAMES or target.shape[1] < _LEAST_OVERLAP_FRAMES:
        return []
    swapped = target.shape[1] > reference.shape[1]
    hay, needle = (target, reference) if swapped else (reference, target)
    search = _Search.of(hay)
    found = []
    for start in _chunk_starts(needle):
        chunk = needle[:, start : start + CHUNK_FRAMES]
        for position, score in search.peaks(chunk):
            lag = position - start
            # The middle of that part of the chunk that lies inside the hay.
            first, last = max(0, -position), min(chunk.shape[1], hay.shape[1] - position)
            middle = start + (first + last) // 2
            anchor = middle + lag if swapped else middle
            found.append(Candidate((-lag if swapped else lag) * _HOP, anchor * _HOP, score))
    return _distinct(found, most)


def _chunk_starts(needle: Envelopes) -> list[int]:
    """Starts of the intervals to look for: the liveliest, spread over the whole."""
    frames = needle.shape[1]
    count = max(1, -(-frames // CHUNK_FRAMES))
    starts = [round(index * (frames - CHUNK_FRAMES) / max(1, count - 1)) for index in range(count)]
    starts = [max(0, start) for start in starts]
    if count <= _MOST_CHUNKS:
        return starts
    chunks = [needle[:, start : start + CHUNK_FRAMES] for start in starts]
    activity = [float(np.square(chunk, dtype=np.float32).mean()) for chunk in chunks]
    groups = np.array_split(np.arange(count), _MOST_CHUNKS)
    return [starts[max(group, key=lambda index: activity[index])] for group in groups]


@dataclass(frozen=True, slots=True)
class _Search:
    """A long recording, transformed once, to look for intervals in."""

    spectra: list[npt.NDArray[np.complex64]]
    energy: npt.NDArray[np.float64]
    """Sum of squares up to each frame, over all bands."""
    frames: int
    size: int

    @classmethod
    def of(cls, hay: Envelopes) -> _Search:
        size = scipy.fft.next_fast_len(hay.shape[1] + CHUNK_FRAMES, real=True)
        squares = np.square(hay, dtype=np.float32).sum(axis=0)
        return cls(
            spectra=[scipy.fft.rfft(band.astype(np.float32), size) for band in hay],
            energy=np.concatenate([[0.0], np.cumsum(squares, dtype=np.float64)]),
            frames=hay.shape[1],
            size=size,
        )

    def peaks(self, chunk: Envelopes) -> list[tuple[int, float]]:
        """Frame of the hay at which the chunk would start (may be negative), and how alike."""
        length = chunk.shape[1]
        total = np.zeros(self.size // 2 + 1, np.complex64)
        for spectrum, band in zip(self.spectra, chunk, strict=True):
            total += spectrum * np.conj(scipy.fft.rfft(band.astype(np.float32), self.size))
        alike = scipy.fft.irfft(total, self.size).astype(np.float32)
        positions = np.arange(-length + _LEAST_OVERLAP_FRAMES, self.frames - _LEAST_OVERLAP_FRAMES)
        first, last = np.maximum(positions, 0), np.minimum(positions + length, self.frames)
        mean_square = float(np.square(chunk, dtype=np.float32).sum(axis=0).mean()) + 1e-6
        expected = np.maximum(self.energy[last] - self.energy[first], _LEAST_OVERLAP_FRAMES)
        scores = alike[positions] / np.sqrt(expected * mean_square)
        top = scores == scipy.ndimage.maximum_filter1d(scores, 2 * _PEAK_APART_FRAMES + 1)
        order = np.argsort(np.where(top, -scores, np.inf))[:_PEAKS_A_CHUNK]
        return [(int(positions[index]), float(scores[index])) for index in order]


def _distinct(found: list[Candidate], most: int) -> list[Candidate]:
    """Return the best of those that lie close together; several that agree count for more."""
    apart = _PEAK_APART_FRAMES * _HOP
    groups: list[list[Candidate]] = []
    for candidate in sorted(found, key=lambda each: -each.score):
        near = (group for group in groups if abs(group[0].lag - candidate.lag) <= apart)
        if (group := next(near, None)) is None:
            groups.append(group := [])
        group.append(candidate)
    best = [
        Candidate(group[0].lag, group[0].anchor, float(np.sqrt(sum(c.score**2 for c in group))))
        for group in groups
    ]
    return sorted(best, key=lambda each: -each.score)[:most]


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
        """Return the lag in samples at a sample of the target."""
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
    """(windows' middles, their correlations) where both recordings have samples.

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
    size = scipy.fft.next_fast_len(len(target) + half_range, real=True)
    shape = np.hanning(len(target)).astype(np.float32)
    cross = scipy.fft.rfft(reference * shape, size) * np.conj(scipy.fft.rfft(target * shape, size))
    magnitude = np.abs(cross)
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE_HZ)
    inside = (frequencies >= _BAND_HZ[0]) & (frequencies <= _BAND_HZ[1])
    mean = float(magnitude[inside].mean())
    if mean <= 0:
        return None
    whitened = np.where(inside, cross / (magnitude + np.float32(1e-3 * mean)), 0)
    values = scipy.fft.irfft(whitened, size)
    spread = _MEDIAN_TO_SPREAD * float(np.median(np.abs(values)))
    if spread <= 0:
        return None
    near = np.concatenate([values[-half_range:], values[: half_range + 1]])
    return np.asarray(near / spread, np.float64)


def best_line(
    reference: Pcm, target: Pcm, starts: Sequence[int], guess: Line, grid: Grid
) -> Line | None:
    """Return the line near ``guess`` along which the windows' correlations add up highest."""
    middles, rows = correlations(reference, target, starts, guess, grid.half_range)
    if len(rows) == 0:
        return None
    best: Line | None = None
    for change in grid.drifts:
        shifts = np.round(change * (middles - guess.anchor)).astype(int)
        # Sum of the rows, each moved by its shift, over the root of their number.
        total = np.zeros(rows.shape[1])
        for row, shift in zip(rows, shifts.tolist(), strict=True):
            if shift >= 0:
                total[: len(row) - shift] += row[shift:]
            else:
                total[-shift:] += row[:shift]
        summed = np.asarray(total / np.sqrt(len(rows)))
        peak = int(np.argmax(np.abs(summed)))
        score = float(abs(summed[peak]))
        if best is None or score > best.score:
            lag = guess.lag + peak - grid.half_range
            best = Line(lag, guess.anchor, guess.drift + change, score)
    return best


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


_CANDIDATES = 12
_FIRST_SPAN = 150 * SAMPLE_RATE_HZ
_SPAN_GROWTH = 4
_WINDOWS = 12
_HALF_RANGE = round(0.1 * SAMPLE_RATE_HZ)
_MOST_DRIFT = 200e-6
_DRIFT_STEP = 5e-6
_SAME_PLACE = round(0.05 * SAMPLE_RATE_HZ)

_CHANCE_SCORE = 10.0
"""Recordings that have nothing in common reach this with the best of all lines tried."""

_CLEAR_SCORE = 18.0
_AMBIGUOUS_SHARE = 0.9
_DISTINCT_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where the target begins on the reference's timeline, and how sure that is."""

    offset_seconds: float
    """Of the target's first sample, from the reference's; right in the middle of the overlap."""
    confidence: float
    """0 to 1; chance reaches almost nothing, and below 0.5 it should not be relied on."""
    overlap_seconds: float
    drift_ppm: float | None = None
    """How much longer the reference takes than the target, in parts per million; None where
    it cannot be measured."""
    drift_uncertainty_ppm: float = 0.0
    score: float = 0.0


CERTAIN = 0.5
"""The confidence from which an alignment counts as right."""


def align(
    reference: Pcm, target: Pcm, *, check: Callable[[], None] = lambda: None
) -> Alignment | None:
    """Return where ``target`` belongs on ``reference``'s timeline; None where nothing is alike at
    all.

    Both are mono at SAMPLE_RATE_HZ and may be memory maps: what is held besides grows by about 7 kB
    a second of sound (0.6 GB for a day of both). ``check`` is called between steps.
    """
    movements = (envelopes(reference), envelopes(target))
    check()
    lines = []
    for candidate in candidates(*movements, _CANDIDATES):
        check()
        line = _confirmed(reference, target, movements[1], candidate)
        if line is not None:
            lines.append(line)
    if not lines:
        return None
    lines.sort(key=lambda line: -line.score)
    best = _followed(reference, target, movements[1], lines[0], check)
    return _alignment(reference, target, movements[1], best, _confidence(lines))


def _confirmed(
    reference: Pcm, target: Pcm, movement: Envelopes, candidate: Candidate
) -> Line | None:
    """Return the best line near a coarse candidate, from windows around its anchor."""
    guess = Line(candidate.lag, candidate.anchor, 0.0, 0.0)
    starts = _window_starts(reference, target, movement, guess, _FIRST_SPAN)
    steps = round(_MOST_DRIFT / _DRIFT_STEP)
    drifts = tuple(step * _DRIFT_STEP for step in range(-steps, steps + 1))
    if len(starts) < 2:
        drifts = (0.0,)
    return best_line(reference, target, starts, guess, Grid(_HALF_RANGE, drifts))


def _followed(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, check: Callable[[], None]
) -> Line:
    """``line`` followed to both ends of the overlap, knowing its drift better at each step."""
    first, last = _overlap(reference, target, line)
    span, unknown = _FIRST_SPAN, _DRIFT_STEP
    while span < last - first:
        check()
        span *= _SPAN_GROWTH
        reach = min(span, 2 * (last - first)) / 2
        step = 4 / reach
        steps = int(np.ceil(unknown / step))
        drifts = tuple(index * step for index in range(-steps, steps + 1))
        starts = _window_starts(reference, target, movement, line, span)
        grid = Grid(round(0.02 * SAMPLE_RATE_HZ + unknown * reach), drifts)
        longer = best_line(reference, target, starts, line, grid)
        if longer is None or longer.score < _CHANCE_SCORE:
            return line
        line, unknown = longer, 2 * step
    return line


def _overlap(reference: Pcm, target: Pcm, line: Line) -> tuple[int, int]:
    """First and last sample of the target that the reference covers."""
    lag = round(line.lag)
    return max(0, -lag), max(0, min(len(target), len(reference) - lag))


def _window_starts(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, span: int
) -> list[int]:
    """Return the liveliest windows within ``span`` around the line's anchor, spread over it."""
    first, last = _overlap(reference, target, line)
    first = max(first, round(line.anchor) - span // 2)
    last = min(last, round(line.anchor) + span // 2)
    room = last - first
    if room < WINDOW_SAMPLES:
        return [first]
    count = min(_WINDOWS, room // WINDOW_SAMPLES)
    edges = np.linspace(first, last, count + 1).round().astype(int).tolist()
    return [
        _liveliest(movement, start, end - WINDOW_SAMPLES)
        for start, end in itertools.pairwise(edges)
    ]


def _liveliest(movement: Envelopes, low: int, high: int) -> int:
    """Start, from ``low`` to ``high``, of the window in which levels change most."""
    starts = range(low, max(low, high) + 1, WINDOW_SAMPLES // 2)
    length = WINDOW_SAMPLES // _HOP

    def activity(start: int) -> float:
        part = movement[:, start // _HOP : start // _HOP + length]
        return float(np.square(part, dtype=np.float32).sum())

    return max(starts, key=activity)


def _confidence(lines: Sequence[Line]) -> float:
    """Return how far the best place stands out from chance, and from the next best place."""
    best = lines[0]
    # Another place, allowing for drifts known to a step from far anchors.
    rivals = [
        line.score
        for line in lines
        if abs(line.lag - best.lag_at(line.anchor))
        > _SAME_PLACE + _DRIFT_STEP * abs(line.anchor - best.anchor)
    ]
    above_chance = (best.score - _CHANCE_SCORE) / (_CLEAR_SCORE - _CHANCE_SCORE)
    share = max(rivals, default=0.0) / best.score
    alone = (_AMBIGUOUS_SHARE - share) / (_AMBIGUOUS_SHARE - _DISTINCT_SHARE)
    return float(np.clip(above_chance, 0, 1) * np.clip(alone, 0, 1))


def _alignment(
    reference: Pcm, target: Pcm, movement: Envelopes, line: Line, confidence: float
) -> Alignment:
    first, last = _overlap(reference, target, line)
    starts = _window_starts(reference, target, movement, line, 2 * len(target))
    fit = fitted(reference, target, starts, line) if len(starts) > 2 else None
    kept = line if fit is None else fit.line
    measurable = fit is not None and np.isfinite(fit.uncertainty)
    return Alignment(
        offset_seconds=kept.lag_at((first + last) / 2) / SAMPLE_RATE_HZ,
        confidence=confidence,
        overlap_seconds=(last - first) / SAMPLE_RATE_HZ,
        drift_ppm=kept.drift * 1e6 if fit is not None and measurable else None,
        drift_uncertainty_ppm=fit.uncertainty * 1e6 if fit is not None and measurable else 0.0,
        score=line.score,
    )


_CHECK_EVERY_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class _StoredAlignment:
    """As stored: no alignment where nothing is alike."""

    alignment: Alignment | None


ALIGNMENT = Artifact.of(_StoredAlignment, "sync", version=1)


def find_alignment(
    reference: AudioTrack,
    target: AudioTrack,
    *,
    workspace: Workspace,
    control: Control,
    parent: Path | None = None,
) -> Alignment | None:
    """Return where ``target``'s first sample lies from ``reference``'s; None where nothing is
    alike.

    Both are tracks extracted by ingest (16 kHz mono FLAC). A stored result of an earlier run is
    used again.
    """
    store = workspace.store
    sizes = [store.size_bytes(track.key) for track in (reference, target)]
    key = ALIGNMENT.key(workspace.prefix, reference.key, target.key, sizes)

    def compute() -> _StoredAlignment:
        control.check()
        with (
            temporary_folder("sync-", parent) as folder,
            _samples(reference, workspace, control, folder / "reference") as one,
            _samples(target, workspace, control, folder / "target") as other,
        ):
            return _StoredAlignment(align(one, other, check=control.check))

    ALIGNMENT.make(store, key, compute)
    return ALIGNMENT.load(store, key).alignment


@contextmanager
def _samples(
    track: AudioTrack, workspace: Workspace, control: Control, path: Path
) -> Iterator[Pcm]:
    """The track's samples as a memory map of a file: a day of them need not fit into memory."""
    with workspace.store.local_copy(track.key) as source, path.open("wb") as file:
        for count, block in enumerate(read_blocks(source)):
            if count % _CHECK_EVERY_BLOCKS == 0:
                control.check()
            file.write(np.round(block * 32_767).astype("<i2").tobytes())
    if path.stat().st_size == 0:
        yield np.empty(0, np.int16)
    else:
        yield np.memmap(path, np.int16, "r")
    path.unlink()
