"""Where a video's scenes begin: candidates for cuts searched in blocks, and the cuts among them.

Blocks have a fixed number of frames counted from the first one, each searched with the same
surroundings, so the result depends on the frames alone, not on which task searches a block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import cv2
import numpy as np
import numpy.typing as npt

from models.contracts import Box
from models.provider import ModelProvider
from models.tasks import DETECT_BOUNDARIES, BoundaryDetector
from pipelines.execution.chain import Step, Workspace
from pipelines.types import CutsBy, StageCode
from pipelines.vision.bars import inside
from pipelines.vision.cuts.gradual import (
    Gradual,
    GradualConfig,
    IntervalIndex,
    Mixed,
    WipeConfig,
    best_graduals,
    decisive,
    find_gradual,
    find_wipes,
)
from pipelines.vision.cuts.hard import HardConfig, find_hard
from pipelines.vision.cuts.judge import JudgeConfig, Judgement, judged
from pipelines.vision.cuts.measures import (
    Blank,
    ScreenConfig,
    blanks,
    cell_luma,
    find_screen_changes,
)
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

    Over seeds 11 to 14 of ``benchmarks/scenes.py``, where one transition in seven is
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
    *,
    judges_all: bool = False,
) -> Found:
    """Return what is found at frames ``start`` to ``end``, both ends of blocks.

    ``frames`` reach ``SURROUNDING_FRAMES`` further on both sides, or to an end of the
    video; ``after_ms`` is when the last of them ends. Without a ``detector`` nothing is judged;
    unless it ``judges_all``, candidates on which nothing depends are not, and may be open.
    """
    if end <= start:
        return Found()
    seen = _Seen(frames, Mixed.of(frames), cell_luma(frames.luma))
    blocks = [(at, min(at + BLOCK_FRAMES, end)) for at in range(start, end, BLOCK_FRAMES)]

    def find(block: tuple[int, int], judges_all: bool) -> Found:
        return _of_block(seen, *block, config, after_ms, detector, judges_all)

    every = judges_all or config.by is CutsBy.THOROUGH
    found = [find(block, every) for block in blocks]
    return together(settled(found, config, lambda open_: [find(blocks[at], True) for at in open_]))


def settled(
    found: list[Found], config: SearchConfig, again: Callable[[list[int]], list[Found]]
) -> list[Found]:
    """Return ``found`` without candidates on which something depends and that are still open.

    A block knows neither its neighbours' candidates nor, therefore, all that its own decide.
    ``again`` searches those of these places in ``found`` anew, and judges all that is doubtful.
    """
    while True:
        whole = together(found)
        deciding = {it for it in deciding_of(whole.graduals, whole.wipes, config) if it.is_open}
        places = [
            at for at, one in enumerate(found) if deciding.intersection((*one.graduals, *one.wipes))
        ]
        if not places:
            return found
        for at, new in zip(places, again(places), strict=True):
            found[at] = new


def as_judged(
    graduals: Sequence[Gradual],
    wipes: Sequence[Gradual],
    doubtful: set[Gradual],
    config: SearchConfig,
    refused: Callable[[set[Gradual]], set[Gradual]],
    judges_all: bool,
) -> tuple[list[Gradual], list[Gradual]]:
    """Return both without confidence in those that are ``refused``, which is called once at least.

    Only those of the ``doubtful`` are judged on which something depends, unless it ``judges_all``:
    what is refused makes way for others, until all that decide are judged. The rest is open.
    """
    found, is_first = ([*graduals], [*wipes]), True
    while True:
        asked = doubtful if judges_all else doubtful & deciding_of(*found, config)
        if not asked and not is_first:
            break
        # With them what they may make way for, which is mostly of the same frames: each look at
        # the network has margins of its own.
        asked |= {it for it in doubtful if any(_overlap(it, other) for other in asked)}
        gone, doubtful, is_first = refused(asked), doubtful - asked, False
        for some in found:
            # A refused one still counts among those it overlaps.
            some[:] = [replace(it, confidence=0.0) if it in gone else it for it in some]
    one, other = ([replace(it, is_open=it in doubtful) for it in some] for some in found)
    return one, other


def _overlap(one: Gradual, other: Gradual) -> bool:
    return one.start_ms < other.end_ms and other.start_ms < one.end_ms


def deciding_of(
    graduals: Iterable[Gradual], wipes: Iterable[Gradual], config: SearchConfig
) -> set[Gradual]:
    """Return those whose confidence has a part in what is chosen.

    A gradual transition that is refused still counts as found, so only the surest decide; a wipe
    that is refused is left out, so that the strongest do too.
    """
    found = {best for _, best in decisive([*graduals])}
    for pair in decisive([wipe for wipe in wipes if wipe.confidence >= config.min_wipe]):
        found |= {*pair}
    return found


@dataclass(frozen=True, slots=True)
class _Seen:
    """Frames, and what is made of each by itself: blocks' surroundings overlap."""

    frames: FrameFeatures
    mixed: Mixed
    cells: npt.NDArray[np.float32]

    def part(self, start: int, end: int) -> _Seen:
        """Return frames ``start`` to ``end``, as views."""
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
    judges_all: bool,
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
        judge = config.judge
        doubtful = {it for it in wipes if config.min_wipe <= it.confidence < judge.sure_wipe}
        # Fades to black and white are what the measures are surest of.
        mixed = (it for it in probable if it.blank is None)
        doubtful |= {it for it in mixed if it.confidence < judge.sure_dissolve}
        # What lies within a transition was fitted as having no sudden one.
        spans = [(it.start_ms, it.end_ms) for it in probable]
        within = [it for it in steps if any(start < it.time_ms < end for start, end in spans)]
        outside = [each for each in steps if each not in within]
        judgements = list[Judgement]()

        def refused(asked: set[Gradual]) -> set[Gradual]:
            # The steps are judged with the first of the others: what is near is seen in one go.
            is_first = not judgements
            thorough = is_first and config.by is CutsBy.THOROUGH
            steps = outside if is_first else []
            found = judged(window, inside, steps, asked, detector, judge, thorough=thorough)
            judgements.append(found)
            return judgements[-1].refused

        graduals, wipes = as_judged(graduals, wipes, doubtful, config, refused, judges_all)
        hard = judgements[0].hard + [(each.time_ms, each.confidence) for each in within]
        graduals += judgements[0].unproposed
    screens = find_screen_changes(window, *inside, config.screen)
    return Found(
        (*hard, *screens), tuple(graduals), tuple(wipes), _blank_runs(window.part(*inside), ends_ms)
    )


