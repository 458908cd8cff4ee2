"""Step: look for cuts among some frames of a video's features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from pydantic import TypeAdapter

from pipelines.execution.chain import Row, Step, Workspace
from pipelines.vision.cuts.search import (
    BLOCK_FRAMES,
    SURROUNDING_FRAMES,
    Found,
    SearchConfig,
    search,
)
from pipelines.vision.frame_features import from_bytes, joined

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
    """A row for every so many blocks of one part of a programme, in order.

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
