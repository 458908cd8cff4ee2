"""Step: a track to its speech, cut into chunks, and the chunks' audio as shards.

One task streams the whole track: the detector runs hundreds of times faster than real
time, so that sharding it would cost more than it saves. Its windows lie on a fixed
grid with context on both sides, so that they depend on the audio only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from models.contracts import SAMPLE_RATE_HZ
from models.provider import ModelProvider
from pipelines.execution.chain import Row, Step, Workspace
from pipelines.media.audio import (
    FRAME_SAMPLES,
    LEVEL_FRAME_SECONDS,
    Levels,
    SampleReader,
    frame_levels,
    overlapping_windows,
    read_blocks,
    write_flac,
)
from pipelines.speech.chunks import Chunk, ChunkLimits, group_chunks, merge_regions, plan_chunks
from pipelines.types import StageCode, StageError

_WINDOW_SAMPLES = 120 * SAMPLE_RATE_HZ
_LENGTH_TOLERANCE_SECONDS = 0.5
_CONTEXT_SAMPLES = 10 * SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How a track is cut: shards of chunks, and the key of each shard's audio.

    A shard's audio is its chunks end to end.
    """

    shards: tuple[tuple[Chunk, ...], ...]
    audio_keys: tuple[str, ...]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> ShardPlan:
        raw = json.loads(data)
        shards = tuple(
            tuple(
                Chunk(each["start_frame"], each["end_frame"], tuple(map(tuple, each["speech"])))
                for each in shard
            )
            for shard in raw["shards"]
        )
        return ShardPlan(shards, tuple(raw["audio_keys"]))


@dataclass(frozen=True, slots=True)
class Sharding:
    """How chunks are shared out among tasks; changes nothing in the result."""

    shard_seconds: float | None = 20.0
    """Longest stretch of the track in one task; None: all of it."""
    max_shards: int = 2000


def make_speech_regions_step(
    workspace: Workspace, models: ModelProvider, limits: ChunkLimits, sharding: Sharding
) -> Step:
    """1:1. ``{track_key, seconds, folder, plan_key}`` to itself; writes the plan and the shards.

    Raises StageError if the track's audio is shorter than ``seconds``: part of it is lost.
    """

    def run(row: Row) -> Row:
        with workspace.store.local_copy(row["track_key"]) as path:
            regions, levels = scan_track(path, models, workspace.check)
            _check_length(len(levels) * LEVEL_FRAME_SECONDS, row["seconds"])
            groups = group_chunks(
                plan_chunks(regions, levels, limits),
                shard_seconds=sharding.shard_seconds,
                max_shards=sharding.max_shards,
            )
            keys = _write_shards(workspace, path, groups, row["folder"])
        plan = ShardPlan(tuple(tuple(group) for group in groups), keys)
        workspace.store.write_bytes(row["plan_key"], plan.to_json())
        return row

    return run


def _check_length(found_seconds: float, expected_seconds: float) -> None:
    if found_seconds < expected_seconds - _LENGTH_TOLERANCE_SECONDS:
        message = f"The track is damaged: {found_seconds:.1f} of {expected_seconds:.1f} s decode."
        raise StageError(StageCode.TRANSCRIPT_FAILED, message)


def scan_track(
    path: Path, models: ModelProvider, check: Callable[[], None]
) -> tuple[list[tuple[float, float]], Levels]:
    """Regions of speech in seconds and the level of every frame of a whole file."""
    detector = models.speech_detector()
    regions: list[tuple[float, float]] = []
    levels: list[Levels] = [np.empty(0, np.float32)]
    blocks = read_blocks(path)
    for start, before, window in overlapping_windows(
        blocks, core=_WINDOW_SAMPLES, context=_CONTEXT_SAMPLES
    ):
        check()
        core = window[before : before + _WINDOW_SAMPLES]
        levels.append(frame_levels(core))
        low, high = start / SAMPLE_RATE_HZ, (start + len(core)) / SAMPLE_RATE_HZ
        shift = low - before / SAMPLE_RATE_HZ
        found = [(max(low, a + shift), min(high, b + shift)) for a, b in detector.detect(window)]
        regions.extend((a, b) for a, b in found if b > a)
    return merge_regions(regions), np.concatenate(levels)


def _write_shards(
    workspace: Workspace, path: Path, groups: list[list[Chunk]], folder: str
) -> tuple[str, ...]:
    reader = SampleReader(read_blocks(path))
    keys = tuple(f"{folder}/shard-{index:05d}.flac" for index in range(len(groups)))
    for key, group in zip(keys, groups, strict=True):
        workspace.check()
        with workspace.store.writer(key) as stream:
            write_flac(
                stream,
                (
                    reader.read(chunk.start_frame * FRAME_SAMPLES, chunk.end_frame * FRAME_SAMPLES)
                    for chunk in group
                ),
            )
    return keys
