"""Where a video's scenes begin, from the stored features of its segments.

Long videos are searched in many tasks, some blocks of frames each; the result does not depend
on that. A learned detector goes over all frames in order, in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from models.contracts import BoundaryDetector, Box, Probabilities
from pipelines.artifacts import Made
from pipelines.execution.chain import Control, Mapper, Workspace, map_here
from pipelines.types import StageCode, StageError, VideoPart, VideoSource
from pipelines.vision.bars import active_picture, inside
from pipelines.vision.cuts.hard import SLOW_MS, find_hard
from pipelines.vision.cuts.screens import find_screen_changes
from pipelines.vision.cuts.search import (
    FeaturesPart,
    SearchConfig,
    SearchCuts,
    block_runs,
    together,
)
from pipelines.vision.cuts.selection import Candidates, Cut, CutConfig, CutKind, select_cuts
from pipelines.vision.features import (
    FEATURES,
    FrameFacts,
    FrameFeatures,
    Shapes,
    Times,
    facts_from_bytes,
    joined,
    no_frames,
    pictures_from_bytes,
    pictures_key,
)

_BLOCKS_A_TASK = 3
"""Less than a second's work; reading the features around them takes a tenth of it."""


@dataclass(frozen=True, slots=True)
class FoundCuts:
    """``cuts`` in order; times of all frames, and of key frames and damaged ones among them.

    ``contrasts`` are the frames' (see FrameFacts), ``active`` is the picture between bars of each
    part, as stored.
    """

    cuts: tuple[Cut, ...]
    times_ms: Times
    key_times_ms: Times
    damaged_ms: Times
    contrasts: Shapes
    active: tuple[Box, ...]


def find_cuts(
    features: Sequence[Made],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    *,
    learned: BoundaryDetector | None,
    mapper: Mapper,
) -> FoundCuts:
    """The cuts of ``video``, of whose segments in order these are the stored features.

    Raises StageError, VISION_FAILED where there is no frame, and StageStoppedError.
    """
    facts: list[FrameFacts] = []
    stored: list[list[FeaturesPart]] = [[] for _ in video.all_parts]
    for segment, made in zip(video.segments, features, strict=True):
        control.check()
        facts.append(facts_from_bytes(workspace.store.read_bytes(made.key)))
        stored[segment.part].append(FeaturesPart(made.key, 0, len(facts[-1].times_ms)))
    if not any(part.after for own in stored for part in own):
        raise StageError(StageCode.VISION_FAILED, "No picture of the video could be decoded.")
    active = tuple(
        active_picture(
            each
            for segment, each in zip(video.segments, facts, strict=True)
            if segment.part == number
        )
        for number in range(len(stored))
    )
    if learned is None:
        found = _measured(stored, active, video, workspace, control, config, mapper)
    else:
        found = [
            _learned(part, own, box, workspace, control, config, learned)
            for part, own, box in zip(video.all_parts, stored, active, strict=True)
        ]
    cuts = timeline_cuts([part.start_ms for part in video.all_parts], found)
    return FoundCuts(
        cuts,
        np.concatenate([own.times_ms for own in facts]),
        np.concatenate([own.key_times_ms for own in facts]),
        np.concatenate([own.damaged_ms for own in facts]),
        np.concatenate([own.contrasts for own in facts]),
        active,
    )


def _measured(
    stored: Sequence[Sequence[FeaturesPart]],
    active: Sequence[Box],
    video: VideoSource,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    mapper: Mapper,
) -> list[tuple[Cut, ...]]:
    """Each part's cuts, its frames searched in tasks; what a single task can do is done here."""
    runs = [
        block_runs(own, box, part.start_ms, part.end_ms - part.start_ms, _BLOCKS_A_TASK)
        for part, own, box in zip(video.all_parts, stored, active, strict=True)
    ]
    every = [run for own in runs for run in own]
    on = mapper if len(every) > 1 else map_here
    found = iter(on(every, SearchCuts(workspace, config), control))
    return [
        Candidates.among(together(islice(found, len(own))), part.end_ms - part.start_ms).select(
            config
        )
        for part, own in zip(video.all_parts, runs, strict=True)
    ]