def _blank_runs(frames: FrameFeatures, ends_ms: int) -> tuple[BlankRun, ...]:
    """Return a run for each blank frame, up to the frame after it, joined."""
    ends = [*frames.times_ms[1:].tolist(), ends_ms]
    runs = zip(frames.times_ms.tolist(), ends, blanks(frames.luma), strict=True)
    return _unbroken([BlankRun(start, end, kind) for start, end, kind in runs if kind])


def _unbroken(runs: Iterable[BlankRun]) -> tuple[BlankRun, ...]:
    """Runs of one kind that touch made one."""
    joined: list[BlankRun] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last is not None and last.end_ms == run.start_ms and last.blank is run.blank:
            joined[-1] = replace(last, end_ms=run.end_ms)
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
    judges_all: bool = False
    """Whether the network judges candidates too on which nothing depends within the run."""


def block_runs(
    features: Sequence[FeaturesPart], active: Box, start_ms: int, duration_ms: int, blocks: int
) -> list[BlockRun]:
    """Return one for every so many ``blocks`` of a part of a timeline, in order."""
    total, span = sum(map(len, features)), blocks * BLOCK_FRAMES
    runs = []
    for first in range(0, total, span):
        end = min(first + span, total)
        low, high = max(0, first - SURROUNDING_FRAMES), min(total, end + SURROUNDING_FRAMES)
        near = tuple(_between(features, low, high))
        runs.append(BlockRun(near, active, first - low, end - low, start_ms, duration_ms))
    return runs


