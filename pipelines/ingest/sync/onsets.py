"""Coarse alignment: where in a long recording a shorter one might belong, to about 20 ms.

Compares how the loudness of a few frequency bands rises and falls. Each band is
taken in decibels against its own recent mean, so that a microphone's colour, its
level and steady noise drop out. 50 values a second keep a day of sound in 45 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft as scipy_fft
from scipy.ndimage import maximum_filter1d, uniform_filter1d

from models.contracts import SAMPLE_RATE_HZ

Pcm = npt.NDArray[np.int16]
"""Mono 16-bit samples at SAMPLE_RATE_HZ; may be a memory map."""

Floats = npt.NDArray[np.float32]
Envelopes = npt.NDArray[np.float16]
"""(bands, frames) of the sound's movement, mean 0, spread 1 in each band."""

ENVELOPE_RATE_HZ = 50
_HOP = SAMPLE_RATE_HZ // ENVELOPE_RATE_HZ
_WINDOW = 2 * _HOP
_BAND_EDGES_HZ = (150, 400, 800, 1500, 2800, 5500)
_BLOCK_FRAMES = 30_000
"""Ten minutes of sound are transformed at once."""

_SHARE_BELOW_FLOOR = 0.2
"""What a band's quietest fifth sounds like counts as its noise."""

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
    """How the sound of each band moves, 50 times a second."""
    levels = np.concatenate([_levels(block) for block in _blocks(samples)], axis=1)
    if levels.shape[1] == 0:
        return np.empty(levels.shape, np.float16)
    moved: Envelopes = np.stack([_movement(band) for band in levels])
    return moved


def _blocks(samples: Pcm) -> Iterator[Pcm]:
    """Parts of the samples for a whole number of frames each, with the window's overlap."""
    frames = max(0, (len(samples) - _WINDOW) // _HOP + 1)
    for first in range(0, frames, _BLOCK_FRAMES):
        count = min(_BLOCK_FRAMES, frames - first)
        yield samples[first * _HOP : (first + count - 1) * _HOP + _WINDOW]
    if frames == 0:
        yield samples[:0]


def _levels(samples: Pcm) -> Floats:
    """(bands, frames) energy of the bands; 2 000 frames at a time, to stay small."""
    edges = np.round(np.array(_BAND_EDGES_HZ) * _WINDOW / SAMPLE_RATE_HZ).astype(int)
    if len(samples) < _WINDOW:
        return np.empty((len(edges) - 1, 0), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[::_HOP]
    shape = np.hanning(_WINDOW).astype(np.float32)
    parts = []
    for first in range(0, len(frames), 2_000):
        spectra = scipy_fft.rfft(frames[first : first + 2_000].astype(np.float32) * shape)
        power = np.square(np.abs(spectra))
        parts.append(np.add.reduceat(power, edges, axis=1)[:, : len(edges) - 1].T)
    return np.concatenate(parts, axis=1)


def _movement(energy: Floats) -> Envelopes:
    """One band's level in dB over its noise, less its recent mean, scaled to spread 1."""
    floor = np.float32(np.quantile(energy, _SHARE_BELOW_FLOOR)) + np.float32(1.0)
    level = np.log10(energy / floor + np.float32(1.0))
    moving = level - uniform_filter1d(level, _RECENT_FRAMES, mode="nearest")
    spread = float(moving.std())
    if spread < 1e-4:
        return np.zeros(len(energy), np.float16)
    bounded: Envelopes = np.clip(moving / spread, -_LOUDEST, _LOUDEST).astype(np.float16)
    return bounded


def candidates(reference: Envelopes, target: Envelopes, most: int) -> list[Candidate]:
    """The likeliest places for the target, best first, at most ``most``.

    Stretches of the shorter one, up to a minute long, are looked for anywhere in
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
            middle = start + _overlap_middle(position, chunk.shape[1], hay.shape[1])
            anchor = middle + lag if swapped else middle
            found.append(Candidate((-lag if swapped else lag) * _HOP, anchor * _HOP, score))
    return _distinct(found, most)


def _overlap_middle(position: int, chunk_frames: int, hay_frames: int) -> int:
    """The middle of that part of a chunk that lies inside the hay, from the chunk's start."""
    first, last = max(0, -position), min(chunk_frames, hay_frames - position)
    return (first + last) // 2


def _chunk_starts(needle: Envelopes) -> list[int]:
    """Starts of the stretches to look for: the liveliest, spread over the whole."""
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
    """A long recording, transformed once, to look for stretches in."""

    spectra: list[npt.NDArray[np.complex64]]
    energy: npt.NDArray[np.float64]
    """Sum of squares up to each frame, over all bands."""
    frames: int
    size: int

    @classmethod
    def of(cls, hay: Envelopes) -> _Search:
        size = scipy_fft.next_fast_len(hay.shape[1] + CHUNK_FRAMES, real=True)
        squares = np.square(hay, dtype=np.float32).sum(axis=0)
        return cls(
            spectra=[scipy_fft.rfft(band.astype(np.float32), size) for band in hay],
            energy=np.concatenate([[0.0], np.cumsum(squares, dtype=np.float64)]),
            frames=hay.shape[1],
            size=size,
        )

    def peaks(self, chunk: Envelopes) -> list[tuple[int, float]]:
        """Frame of the hay at which the chunk would start (may be negative), and how alike."""
        length = chunk.shape[1]
        total = np.zeros(self.size // 2 + 1, np.complex64)
        for spectrum, band in zip(self.spectra, chunk, strict=True):
            total += spectrum * np.conj(scipy_fft.rfft(band.astype(np.float32), self.size))
        alike = scipy_fft.irfft(total, self.size).astype(np.float32)
        positions = np.arange(-length + _LEAST_OVERLAP_FRAMES, self.frames - _LEAST_OVERLAP_FRAMES)
        first, last = np.maximum(positions, 0), np.minimum(positions + length, self.frames)
        mean_square = float(np.square(chunk, dtype=np.float32).sum(axis=0).mean()) + 1e-6
        expected = np.maximum(self.energy[last] - self.energy[first], _LEAST_OVERLAP_FRAMES)
        scores = alike[positions] / np.sqrt(expected * mean_square)
        top = scores == maximum_filter1d(scores, 2 * _PEAK_APART_FRAMES + 1)
        order = np.argsort(np.where(top, -scores, np.inf))[:_PEAKS_A_CHUNK]
        return [(int(positions[index]), float(scores[index])) for index in order]


def _distinct(found: list[Candidate], most: int) -> list[Candidate]:
    """The best of those that lie close together; several that agree count for more."""
    apart = _PEAK_APART_FRAMES * _HOP
    groups: list[list[Candidate]] = []
    for candidate in sorted(found, key=lambda each: -each.score):
        group = next((g for g in groups if abs(g[0].lag - candidate.lag) <= apart), None)
        if group is None:
            groups.append([candidate])
        else:
            group.append(candidate)
    best = [
        Candidate(group[0].lag, group[0].anchor, float(np.sqrt(sum(c.score**2 for c in group))))
        for group in groups
    ]
    return sorted(best, key=lambda each: -each.score)[:most]
