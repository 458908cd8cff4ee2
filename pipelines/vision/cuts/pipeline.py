"""Where a video's scenes begin, from the stored features of its segments.

Long videos are searched in many tasks, some blocks of frames each; the result does not depend
on that. A learned detector goes over all frames in order, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.contracts import BoundaryDetector, Probabilities
from pipelines.execution.chain import Control, Row, Step, Workspace
from pipelines.types import VideoPart, VideoSource
from pipelines.vision.cuts.search import (
    FeaturesPart,
    found_in,
    make_search_step,
    search_rows,
    together,
)
from pipelines.vision.cuts.selection import Candidates, Cut, CutConfig, CutKind, select_cuts
from pipelines.vision.features import (
    FrameFeatures,
    Times,
    from_bytes,
    pictures_from_bytes,
    pictures_key,
    times_from_bytes,
)

_BLOCKS_A_TASK = 3
"""Less than a second's work; reading the features around them takes a tenth of it."""


@dataclass(frozen=True, slots=True)
class FoundCuts:
    """``cuts`` in order; times of all frames and of the key frames among them."""

    cuts: tuple[Cut, ...]
    times_ms: Times
    key_times_ms: Times


def find_cuts(
    rows: Sequence[Row],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    *,
    learned: BoundaryDetector | None,
    mapped: Callable[[Sequence[Row], Step], list[Row]],
) -> FoundCuts:
    """The cuts of ``video``, whose segments' features ``rows`` name, in order of time.

    ``mapped`` runs a step over rows. Raises StageError and StageStoppedError.
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
        found = _measured(stored, video, workspace, config, mapped)
    else:
        found = [
            _learned(part, features, workspace, control, config, learned)
            for part, features in zip(video.all_parts, stored, strict=True)
        ]
    cuts = timeline_cuts([part.start_ms for part in video.all_parts], found)
    return FoundCuts(cuts, np.concatenate(times), np.concatenate(keys))


def _measured(
    stored: Sequence[Sequence[FeaturesPart]],
    video: VideoSource,
    workspace: Workspace,
    config: CutConfig,
    mapped: Callable[[Sequence[Row], Step], list[Row]],
) -> list[tuple[Cut, ...]]:
    """Each part's cuts, its frames searched in tasks."""
    rows: list[Row] = []
    for index, (part, features) in enumerate(zip(video.all_parts, stored, strict=True)):
        length_ms = part.end_ms - part.start_ms
        rows += search_rows(index, features, part.start_ms, length_ms, _BLOCKS_A_TASK)
    done = mapped(rows, make_search_step(workspace, config))
    done.sort(key=lambda row: (int(row["part"]), int(row["first"])))
    return [
        Candidates.among(
            together(found_in(row) for row in done if row["part"] == index),
            part.end_ms - part.start_ms,
        ).select(config)
        for index, part in enumerate(video.all_parts)
    ]


def _learned(
    part: VideoPart,
    features: Sequence[FeaturesPart],
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    model: BoundaryDetector,
) -> tuple[Cut, ...]:
    """A part's cuts; one segment's features are in memory."""
    detector = LearnedCutDetector(model, config)
    for each in features:
        control.check()
        frames = from_bytes(workspace.store.read_bytes(each.key))
        pictures = pictures_from_bytes(workspace.store.read_bytes(pictures_key(each.key)))
        times_ms = frames.times_ms - part.start_ms
        detector.feed(replace(frames, times_ms=times_ms, pictures=pictures))
    return detector.finish(part.end_ms - part.start_ms)


_THRESHOLD = 0.5
_SUDDEN_FRAMES = 2
"""A run of transition frames no longer than this is a hard cut."""


class LearnedCutDetector:
    """``feed`` takes a video's features in order, with pictures; ``finish`` returns its cuts.

    Kept of each frame are its time and its probability alone.
    """

    def __init__(self, model: BoundaryDetector, config: CutConfig | None = None) -> None:
        self._config = config or CutConfig()
        self._run = model.start()
        self._times: list[Times] = []
        self._found: list[Probabilities] = []

    def feed(self, features: FrameFeatures) -> None:
        """Take the next frames. Raises ValueError where they come without pictures."""
        if features.pictures is None:
            raise ValueError("A learned detector needs the frames' pictures.")
        self._times.append(features.times_ms)
        self._found.append(self._run.feed(features.pictures))

    def finish(self, duration_ms: int) -> tuple[Cut, ...]:
        """The cuts of the whole video, in order; the detector is used up."""
        if not self._times:
            return ()
        times = np.concatenate(self._times)
        found = np.concatenate([*self._found, self._run.finish()])
        return select_cuts(cuts_in(times, found), [], duration_ms, self._config)


def cuts_in(times_ms: Times, probabilities: Probabilities) -> list[Cut]:
    """A cut for each run of probable transition frames that something follows."""
    inside = np.concatenate([[False], probabilities > _THRESHOLD, [False]])
    edges = np.flatnonzero(np.diff(inside.astype(np.int8)))
    cuts = []
    for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if after >= len(times_ms):
            continue
        confidence = float(probabilities[first:after].max())
        new_ms = int(times_ms[after])
        if after - first <= _SUDDEN_FRAMES:
            cuts.append(Cut(new_ms, CutKind.HARD, confidence, new_ms, new_ms))
        else:
            middle_ms = int(times_ms[(first + after) // 2])
            start_ms = int(times_ms[first])
            cuts.append(Cut(middle_ms, CutKind.DISSOLVE, confidence, start_ms, new_ms))
    return cuts


def timeline_cuts(
    starts_ms: Sequence[int], cuts_of_parts: Sequence[Sequence[Cut]]
) -> tuple[Cut, ...]:
    """All cuts on the timeline, in order.

    ``starts_ms`` says when each part starts there; its cuts' times count from then. A
    video that was never cut up is a single part.
    """
    cuts: list[Cut] = []
    for index, (start_ms, own) in enumerate(zip(starts_ms, cuts_of_parts, strict=True)):
        if index:
            cuts.append(Cut(start_ms, CutKind.HARD, 1.0, start_ms, start_ms))
        cuts += [_moved(cut, start_ms) for cut in own]
    return tuple(cuts)


def _moved(cut: Cut, by_ms: int) -> Cut:
    return replace(
        cut,
        time_ms=cut.time_ms + by_ms,
        start_ms=cut.start_ms + by_ms,
        end_ms=cut.end_ms + by_ms,
    )