def _between(features: Sequence[FeaturesPart], low: int, high: int) -> Iterator[FeaturesPart]:
    """Yield the frames ``low`` to ``high`` of all ``features`` end to end."""
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
            parts.append(FEATURES.load(self.workspace.store, each.key).part(each.first, each.after))
        frames = inside(joined(parts), run.active)
        frames = replace(frames, times_ms=frames.times_ms - run.start_ms)
        is_judged = self.config.by is not CutsBy.MEASURED
        detector = self.models.get(DETECT_BOUNDARIES) if is_judged else None
        span, after_ms = (run.start, run.end), run.duration_ms
        return search(frames, *span, self.config, after_ms, detector, judges_all=run.judges_all)


_SURE = 0.95
"""Confidence of a cut that nothing moving in the picture can have caused."""

_SURE_GRADUAL = 0.8
_STANDS = 0.85
"""Confidence of a cut that bounds a scene however short."""


class CutKind(StrEnum):
    """How one scene gives way to the next."""

    HARD = "hard"
    DISSOLVE = "dissolve"
    FADE_BLACK = "fade_black"
    FADE_WHITE = "fade_white"
    WIPE = "wipe"


_FADES = {Blank.BLACK: CutKind.FADE_BLACK, Blank.WHITE: CutKind.FADE_WHITE}


@dataclass(frozen=True, slots=True)
class Cut:
    """The border between two scenes.

    ``time_ms`` is the first frame of the new scene, for a gradual transition
    the frame at its middle; the transition covers ``start_ms`` to ``end_ms``
    (both ``time_ms`` for a hard cut). ``confidence`` is 0 to 1.
    """

    time_ms: int
    kind: CutKind
    confidence: float
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class CutConfig(SearchConfig):
    """What counts as a cut."""

    min_scene_ms: int = 500
    min_sure_scene_ms: int = 125
    """Between two sure cuts: trailers and music videos have shots of four frames."""
    min_edge_scene_ms: int = 200
    """The first and last scene may be this short: media often starts or ends in mid-shot."""
    max_blank_ms: int = 2_000
    """A black or white interval no longer than this is part of a transition, not a scene."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be cuts in a video. Limits of confidence are tried on it without looking again."""

    cuts: tuple[Cut, ...]
    wipes: tuple[Gradual, ...]
    blanks: tuple[BlankRun, ...]
    duration_ms: int

    @classmethod
    def among(cls, found: Found, duration_ms: int) -> Candidates:
        """Return each of what was found in all blocks of a video."""
        hard = (Cut(at, CutKind.HARD, confidence, at, at) for at, confidence in found.hard)
        graduals = (_gradual_cut(gradual) for gradual in best_graduals([*found.graduals]))
        return cls((*hard, *graduals), found.wipes, found.blanks, duration_ms)

    @classmethod
    def in_features(
        cls, features: FrameFeatures, duration_ms: int, config: SearchConfig
    ) -> Candidates:
        """Those of a whole video, searched in one go."""
        return cls.among(search(features, 0, len(features), config, duration_ms), duration_ms)

    def select(self, config: CutConfig) -> tuple[Cut, ...]:
        """Return the cuts, in order."""
        wipes = [wipe for wipe in self.wipes if wipe.confidence >= config.min_wipe]
        found = without_visits(list(self.cuts), best_graduals(wipes))
        return select_cuts(found, list(self.blanks), self.duration_ms, config)


def _gradual_cut(gradual: Gradual) -> Cut:
    return Cut(
        gradual.middle_ms,
        CutKind.DISSOLVE if gradual.blank is None else _FADES[gradual.blank],
        gradual.confidence,
        gradual.start_ms,
        gradual.end_ms,
    )