def _learned(
    part: VideoPart,
    features: Sequence[FeaturesPart],
    active: Box,
    workspace: Workspace,
    control: Control,
    config: CutConfig,
    model: BoundaryDetector,
) -> tuple[Cut, ...]:
    """A part's cuts; one segment's features are in memory."""
    detector = LearnedCutDetector(model, config)
    for each in features:
        control.check()
        frames = FEATURES.load(workspace.store, each.key)
        pictures = pictures_from_bytes(workspace.store.read_bytes(pictures_key(each.key)))
        times_ms = frames.times_ms - part.start_ms
        frames = replace(frames, times_ms=times_ms, pictures=pictures)
        detector.feed(inside(frames, active))
    return detector.finish(part.end_ms - part.start_ms)


_THRESHOLD = 0.5
_SUDDEN_FRAMES = 2
"""A run of transition frames no longer than this is a hard cut."""


class LearnedCutDetector:
    """``feed`` takes a video's features in order, with pictures; ``finish`` returns its cuts.

    Kept of each frame are its time and its probability alone. Such a model has learned from
    films: slides and screens are compared as elsewhere.
    """

    def __init__(self, model: BoundaryDetector, config: CutConfig | None = None) -> None:
        self._config = config or CutConfig()
        self._run = model.start()
        self._times: list[Times] = []
        self._found: list[Probabilities] = []
        self._slides = _Slides(self._config)

    def feed(self, features: FrameFeatures) -> None:
        """Take the next frames. Raises ValueError where they come without pictures."""
        if features.pictures is None:
            raise ValueError("A learned detector needs the frames' pictures.")
        self._times.append(features.times_ms)
        self._found.append(self._run.feed(features.pictures))
        self._slides.feed(features)

    def finish(self, duration_ms: int) -> tuple[Cut, ...]:
        """The cuts of the whole video, in order; the detector is used up."""
        if not self._times:
            return ()
        times = np.concatenate(self._times)
        found = np.concatenate([*self._found, self._run.finish()])
        cuts = cuts_in(times, found) + self._slides.finish()
        return select_cuts(cuts, [], duration_ms, self._config)


class _Slides:
    """Changes of slides and screens in frames that come in parts; a second of them is kept."""

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self._near, self._searched = no_frames(), 0
        self._found: list[tuple[int, float]] = []

    def feed(self, features: FrameFeatures) -> None:
        self._near = joined([self._near, features])
        times, lasting_ms = self._near.times_ms, self._config.screen.lasting_ms
        if not len(times):
            return
        self._search(int(np.searchsorted(times, times[-1] - lasting_ms)))
        first_ms = times[max(0, self._searched - 1)] - lasting_ms
        kept = min(max(0, self._searched - 2), int(np.searchsorted(times, first_ms)))
        self._near = self._near.part(kept, len(times))
        self._searched -= kept

    def finish(self) -> list[Cut]:
        self._search(len(self._near))
        return [Cut(at, CutKind.HARD, confidence, at, at) for at, confidence in self._found]

    def _search(self, end: int) -> None:
        start, self._searched = self._searched, max(self._searched, end)
        self._found += find_screen_changes(self._near, start, end, self._config.screen)
        slow = np.flatnonzero(np.diff(self._near.times_ms[:end]) >= SLOW_MS) + 1
        for index in slow[slow >= start].tolist():
            self._found += find_hard(self._near, index, index + 1, self._config.hard)


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

    ``starts_ms`` is when each part starts there; its cuts' times count from then. A
    video that was never cut up is a single part.
    """
    cuts: list[Cut] = []
    for index, (start_ms, own) in enumerate(zip(starts_ms, cuts_of_parts, strict=True)):
        if index:
            cuts.append(Cut(start_ms, CutKind.HARD, 1.0, start_ms, start_ms))
        cuts += [
            replace(
                cut,
                time_ms=cut.time_ms + start_ms,
                start_ms=cut.start_ms + start_ms,
                end_ms=cut.end_ms + start_ms,
            )
            for cut in own
        ]
    return tuple(cuts)
