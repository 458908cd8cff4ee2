"""Candidates for cuts among a video's frames, searched in independent blocks.

Blocks have a fixed number of frames counted from the first one, each searched with the same
surroundings, so the result depends on the frames alone, not on which task searches a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import Box
from models.provider import ModelProvider
from models.tasks import DETECT_BOUNDARIES, BoundaryDetector
from pipelines.execution.chain import Step, Workspace
from pipelines.types import CutsBy, StageCode
from pipelines.vision.bars import inside
from pipelines.vision.cuts.gradual import Gradual, GradualConfig, Mixed, find_gradual
from pipelines.vision.cuts.hard import HardConfig, find_hard
from pipelines.vision.cuts.judge import JudgeConfig, judged
from pipelines.vision.cuts.measures import Blank, blanks, cell_luma
from pipelines.vision.cuts.screens import ScreenConfig, find_screen_changes
from pipelines.vision.cuts.wipes import WipeConfig, find_wipes
from pipelines.vision.features import FEATURES, FrameFeatures, joined

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
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    by: CutsBy = CutsBy.JUDGED
    min_confidence: float = 0.5
    min_wipe: float = 0.8
    """Confidence of a wipe: these are rare, and much that moves resembles them a little.

    Over seeds 11 to 14 of ``tests/benchmarks/scenes.py``, where one transition in seven is
    a wipe, all kinds together lose 0.002 from 0.7 to 0.8 and hard cuts gain 0.0025; in what
    people film wipes are far rarer than there, and what resembles them is not.
    """


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
    frames: FrameFeatures,
    start: int,
    end: int,
    config: SearchConfig,
    after_ms: int,
    detector: BoundaryDetector | None = None,
) -> Found:
    """What is found at frames ``start`` to ``end``, both ends of blocks.

    ``frames`` reach ``SURROUNDING_FRAMES`` further on both sides, or to an end of the
    video; ``after_ms`` is when the last of them ends. Without a ``detector`` nothing is judged.
    """
    if end <= start:
        return Found()
    seen = _Seen(frames, Mixed.of(frames), cell_luma(frames.luma))
    found = [
        _of_block(seen, first, min(first + BLOCK_FRAMES, end), config, after_ms, detector)
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


def _of_block(
    seen: _Seen,
    start: int,
    end: int,
    config: SearchConfig,
    after_ms: int,
    detector: BoundaryDetector | None,
) -> Found:
    frames = seen.frames
    low = max(0, start - SURROUNDING_FRAMES)
    near = seen.part(low, min(len(frames), end + SURROUNDING_FRAMES))
    window, inside = near.frames, (start - low, end - low)
    ends_ms = int(frames.times_ms[end]) if end < len(frames) else after_ms
    steps = find_hard(window, *inside, config.hard)
    hard = [(each.time_ms, each.confidence) for each in steps]
    graduals = find_gradual(window, near.mixed, *inside, config.gradual)
    wipes = find_wipes(window, near.cells, *inside, config.wipe)
    if detector is not None:
        probable = [each for each in graduals if each.confidence >= config.min_confidence]
        doubtful = [
            # Fades to black and white are what the measures are surest of.
            *(
                each
                for each in probable
                if each.blank is None and each.confidence < config.judge.sure_dissolve
            ),
            *(
                each
                for each in wipes
                if config.min_wipe <= each.confidence < config.judge.sure_wipe
            ),
        ]
        # What lies within a transition was fitted as having no sudden one.
        within = [
            each
            for each in steps
            if any(other.start_ms < each.time_ms < other.end_ms for other in probable)
        ]
        outside = [each for each in steps if each not in within]
        thorough = config.by is CutsBy.THOROUGH
        judgement = judged(
            window, inside, outside, doubtful, detector, config.judge, thorough=thorough
        )
        hard = judgement.hard + [(each.time_ms, each.confidence) for each in within]
        graduals = [*map(judgement.of, graduals), *judgement.unproposed]
        wipes = [*map(judgement.of, wipes)]
    screens = find_screen_changes(window, *inside, config.screen)
    return Found(
        (*hard, *screens),
        tuple(graduals),
        tuple(wipes),
        _blank_runs(window.part(*inside), ends_ms),
    )


def _blank_runs(frames: FrameFeatures, ends_ms: int) -> tuple[BlankRun, ...]:
    """A run for each blank frame, up to the frame after it, joined."""
    ends = [*frames.times_ms[1:].tolist(), ends_ms]
    runs = zip(frames.times_ms.tolist(), ends, blanks(frames.luma), strict=True)
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


@dataclass(frozen=True, slots=True)
class FeaturesPart:
    """Frames ``first`` to ``after`` of a segment's stored features."""

    key: str
    first: int
    after: int

    def __len__(self) -> int:
        return self.after - self.first


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks of one part of a timeline to search in one task.

    They are the frames ``start`` to ``end`` of ``features`` end to end. The part lasts
    ``duration_ms`` from ``start_ms`` on the timeline that the features' times count from.
    """

    features: tuple[FeaturesPart, ...]
    active: Box
    """The picture between bars."""
    start: int
    end: int
    start_ms: int
    duration_ms: int


def block_runs(
    features: Sequence[FeaturesPart], active: Box, start_ms: int, duration_ms: int, blocks: int
) -> list[BlockRun]:
    """One for every so many ``blocks`` of a part of a timeline, in order."""
    total, span = sum(map(len, features)), blocks * BLOCK_FRAMES
    runs = []
    for first in range(0, total, span):
        end = min(first + span, total)
        low, high = max(0, first - SURROUNDING_FRAMES), min(total, end + SURROUNDING_FRAMES)
        near = tuple(_between(features, low, high))
        runs.append(BlockRun(near, active, first - low, end - low, start_ms, duration_ms))
    return runs


def _between(features: Sequence[FeaturesPart], low: int, high: int) -> Iterator[FeaturesPart]:
    """The frames ``low`` to ``high`` of all ``features`` end to end."""
    for each in features:
        first, after = each.first + max(0, low), min(each.after, each.first + high)
        if first < after:
            yield FeaturesPart(each.key, first, after)
        low, high = low - len(each), high - len(each)


@dataclass(frozen=True)
class SearchCuts(Step[BlockRun, Found]):
    """Blocks of frames to what may be cuts in them."""

    name = "Finding the cuts"
    code = StageCode.VISION_FAILED
    workspace: Workspace
    models: ModelProvider
    config: SearchConfig

    def process(self, run: BlockRun) -> Found:
        cv2.setNumThreads(1)
        parts = []
        for each in run.features:
            self.workspace.check()
            features = FEATURES.load(self.workspace.store, each.key)
            parts.append(features.part(each.first, each.after))
        frames = inside(joined(parts), run.active)
        frames = replace(frames, times_ms=frames.times_ms - run.start_ms)
        is_judged = self.config.by is not CutsBy.MEASURED
        detector = self.models.get(DETECT_BOUNDARIES) if is_judged else None
        return search(frames, run.start, run.end, self.config, run.duration_ms, detector)