def without_visits(cuts: list[Cut], wipes: list[Gradual]) -> list[Cut]:
    """``cuts`` and the wipes without those caused by objects that enter and leave the picture.

    Something that moves in front of the camera and leaves again looks like two
    wipes, and what it does in between may look like cuts. Unlike after an
    edit, the old picture returns without a sure cut.
    """
    least = {kind: _SURE if kind is CutKind.HARD else _SURE_GRADUAL for kind in CutKind}
    sure = [cut for cut in cuts if cut.confidence >= least[cut.kind]]
    sure_times = IntervalIndex(sure, lambda cut: (cut.time_ms, cut.time_ms))
    visits = IntervalIndex(
        [
            (start_ms, end_ms)
            for wipe in wipes
            for start_ms, end_ms in wipe.visits_ms
            if not any(True for _ in sure_times.touching(start_ms + 1, end_ms))
        ],
        lambda visit: visit,
    )
    surest = set(sure)
    kept = [
        cut
        for cut in cuts
        if cut in surest
        or not any(
            start < cut.time_ms < end for start, end in visits.touching(cut.time_ms, cut.time_ms)
        )
    ]
    edits = [
        wipe
        for wipe in wipes
        if not any(True for _ in sure_times.touching(wipe.start_ms + 1, wipe.end_ms - 1))
        and not any(
            start <= wipe.start_ms and wipe.end_ms <= end
            for start, end in visits.touching(wipe.start_ms, wipe.end_ms)
        )
    ]
    return kept + [replace(_gradual_cut(wipe), kind=CutKind.WIPE) for wipe in edits]


def detect_cuts(
    features: Iterable[FrameFeatures], duration_ms: int, config: CutConfig | None = None
) -> tuple[Cut, ...]:
    """Return the cuts of a video whose features come in parts, in order; all are held in memory."""
    config = config or CutConfig()
    return Candidates.in_features(joined([*features]), duration_ms, config).select(config)


