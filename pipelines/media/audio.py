"""Reading and writing the audio of tracks as a stream, never a whole track in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """The samples with silence in the stretches, which are in milliseconds as ``at_ms`` is, the
    time of the first sample. The last axis is time."""
    quiet = samples.copy()
    for stretch in muted:
        first, end = (round((each - at_ms) * rate_hz / 1000) for each in stretch)
        if end > 0:
            quiet[..., max(0, first) : end] = 0
    return quiet


def read_blocks(file: Path | RawIOBase, start: int = 0) -> Iterator[Samples]:
    """The audio of a FLAC file as consecutive blocks of mono samples at SAMPLE_RATE_HZ.

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
        """Samples ``start <= i < end``; fewer where the stream ends."""
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
