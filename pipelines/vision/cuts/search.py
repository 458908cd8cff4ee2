"""Candidates for cuts among a video's frames, searched in independent blocks.

Blocks have a fixed number of frames counted from the first one, each searched with the same
surroundings, so the result depends on the frames alone, not on which task searches a block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from pipelines.execution.chain import Row, Step, Workspace
from pipelines.vision.cuts.gradual import Gradual, GradualConfig, Mixed, find_gradual
from pipelines.vision.cuts.hard import HardConfig, find_hard
from pipelines.vision.cuts.measures import Blank, blank, brightness, cell_luma, contrast
from pipelines.vision.cuts.wipes import WipeConfig, find_wipes
from pipelines.vision.features import FrameFeatures, from_bytes, joined

BLOCK_FRAMES = 256
SURROUNDING_FRAMES = 480
"""Looked at on both sides of a block: at up to 120 frames a second the 4 s of half a wipe and
what comes after it, at up to 360 the longest half of another gradual transition."""


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """What may be a cut."""

    hard: HardConfig = field(default_factory=HardConfig)
    gradual: GradualConfig = field(default_factory=GradualConfig)
    wipe: WipeConfig = field(default_factory=WipeConfig)


@dataclass(frozen=True, slots=True)
class BlankRun:
    """A run of black or white frames, from its first frame to the one after it."""

    start_ms: int
    end_ms: int
    blank: Blank


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in some blocks. ``hard`` holds (time of the new scene, confidence)."""

    hard: tuple[tuple[int, float], ...] = ()
    graduals: tuple[Gradual, ...] = ()
    wipes: tuple[Gradual, ...] = ()
    blanks: tuple[BlankRun, ...] = ()


def search(
    frames: FrameFeatures, start: int, end: int, config: SearchConfig, after_ms: int
) -> Found:
    """What is found at frames ``start`` to ``end``, both ends of blocks.

    ``frames`` reach ``SURROUNDING_FRAMES`` further on both sides, or to an end of the
    video; ``after_ms`` is when the last of them ends.
    """
    if end <= start:
        return Found()
    seen = _Seen(frames, Mixed.of(frames), cell_luma(frames.luma))
    found = [
        _of_block(seen, first, min(first + BLOCK_FRAMES, end), config, after_ms)
        for first in range(start, end, BLOCK_FRAMES)
    ]
    return together(found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Frames, and what is made of each by itself: blocks' surroundings overlap."""

    frames: FrameFeatures
    mixed: Mixed
    cells: npt.NDArray[np.float32]

    def part(self, start: int, end: int) -> _Seen:
        """Frames ``start`` to ``end``, as views."""
        return _Seen(
            self.frames.part(start, end), self.mixed.part(start, end), self.cells[start:end]
        )


def together(found: Iterable[Found]) -> Found:
    """Neighbouring blocks' findings as one, in order."""
    every = list(found)
    return Found(
        tuple(each for one in every for each in one.hard),
        tuple(each for one in every for each in one.graduals),
        tuple(each for one in every for each in one.wipes),
        _unbroken([run for one in every for run in one.blanks]),
    )


def _of_block(seen: _Seen, start: int, end: int, config: SearchConfig, after_ms: int) -> Found:
    frames = seen.frames
    low = max(0, start - SURROUNDING_FRAMES)
    near = seen.part(low, min(len(frames), end + SURROUNDING_FRAMES))
    window, inside = near.frames, (start - low, end - low)
    ends_ms = int(frames.times_ms[end]) if end < len(frames) else after_ms
    return Found(
        tuple(find_hard(window, *inside, config.hard)),
        tuple(find_gradual(window, near.mixed, *inside, config.gradual)),
        tuple(find_wipes(window, near.cells, *inside, config.wipe)),
        _blank_runs(window.part(*inside), ends_ms),
    )


def _blank_runs(frames: FrameFeatures, ends_ms: int) -> tuple[BlankRun, ...]:
    """A run for each blank frame, up to the frame after it, joined."""
    ends = [*frames.times_ms[1:].tolist(), ends_ms]
    shown = zip(brightness(frames.luma), contrast(frames.luma), strict=True)
    seen = [blank(float(luma), float(spread)) for luma, spread in shown]
    runs = zip(frames.times_ms.tolist(), ends, seen, strict=True)
    return _unbroken([BlankRun(start, end, kind) for start, end, kind in runs if kind])


def _unbroken(runs: Iterable[BlankRun]) -> tuple[BlankRun, ...]:
    """Runs of one kind that touch made one."""
    joined: list[BlankRun] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last is not None and last.end_ms == run.start_ms and last.blank is run.blank:
            joined[-1] = BlankRun(last.start_ms, run.end_ms, run.blank)
        else:
            joined.append(run)
    return tuple(joined)


_FOUND = TypeAdapter(Found)


@dataclass(frozen=True, slots=True)
class FeaturesPart:
    """A segment's features: where they are stored, and how many frames they are."""

    key: str
    frames: int


def search_rows(
    part: int,
    features: Sequence[FeaturesPart],
    start_ms: int,
    duration_ms: int,
    blocks_a_row: int,
) -> list[Row]:
    """A row for every so many blocks of one part of a timeline, in order.

    ``start_ms`` is where the part starts on the timeline that the features' times count
    from, ``duration_ms`` how long it is.
    """
    total, span = sum(each.frames for each in features), blocks_a_row * BLOCK_FRAMES
    rows: list[Row] = []
    for first in range(0, total, span):
        end = min(first + span, total)
        low, high = max(0, first - SURROUNDING_FRAMES), min(total, end + SURROUNDING_FRAMES)
        rows.append(
            {
                "part": part,
                "first": first,
                "start": first - low,
                "end": end - low,
                "slices": json.dumps(list(_slices(features, low, high))),
                "start_ms": start_ms,
                "duration_ms": duration_ms,
            }
        )
    return rows


def _slices(
    features: Sequence[FeaturesPart], low: int, high: int
) -> Iterator[tuple[str, int, int]]:
    """(key, first frame, frame after the last) of the parts that hold ``low`` to ``high``."""
    ends = np.cumsum([each.frames for each in features]).tolist()
    for each, end in zip(features, ends, strict=True):
        begin = end - each.frames
        inside = max(low, begin) - begin, min(high, end) - begin
        if inside[0] < inside[1]:
            yield each.key, *inside


def make_search_step(workspace: Workspace, config: SearchConfig) -> Step:
    """1:1, a row of ``search_rows`` to one with what ``found_in`` reads."""

    def run(row: Row) -> Row:
        cv2.setNumThreads(1)
        parts = []
        for key, first, after in json.loads(row["slices"]):
            workspace.check()
            parts.append(from_bytes(workspace.store.read_bytes(key)).part(first, after))
        frames = joined(parts)
        frames = replace(frames, times_ms=frames.times_ms - row["start_ms"])
        found = search(frames, row["start"], row["end"], config, row["duration_ms"])
        return {"part": row["part"], "first": row["first"], "found": packed(found)}

    return run


def packed(found: Found) -> bytes:
    """``found`` as it travels in a row."""
    return _FOUND.dump_json(found)


def found_in(row: Row) -> Found:
    """What the step found."""
    return _FOUND.validate_json(row["found"])