def select_cuts(
    found: list[Cut], blanks: list[BlankRun], duration_ms: int, config: CutConfig
) -> tuple[Cut, ...]:
    """Of everything found, what stands: one cut a transition, scenes not too short."""
    sure = _outside_graduals([cut for cut in found if cut.confidence >= config.min_confidence])
    single = _strongest_apart(sure, config.min_scene_ms // 4, config.min_sure_scene_ms)
    bridged = _bridge_blanks(single, blanks, duration_ms, config)
    apart = _strongest_apart(bridged, config.min_scene_ms, config.min_sure_scene_ms)
    first, last = config.min_edge_scene_ms, duration_ms - config.min_edge_scene_ms
    return tuple(cut for cut in apart if first <= cut.time_ms <= last)


def _outside_graduals(cuts: list[Cut]) -> list[Cut]:
    """Without steps inside a gradual transition: it was fitted as having no sudden one."""
    graduals = IntervalIndex([cut for cut in cuts if cut.kind is not CutKind.HARD], _span)

    def is_inside(time_ms: int) -> bool:
        near = graduals.touching(time_ms, time_ms)
        return any(each.start_ms < time_ms < each.end_ms for each in near)

    return [cut for cut in cuts if cut.kind is not CutKind.HARD or not is_inside(cut.time_ms)]


def _strongest_apart(cuts: list[Cut], gap_ms: int, sure_gap_ms: int) -> list[Cut]:
    """Return the most confident cuts that neither overlap nor come within ``gap_ms``, or, where
    both are sure, within ``sure_gap_ms`` of each other; in order."""
    surest_first = sorted(cuts, key=lambda cut: (-cut.confidence, cut.time_ms))
    by_time = IntervalIndex(range(len(cuts)), lambda index: _span(surest_first[index]))
    is_kept = [False] * len(cuts)
    for index, cut in enumerate(surest_first):
        near = by_time.touching(cut.start_ms - gap_ms, cut.end_ms + gap_ms)
        is_kept[index] = all(
            _clear(cut, surest_first[other], gap_ms, sure_gap_ms)
            for other in near
            if is_kept[other]
        )
    kept = [cut for cut, stands in zip(surest_first, is_kept, strict=True) if stands]
    return sorted(kept, key=lambda cut: cut.time_ms)


def _span(cut: Cut) -> tuple[int, int]:
    return cut.start_ms, cut.end_ms


def _clear(cut: Cut, other: Cut, gap_ms: int, sure_gap_ms: int) -> bool:
    between_ms = max(cut.start_ms, other.start_ms) - min(cut.end_ms, other.end_ms)
    if between_ms >= sure_gap_ms and min(cut.confidence, other.confidence) >= _STANDS:
        return True
    return between_ms > 0 and abs(cut.time_ms - other.time_ms) >= gap_ms


def _bridge_blanks(
    cuts: list[Cut], blanks: list[BlankRun], duration_ms: int, config: CutConfig
) -> list[Cut]:
    """Return each short black or white interval, and the cuts into and out of it, made one cut. At
    the very start or end of the video there is only one scene beside it, so no cut is left there.
    ``cuts`` are in order and do not overlap."""
    slack_ms = config.min_scene_ms // 4
    rest, bridges = list(cuts), []
    for run in sorted(blanks, key=lambda run: (run.blank is Blank.WHITE, run.start_ms)):
        if run.end_ms - run.start_ms > config.max_blank_ms:
            continue
        into, out = _into(rest, run, slack_ms), _out_of(rest, run, slack_ms)
        at_edge = run.start_ms <= config.min_edge_scene_ms or run.end_ms >= duration_ms
        if at_edge:
            _remove(rest, into, out)
        elif into is not None and out is not None:
            _remove(rest, into, out)
            bridges.append(_merged(into, out, _FADES[run.blank]))
    return sorted(rest + bridges, key=lambda cut: cut.time_ms)


def _into(cuts: list[Cut], run: BlankRun, slack_ms: int) -> Cut | None:
    """Return the cut that leads into a blank interval."""
    first = bisect_left(cuts, run.start_ms - slack_ms, key=lambda cut: cut.end_ms)
    near = cuts[first : first + 1]
    return near[0] if near and near[0].time_ms < _middle_ms(run) else None


def _out_of(cuts: list[Cut], run: BlankRun, slack_ms: int) -> Cut | None:
    """Return the cut that leads out of a blank interval."""
    after = bisect_right(cuts, run.end_ms + slack_ms, key=lambda cut: cut.start_ms)
    near = cuts[max(0, after - 1) : after]
    return near[0] if near and near[0].time_ms >= _middle_ms(run) else None


def _middle_ms(run: BlankRun) -> int:
    return (run.start_ms + run.end_ms) // 2


def _remove(cuts: list[Cut], *unwanted: Cut | None) -> None:
    """``unwanted`` from ``cuts``, which are in order and at different times."""
    for cut in {cut for cut in unwanted if cut is not None}:
        del cuts[bisect_left(cuts, cut.time_ms, key=lambda other: other.time_ms)]


def _merged(into: Cut, out: Cut, kind: CutKind) -> Cut:
    """Return one cut for a dip to black or white: where a hard cut bounds it, there, else its
    middle."""
    confidence = max(into.confidence, out.confidence)
    start_ms, end_ms = into.start_ms, out.end_ms
    if out.kind is CutKind.HARD:
        if into.kind is CutKind.HARD:
            return replace(out, confidence=confidence)
        return Cut(out.time_ms, kind, confidence, start_ms, end_ms)
    middle_ms = into.time_ms if into.kind is CutKind.HARD else (start_ms + end_ms) // 2
    return Cut(middle_ms, kind, confidence, start_ms, end_ms)
