"""The audio of tracks as a stream, never a whole track in memory; and fingerprints of sound.

A fingerprint has 72 bits for each eighth of a second, to find the same recording again. A bit is
the sign of a difference of differences, over half a second and over neighbouring bands, of the
logarithm of their energy (after Haitsma and Kalker, "A Highly Robust Audio Fingerprinting System",
2002), so levels and equalisation do not matter. Bands lie 4 % apart, each as wide as six of them: a
recording played 4 % faster or slower has the bits of the neighbouring bands.

Frames whose key, a third of the bits, is surest among its neighbours are marks: what is looked up.
Frames that are all but silent, or muted, are no marks and identify nothing.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import numpy.typing as npt

from models.contracts import SAMPLE_RATE_HZ, Samples

LEVEL_FRAME_SECONDS = 0.02
"""One value of a level curve, and the grid of chunk boundaries."""

Levels = npt.NDArray[np.float32]
"""Level of each frame in dB; shape (frames,)."""

FRAME_SAMPLES = round(SAMPLE_RATE_HZ * LEVEL_FRAME_SECONDS)
_SILENCE_POWER = 1e-12
_EMPTY: Samples = np.empty(0, np.float32)


def silenced(
    samples: Samples, muted: Iterable[tuple[int, int]], rate_hz: int, at_ms: float = 0
) -> Samples:
    """Return the samples with silence in the intervals, which are in milliseconds as ``at_ms`` is,
    the time of the first sample. The last axis is time."""
    quiet = samples.copy()
    for interval in muted:
        first, end = (round((each - at_ms) * rate_hz / 1000) for each in interval)
        if end > 0:
            quiet[..., max(0, first) : end] = 0
    return quiet


def read_blocks(file: Path | RawIOBase, start: int = 0) -> Iterator[Samples]:
    """Yield the audio of a FLAC file as consecutive blocks of mono samples at SAMPLE_RATE_HZ.

    From sample ``start`` on, without decoding what lies before. A damaged file gives what can be
    decoded of it: count the samples.
    """
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    source: Any = str(file) if isinstance(file, Path) else file
    with av.open(source, format="flac") as container:
        if start > 0:
            container.seek(start * av.time_base // SAMPLE_RATE_HZ)
        for frame in container.decode(audio=0):
            position = round((frame.time or 0.0) * SAMPLE_RATE_HZ) if start > 0 else 0
            for out in resampler.resample(frame):
                yield _samples(out)[max(0, start - position) :]
        yield from (_samples(out) for out in resampler.resample(None))


def _samples(frame: av.AudioFrame) -> Samples:
    samples: Samples = frame.to_ndarray()[0].astype(np.float32, copy=False)
    return samples


class SampleReader:
    """Ranges of a stream of blocks, read with rising starts; drops what lies before."""

    def __init__(self, blocks: Iterable[Samples]) -> None:
        self._source = iter(blocks)
        self._buffer = _EMPTY
        self._start = 0

    def read(self, start: int, end: int) -> Samples:
        """Return samples ``start <= i < end``; fewer where the stream ends."""
        parts, have = [self._buffer], self._start + len(self._buffer)
        while have < end and (block := next(self._source, None)) is not None:
            have += len(block)
            if have <= start:
                parts, self._start = [], have
            else:
                parts.append(block)
        joined = np.concatenate(parts) if parts else _EMPTY
        self._buffer = joined[max(0, start - self._start) :]
        self._start = max(start, self._start) if len(self._buffer) else have
        return self._buffer[: max(0, end - self._start)]


def overlapping_windows(
    blocks: Iterable[Samples], *, core: int, context: int
) -> Iterator[tuple[int, int, Samples]]:
    """(core start, index of it in the window, window) over the whole stream, in samples.

    Cores of ``core`` samples lie end to end from 0; a window has up to ``context``
    samples more on both sides.
    """
    reader = SampleReader(blocks)
    start = 0
    while True:
        first = max(0, start - context)
        window = reader.read(first, start + core + context)
        if len(window) <= start - first:
            return
        yield start, start - first, window
        start += core


def frame_levels(samples: Samples) -> Levels:
    """Level of each FRAME_SAMPLES in dB of full scale (at least -120); the last may be shorter."""
    count = -(-len(samples) // FRAME_SAMPLES)
    padded = np.zeros(count * FRAME_SAMPLES, np.float64)
    padded[: len(samples)] = samples
    power = np.mean(padded.reshape(count, FRAME_SAMPLES) ** 2, axis=1)
    levels: Levels = (10 * np.log10(np.maximum(power, _SILENCE_POWER))).astype(np.float32)
    return levels


def write_flac(stream: BinaryIO, pieces: Iterable[Samples], container_format: str = "flac") -> None:
    """The pieces end to end as one 16-bit mono FLAC at SAMPLE_RATE_HZ, alone or in an Ogg."""
    with av.open(stream, "w", format=container_format) as container:
        track = container.add_stream("flac", rate=SAMPLE_RATE_HZ, layout="mono", format="s16")
        position = 0
        for piece in filter(len, pieces):  # the encoder takes no empty frames
            scaled = np.round(piece.astype(np.float64) * 32768).clip(-32768, 32767)
            whole = scaled.astype(np.int16).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
            frame.sample_rate, frame.pts = SAMPLE_RATE_HZ, position
            position += len(piece)
            container.mux(track.encode(frame))
        container.mux(track.encode(None))


FRAME_MS = 125
_SAME_SHARE = 0.95
"""Of the bits of two encodings of one sound; of two microphones in a room about 0.75 agree."""
_LEAST_HEARD = 24
"""Frames with sound: three seconds."""
BITS = 72
KEY_BITS = 24
SHIFTS = (-1, 0, 1)
"""Bands by which a key is looked up: the other one slower, the same, faster by 4 %."""
MOST_MARKS = 20_000
"""Of a track; two hours have about as many."""
_LOWEST_HZ, _BAND_STEP = 250.0, 1.04
_BANDS_APART, _FRAMES_APART = 3, 4
_HOP, _WINDOW = SAMPLE_RATE_HZ * FRAME_MS // 1000, 8192
_BLOCK_FRAMES = 256
_SILENCE = 1e-3
"""Root mean square of a frame: -60 dB of full scale."""
LEVEL_STEPS = 4
"""A dB."""
_LOUDEST = 60 * LEVEL_STEPS
"""Full scale."""
_WEAK = 3
"""Bits of a key that may be either way."""

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SoundPrint:
    """Of a track: ``bits`` (frames, BITS), ``silent`` (frames,), ``marks`` (n,): the frames that
    are looked up, ``weak`` (n, SHIFTS, 3): which bits of their keys are the least sure.

    ``start_ms`` is when the first frame is in the media. ``levels`` (frames,) are what a waveform
    shows: a step is 1/LEVEL_STEPS dB above _SILENCE, 0 where it is silent or muted.
    """

    start_ms: int
    bits: Bits
    silent: npt.NDArray[np.bool_]
    marks: npt.NDArray[np.int32]
    weak: npt.NDArray[np.uint8]
    levels: npt.NDArray[np.uint8]

    @property
    def marks_ms(self) -> npt.NDArray[np.int64]:
        return self.start_ms + self.marks.astype(np.int64) * FRAME_MS

    def keys(self, shift: int = 0) -> npt.NDArray[np.int64]:
        """Of each mark, as what was played faster by so many bands has them."""
        places = np.arange(KEY_BITS)
        found: npt.NDArray[np.int64] = self.bits[self.marks][:, 1 + shift + 3 * places] @ (
            1 << places
        )
        return found

    def probes(self, shift: int) -> npt.NDArray[np.int64]:
        """(marks, 8): keys with the unsure bits either way."""
        flips = 1 << self.weak[:, SHIFTS.index(shift)].astype(np.int64)
        choices = (np.arange(1 << _WEAK)[:, None] >> np.arange(_WEAK)) & 1
        found: npt.NDArray[np.int64] = self.keys(shift)[:, None] ^ (flips @ choices.T)
        return found

    def muted(self, spans_ms: Iterable[tuple[int, int]]) -> SoundPrint:
        """Without what is in intervals of the media, nor what touches them."""
        silent, bits, levels = self.silent.copy(), self.bits.copy(), self.levels.copy()
        reach = _FRAMES_APART + _WINDOW // _HOP + 1
        for start, end in spans_ms:
            first = (start - self.start_ms) // FRAME_MS - reach
            last = -(-(end - self.start_ms) // FRAME_MS) + reach
            silent[max(0, first) : max(0, last)] = True
        bits[silent], levels[silent] = False, 0
        kept = ~silent[self.marks]
        marks, weak = self.marks[kept], self.weak[kept]
        return SoundPrint(self.start_ms, bits, silent, marks, weak, levels)

    def peaks(self, duration_ms: int, most: int) -> list[float]:
        """Return the loudness of each of at most ``most`` equal parts of the media, as a share of
        the loudest one."""
        frames, first = max(1, duration_ms // FRAME_MS), self.start_ms // FRAME_MS
        whole = np.zeros(frames, np.uint8)
        inside = self.levels[max(0, -first) :][: max(0, frames - max(0, first))]
        whole[max(0, first) :][: len(inside)] = inside
        parts = np.array_split(whole, min(most, frames))
        highest = np.array([part.max() for part in parts], np.float64)
        shares = np.where(highest > 0, 10 ** ((highest - highest.max()) / LEVEL_STEPS / 20), 0)
        return [float(share) for share in shares]

    def is_same(self, other: SoundPrint) -> bool:
        """Return whether it is of the same sound at the same times, however it was encoded."""
        count = min(len(self.bits), len(other.bits))
        if count < _SAME_SHARE * max(len(self.bits), len(other.bits)):
            return False
        quiet = self.silent[:count], other.silent[:count]
        heard = ~(quiet[0] | quiet[1])
        if np.count_nonzero(heard) < _LEAST_HEARD or np.mean(quiet[0] != quiet[1]) > 0.1:
            return False
        return bool(np.mean(self.bits[:count][heard] == other.bits[:count][heard]) >= _SAME_SHARE)

    def to_bytes(self) -> bytes:
        """Equal ones give equal bytes."""
        buffer = io.BytesIO()
        packed = np.packbits(self.bits, axis=1)
        arrays = np.int64(self.start_ms), packed, self.silent, self.marks, self.weak, self.levels
        for array in arrays:
            np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> SoundPrint:
        """Return what ``to_bytes`` wrote. Raises ValueError on other bytes."""
        buffer = io.BytesIO(data)
        start, packed, silent, marks, weak = (
            np.lib.format.read_array(buffer, allow_pickle=False) for _ in range(5)
        )
        bits = np.unpackbits(packed, axis=1).astype(np.bool_)
        if buffer.tell() < len(data):
            levels = np.lib.format.read_array(buffer, allow_pickle=False)
        else:  # of version 0.3.0
            levels = np.zeros(len(silent), np.uint8)
        return SoundPrint(int(start), bits, silent, marks, weak, levels)


def print_of(blocks: Iterable[Samples], start_ms: int = 0) -> SoundPrint:
    """Of a track whose samples come block by block."""
    parts = [*_measured(blocks)]
    empty = np.zeros((0, BITS), np.float32), np.zeros(0, np.bool_), np.zeros(0, np.float32)
    bits, silent, sure, weak, levels = (
        np.concatenate(each) for each in zip(_coded(*empty), *parts, strict=True)
    )
    around = np.pad(sure, 1, constant_values=-1)
    is_mark = (sure > 0) & (sure >= np.maximum(around[:-2], around[2:]))
    marks = np.flatnonzero(is_mark).astype(np.int32)
    marks = marks[:: 1 + len(marks) // MOST_MARKS]
    return SoundPrint(start_ms, bits, silent, marks, weak[marks], levels)


Bytes = npt.NDArray[np.uint8]
Coded = tuple[Bits, npt.NDArray[np.bool_], npt.NDArray[np.float32], Bytes, Bytes]


def _measured(blocks: Iterable[Samples]) -> Iterator[Coded]:
    """Frames, some at a time; the first is centred on the track's start."""
    held, energies = [np.zeros(_WINDOW // 2, np.float32)], np.zeros((0, BITS + _BANDS_APART))
    levels, size = np.zeros(0, np.float32), 0
    ending = [(np.zeros(_WINDOW // 2, np.float32), True)]
    for block, is_last in itertools.chain(((each, False) for each in blocks), ending):
        held.append(block)
        size += len(block)
        if size < _BLOCK_FRAMES * _HOP and not is_last:
            continue
        samples = np.concatenate(held)
        count = max(0, (len(samples) - _WINDOW) // _HOP + 1)
        held, size = [samples[count * _HOP :]], 0
        if not count:
            continue
        # (count, bands): logarithms; (count,): root mean squares.
        rows = np.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[::_HOP][:count]
        spectrum = np.abs(np.fft.rfft(rows * np.hanning(_WINDOW).astype(np.float32), axis=1)) ** 2
        bands = spectrum.astype(np.float32) @ _bands()
        floor = 1e-6 + 1e-4 * bands.mean(axis=1, keepdims=True)
        found = np.log(bands + floor), np.sqrt(np.mean(rows**2, axis=1))
        energies = np.concatenate([energies, found[0]])
        levels = np.concatenate([levels, found[1]])
        if len(energies) <= _FRAMES_APART:
            continue
        apart = energies[:, _BANDS_APART:] - energies[:, :-_BANDS_APART]
        quiet = np.minimum(levels[_FRAMES_APART:], levels[:-_FRAMES_APART]) < _SILENCE
        strengths = (apart[_FRAMES_APART:] - apart[:-_FRAMES_APART]).astype(np.float32)
        yield _coded(strengths, quiet, levels[_FRAMES_APART:])
        energies, levels = energies[-_FRAMES_APART:], levels[-_FRAMES_APART:]


@functools.lru_cache(maxsize=1)
def _bands() -> npt.NDArray[np.float32]:
    """(bins, bands): triangles over the logarithm of the frequency."""
    centres = np.log(_LOWEST_HZ) + np.arange(BITS + _BANDS_APART) * np.log(_BAND_STEP)
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE_HZ)
    places = np.log(np.maximum(frequencies, 1.0))
    away = np.abs(places[:, None] - centres) / (_BANDS_APART * np.log(_BAND_STEP))
    bands: npt.NDArray[np.float32] = np.clip(1 - away, 0, None).astype(np.float32)
    return bands


def _coded(
    strengths: npt.NDArray[np.float32], silent: npt.NDArray[np.bool_], loudness: Levels
) -> Coded:
    sizes = np.abs(strengths)
    own = [sizes[:, 1 + shift + 3 * np.arange(KEY_BITS)] for shift in SHIFTS]
    sure = np.sort(own[1], axis=1)[:, : KEY_BITS // 3].mean(axis=1)
    weak = np.stack([np.argsort(each, axis=1, kind="stable")[:, :_WEAK] for each in own], axis=1)
    bits = (strengths > 0) & ~silent[:, None]
    above_db = 20 * np.log10(np.maximum(loudness, _SILENCE / 2) / _SILENCE)
    levels = np.clip(above_db * LEVEL_STEPS, 0, _LOUDEST).astype(np.uint8)
    sure = np.where(silent, -1, sure).astype(np.float32)
    return bits, silent, sure, weak.astype(np.uint8), levels
