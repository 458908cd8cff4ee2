"""Where a track is cut for the transcriber. Pure: depends on the audio only, not on sharding.

Everything is counted in level frames of LEVEL_FRAME_SECONDS, so that a chunk is a whole
number of samples and the same on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

LEVEL_FRAME_SECONDS = 0.02
"""One value of a level curve, and the grid of chunk boundaries."""

_SMOOTHING_FRAMES = 5
"""Levels are averaged over 0.1 s before the quietest place is sought: shorter dips are
the closures of stops (50 to 80 ms), which lie inside words."""

Levels = npt.NDArray[np.float32]
"""Level of each frame in dB; shape (frames,)."""


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How chunks are cut. Seconds."""

    max_seconds: float = 20.0
    """No chunk is longer; models take at most about 30 s."""
    min_seconds: float = 4.0
    """A cut forced by ``max_seconds`` leaves at least this much before it."""
    pause_seconds: float = 0.8
    """A pause that long between padded speech always ends a chunk."""
    padding_seconds: float = 0.3
    """Kept on both sides of speech, for soft first and last sounds. Of 0.2, 0.3 and 0.5 tried,
    0.3 gave the embedded transcriber the fewest errors."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames ``start_frame <= f < end_frame`` of a track, to be transcribed as one piece."""

    start_frame: int
    end_frame: int
    speech: tuple[tuple[int, int], ...] = ()
    """Its padded regions of speech, in frames of the track; none: all of it."""

    @property
    def start_seconds(self) -> float:
        return self.start_frame * LEVEL_FRAME_SECONDS

    @property
    def end_seconds(self) -> float:
        return self.end_frame * LEVEL_FRAME_SECONDS

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


def merge_regions(
    regions: Sequence[tuple[float, float]], *, gap_seconds: float = 0.0
) -> list[tuple[float, float]]:
    """Sorted regions with those that touch, overlap or lie within ``gap_seconds`` made one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(regions):
        if merged and start <= merged[-1][1] + gap_seconds:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def plan_chunks(
    regions: Sequence[tuple[float, float]], levels: Levels, limits: ChunkLimits
) -> list[Chunk]:
    """Chunks in order, disjoint, inside the track, which cover all of ``regions``.

    ``regions`` are seconds of speech; ``levels`` covers the track. Long speech is cut
    at its longest pause, and speech without a pause where it is quietest.
    """
    speech = _padded(regions, len(levels), limits)
    chunks: list[Chunk] = []
    for block in _blocks(speech, _frames(limits.pause_seconds)):
        chunks.extend(
            _with_speech(chunk, block)
            for chunk in _cut_block(block, _smoothed(levels, block), limits)
        )
    return chunks


def _with_speech(chunk: Chunk, block: Sequence[Chunk]) -> Chunk:
    spans = (
        (max(run.start_frame, chunk.start_frame), min(run.end_frame, chunk.end_frame))
        for run in block
    )
    return replace(chunk, speech=tuple(span for span in spans if span[0] < span[1]))


def group_chunks(
    chunks: Sequence[Chunk], *, shard_seconds: float | None, max_shards: int
) -> list[list[Chunk]]:
    """Consecutive chunks in at most ``max_shards`` groups, for one task each.

    A group spans at most ``shard_seconds`` (None: everything), but always holds a
    chunk; shards grow where there would be too many of them.
    """
    groups = _grouped(chunks, math.inf if shard_seconds is None else shard_seconds)
    if len(groups) <= max_shards:
        return groups
    size = math.ceil(len(chunks) / max_shards)
    return [list(chunks[i : i + size]) for i in range(0, len(chunks), size)]


def _grouped(chunks: Sequence[Chunk], shard_seconds: float) -> list[list[Chunk]]:
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        if groups and chunk.end_seconds - groups[-1][0].start_seconds <= shard_seconds:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _frames(seconds: float) -> int:
    return round(seconds / LEVEL_FRAME_SECONDS)


def _padded(
    regions: Sequence[tuple[float, float]], frame_count: int, limits: ChunkLimits
) -> list[Chunk]:
    padded = [
        (start - limits.padding_seconds, end + limits.padding_seconds) for start, end in regions
    ]
    spans = [
        (
            max(0, math.floor(start / LEVEL_FRAME_SECONDS)),
            min(frame_count, math.ceil(end / LEVEL_FRAME_SECONDS)),
        )
        for start, end in merge_regions(padded)
    ]
    return [Chunk(start, end) for start, end in _merged_frames(spans)]


def _merged_frames(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = merge_regions([(start, end) for start, end in spans if end > start])
    return [(int(start), int(end)) for start, end in merged]


def _blocks(speech: Sequence[Chunk], pause_frames: int) -> list[list[Chunk]]:
    """Runs of speech with no pause of ``pause_frames`` or more inside."""
    blocks: list[list[Chunk]] = []
    for run in speech:
        if blocks and run.start_frame - blocks[-1][-1].end_frame < pause_frames:
            blocks[-1].append(run)
        else:
            blocks.append([run])
    return blocks


def _smoothed(levels: Levels, block: Sequence[Chunk]) -> Levels:
    """Smoothed levels of the block; index 0 is its first frame. Depends on the block only."""
    part = levels[block[0].start_frame : block[-1].end_frame].astype(np.float64)
    padded = np.pad(part, _SMOOTHING_FRAMES // 2, mode="edge")
    window = np.full(_SMOOTHING_FRAMES, 1 / _SMOOTHING_FRAMES)
    return np.convolve(padded, window, mode="valid").astype(np.float32)


def _cut_block(block: Sequence[Chunk], smooth: Levels, limits: ChunkLimits) -> list[Chunk]:
    """The block in chunks of at most ``max_seconds``, cut from left to right."""
    first, last = block[0].start_frame, block[-1].end_frame
    pauses = [(left.end_frame, right.start_frame) for left, right in itertools.pairwise(block)]
    chunks: list[Chunk] = []
    start = first
    while last - start > _frames(limits.max_seconds):
        low = start + _frames(limits.min_seconds)
        high = start + _frames(limits.max_seconds)
        end, following = _cut_place(pauses, smooth, first, low, high)
        chunks.append(Chunk(start, end))
        start = following
    chunks.append(Chunk(start, last))
    return chunks


def _cut_place(
    pauses: Sequence[tuple[int, int]], smooth: Levels, first: int, low: int, high: int
) -> tuple[int, int]:
    """(end of this chunk, start of the next) with ``low <= end <= high``."""
    inside = [(start, end) for start, end in pauses if low <= start <= high]
    if inside:
        return max(inside, key=lambda pause: (pause[1] - pause[0], pause[0]))
    # The last of equal minima: fewer, longer chunks.
    reversed_levels = smooth[low - first : high - first][::-1]
    quietest = high - 1 - int(np.argmin(reversed_levels))
    return quietest, quietest
