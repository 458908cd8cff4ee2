"""Where a video's scenes begin, from the stored features of its segments.

Long videos are looked at in many tasks, some blocks of frames each; what is found does not
depend on that. A learned detector goes over all frames in order, here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.contracts import BoundaryDetector
from pipelines.execution.chain import Control, Mapped, Mapper, Row, Workspace, map_here
from pipelines.types import StageCode, VideoSource
from pipelines.vision.cuts.detector import Candidates, Cut, CutConfig
from pipelines.vision.cuts.learned import LearnedCutDetector
from pipelines.vision.cuts.search import together
from pipelines.vision.cuts.step import FeaturesPart, found_in, make_search_step, search_rows
from pipelines.vision.cuts.timeline import programme_cuts
from pipelines.vision.features import pictures_key
from pipelines.vision.frame_features import (
    Times,
    from_bytes,
    pictures_from_bytes,
    times_from_bytes,
)

_BLOCKS_A_TASK = 3
"""Less than a second's work; reading the features around them takes a tenth of it."""


@dataclass(frozen=True, slots=True)
class Looked:
    """``cuts`` in order; times of all frames and of the key frames among them."""

    cuts: tuple[Cut, ...]
    times_ms: Times
    key_times_ms: Times


def find_cuts(
    rows: Sequence[Row],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    *,
    config: CutConfig,
    learned: BoundaryDetector | None,
    mapper: Mapper,
    progress: tuple[float, float],
) -> Looked:
    """The cuts of ``video``, whose segments' features ``rows`` name, in order of time.

    Raises StageError and StageStoppedError.
    """
    times, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    stored: list[list[FeaturesPart]] = [[] for _ in video.all_parts]
    part_of = {segment.index: segment.part for segment in video.segments}
    for row in rows:
        control.check()
        shown, own_keys = times_from_bytes(workspace.store.read_bytes(row["features_key"]))
        times.append(shown)
        keys.append(own_keys)
        part = FeaturesPart(row["features_key"], len(shown))
        stored[part_of[int(row["index"])]].append(part)
    if learned is None:
        found = _searched(stored, video, workspace, control, config, mapper, progress)
    else:
        found = _learned(stored, video, workspace, control, config, learned)
    cuts = programme_cuts([part.start_ms for part in video.all_parts], found)
    return Looked(cuts, np.concatenate(times), np.concatenate(keys))


def _searched(
    stored: Sequence[Sequence[FeaturesPart]],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    mapper: Mapper,
    progress: tuple[float, float],
) -> list[tuple[Cut, ...]]:
    """Each part's cuts, its frames looked at in tasks; what one task can do is done here."""
    rows: list[Row] = []
    for index, (part, features) in enumerate(zip(video.all_parts, stored, strict=True)):
        length_ms = part.end_ms - part.start_ms
        rows += search_rows(index, features, part.start_ms, length_ms, _BLOCKS_A_TASK)
    step = Mapped(make_search_step(workspace, config), "Finding the cuts", StageCode.VISION_FAILED)
    on = mapper if len(rows) > 1 else map_here
    done = on(rows, [step], control, progress_from=progress[0], progress_to=progress[1])
    done.sort(key=lambda row: (int(row["part"]), int(row["first"])))
    return [
        Candidates.among(
            together(found_in(row) for row in done if row["part"] == index),
            part.end_ms - part.start_ms,
        ).select(config)
        for index, part in enumerate(video.all_parts)
    ]


def _learned(
    stored: Sequence[Sequence[FeaturesPart]],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    model: BoundaryDetector,
) -> list[tuple[Cut, ...]]:
    """Each part's cuts by a run of its own; one segment's features in memory."""
    cuts = []
    for part, features in zip(video.all_parts, stored, strict=True):
        detector = LearnedCutDetector(model, config)
        for each in features:
            control.check()
            frames = from_bytes(workspace.store.read_bytes(each.key))
            packed = workspace.store.read_bytes(pictures_key(each.key))
            times_ms = frames.times_ms - part.start_ms
            pictures = pictures_from_bytes(packed)
            detector.feed(replace(frames, times_ms=times_ms, pictures=pictures))
        cuts.append(detector.finish(part.end_ms - part.start_ms))
    return cuts
