"""Where a video's scenes begin: cuts, fades and dissolves from the features of its frames.

The detector takes the features in any pieces and works through them in blocks
of a fixed number of frames counted from the first one, each with the same
surroundings, so its result depends on the frames alone. Memory is bounded by
one block and its surroundings, whatever the video's length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from pipelines.merge.cut_measures import Blank, blank, brightness, contrast
from pipelines.merge.frame_features import FrameFeatures, Times, joined, no_frames
from pipelines.merge.gradual_cuts import Gradual, GradualConfig, best_graduals, find_gradual
from pipelines.merge.hard_cuts import HardConfig, find_hard
from pipelines.merge.wipes import WipeConfig, find_wipes

_BLOCK_FRAMES = 256
_SURROUNDING_FRAMES = 480
"""Looked at on both sides of a block: at up to 120 frames a second the 4 s of half a wipe and
what comes after it, at up to 360 the longest half of another gradual transition."""
_SURE = 0.95
"""Confidence of a cut that nothing in front of the camera can explain away."""


_SURE_GRADUAL = 0.8


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
class CutConfig:
    """What counts as a cut."""

    hard: HardConfig = field(default_factory=HardConfig)
    gradual: GradualConfig = field(default_factory=GradualConfig)
    wipe: WipeConfig = field(default_factory=WipeConfig)
    min_confidence: float = 0.5
    min_wipe: float = 0.65
    """Confidence of a wipe: these are rare, and much that moves resembles them a little."""
    min_scene_ms: int = 500
    min_edge_scene_ms: int = 200
    """The first and last scene may be this short: footage often starts or ends in mid-shot."""
    max_blank_ms: int = 2_000
    """A black or white stretch no longer than this is part of a transition, not a scene."""


@dataclass(frozen=True, slots=True)
class BlankRun:
    """A run of black or white frames, from its first frame to the one after it."""

    start_ms: int
    end_ms: int
    blank: Blank


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be cuts in a video. Limits of confidence are tried on it without looking again."""

    cuts: tuple[Cut, ...]
    wipes: tuple[Gradual, ...]
    blanks: tuple[BlankRun, ...]
    duration_ms: int

    def select(self, config: CutConfig) -> tuple[Cut, ...]:
        """The cuts, in order."""
        wipes = [wipe for wipe in self.wipes if wipe.confidence >= config.min_wipe]
        found = without_visits(list(self.cuts), best_graduals(wipes))
        return select_cuts(found, list(self.blanks), self.duration_ms, config)


class CutDetector:
    """Feed it the features of a video in order, then ask for its cuts."""

    def __init__(self, config: CutConfig | None = None) -> None:
        self._config = config or CutConfig()
        self._frames = no_frames()
        self._next = 0
        self._hard: list[Cut] = []
        self._graduals: list[Gradual] = []
        self._wipes: list[Gradual] = []
        self._blanks: list[BlankRun] = []
        self._blank_open: tuple[int, Blank] | None = None

    def feed(self, features: FrameFeatures) -> None:
        """Take the next frames; their times must follow those taken before."""
        if len(features) == 0:
            return
        self._frames = joined([self._frames, features])
        while len(self._frames) >= self._next + _BLOCK_FRAMES + _SURROUNDING_FRAMES:
            self._decide(self._next + _BLOCK_FRAMES)

    def finish(self, duration_ms: int) -> tuple[Cut, ...]:
        """The cuts of the whole video, in order; the detector is used up."""
        return self.candidates(duration_ms).select(self._config)

    def candidates(self, duration_ms: int) -> Candidates:
        """All that may be cuts, whatever the limits of confidence; the detector is used up."""
        while self._next < len(self._frames):
            self._decide(min(self._next + _BLOCK_FRAMES, len(self._frames)))
        self._close_blank(duration_ms)
        graduals = [_gradual_cut(gradual) for gradual in best_graduals(self._graduals)]
        found = tuple(self._hard + graduals)
        return Candidates(found, tuple(self._wipes), tuple(self._blanks), duration_ms)

    def _decide(self, end: int) -> None:
        """Find what happens at frames ``self._next`` to ``end`` and let go of older ones."""
        start = self._next
        first = max(0, start - _SURROUNDING_FRAMES)
        window = self._frames.part(first, min(len(self._frames), end + _SURROUNDING_FRAMES))
        inside = (start - first, end - first)
        self._note_blanks(window.part(*inside))
        for time_ms, confidence in find_hard(window, *inside, self._config.hard):
            self._hard.append(Cut(time_ms, CutKind.HARD, confidence, time_ms, time_ms))
        self._graduals += find_gradual(window, *inside, self._config.gradual)
        self._wipes += find_wipes(window, *inside, self._config.wipe)
        keep_from = max(0, end - _SURROUNDING_FRAMES)
        kept = self._frames.part(keep_from, len(self._frames))
        self._frames = FrameFeatures(kept.times_ms, kept.luma, kept.chroma)
        self._next = end - keep_from

    def _note_blanks(self, frames: FrameFeatures) -> None:
        levels, spreads = brightness(frames.luma), contrast(frames.luma)
        for time_ms, level, spread in zip(frames.times_ms, levels, spreads, strict=True):
            seen = blank(float(level), float(spread))
            if self._blank_open is not None and self._blank_open[1] is not seen:
                self._close_blank(int(time_ms))
            if seen is not None and self._blank_open is None:
                self._blank_open = (int(time_ms), seen)

    def _close_blank(self, end_ms: int) -> None:
        if self._blank_open is not None:
            self._blanks.append(BlankRun(self._blank_open[0], end_ms, self._blank_open[1]))
            self._blank_open = None


def _gradual_cut(gradual: Gradual) -> Cut:
    return Cut(
        gradual.middle_ms,
        CutKind.DISSOLVE if gradual.blank is None else _FADES[gradual.blank],
        gradual.confidence,
        gradual.start_ms,
        gradual.end_ms,
    )


def without_visits(cuts: list[Cut], wipes: list[Gradual]) -> list[Cut]:
    """``cuts`` and the wipes, but for what comes of things that visit the picture.

    Something that moves in front of the camera and leaves again looks like two
    wipes, and what it does in between may look like cuts. It is told from edits
    by the old picture coming back without any sure cut that would bring it.
    """
    sure = [
        cut
        for cut in cuts
        if cut.confidence >= (_SURE if cut.kind is CutKind.HARD else _SURE_GRADUAL)
    ]
    visits = [
        (start_ms, end_ms)
        for wipe in wipes
        for start_ms, end_ms in wipe.visits_ms
        if not any(start_ms < cut.time_ms <= end_ms for cut in sure)
    ]
    kept = [
        cut
        for cut in cuts
        if cut in sure or not any(start < cut.time_ms < end for start, end in visits)
    ]
    edits = [
        wipe
        for wipe in wipes
        if not any(wipe.start_ms < cut.time_ms < wipe.end_ms for cut in sure)
        and not any(start <= wipe.start_ms and wipe.end_ms <= end for start, end in visits)
    ]
    return kept + [replace(_gradual_cut(wipe), kind=CutKind.WIPE) for wipe in edits]


def detect_cuts(
    features: Iterable[FrameFeatures], duration_ms: int, config: CutConfig | None = None
) -> tuple[Cut, ...]:
    """The cuts of a video whose features come in pieces, in order, split anywhere."""
    detector = CutDetector(config)
    for part in features:
        detector.feed(part)
    return detector.finish(duration_ms)


def select_cuts(
    found: list[Cut], blanks: list[BlankRun], duration_ms: int, config: CutConfig
) -> tuple[Cut, ...]:
    """Of everything found, what stands: one cut a transition, scenes not too short."""
    sure = _outside_graduals([cut for cut in found if cut.confidence >= config.min_confidence])
    single = _strongest_apart(sure, config.min_scene_ms // 4)
    bridged = _bridge_blanks(single, blanks, duration_ms, config)
    apart = _strongest_apart(bridged, config.min_scene_ms)
    first, last = config.min_edge_scene_ms, duration_ms - config.min_edge_scene_ms
    return tuple(cut for cut in apart if first <= cut.time_ms <= last)


def _outside_graduals(cuts: list[Cut]) -> list[Cut]:
    """Without steps inside a gradual transition: it was fitted as having no sudden one."""
    graduals = [cut for cut in cuts if cut.kind is not CutKind.HARD]
    return [
        cut
        for cut in cuts
        if cut.kind is not CutKind.HARD
        or not any(gradual.start_ms < cut.time_ms < gradual.end_ms for gradual in graduals)
    ]


def _strongest_apart(cuts: list[Cut], gap_ms: int) -> list[Cut]:
    """The most confident cuts that neither overlap nor come within ``gap_ms``, in order."""
    kept: list[Cut] = []
    for cut in sorted(cuts, key=lambda cut: (-cut.confidence, cut.time_ms)):
        if all(_clear(cut, other, gap_ms) for other in kept):
            kept.append(cut)
    return sorted(kept, key=lambda cut: cut.time_ms)


def _clear(cut: Cut, other: Cut, gap_ms: int) -> bool:
    overlap = cut.start_ms <= other.end_ms and other.start_ms <= cut.end_ms
    return not overlap and abs(cut.time_ms - other.time_ms) >= gap_ms


def _bridge_blanks(
    cuts: list[Cut], blanks: list[BlankRun], duration_ms: int, config: CutConfig
) -> list[Cut]:
    """Each short black or white stretch, and the cuts into and out of it, made one cut.

    At the very start or end of the video there is only one scene beside it, so
    no cut is left there.
    """
    slack_ms = config.min_scene_ms // 4
    rest, bridges = list(cuts), []
    for run in sorted(blanks, key=lambda run: (run.blank is Blank.WHITE, run.start_ms)):
        if run.end_ms - run.start_ms > config.max_blank_ms:
            continue
        into, out = _into(rest, run, slack_ms), _out_of(rest, run, slack_ms)
        at_edge = run.start_ms <= config.min_edge_scene_ms or run.end_ms >= duration_ms
        if at_edge:
            rest = [cut for cut in rest if cut not in (into, out)]
        elif into is not None and out is not None:
            rest = [cut for cut in rest if cut not in (into, out)]
            bridges.append(_merged(into, out, _FADES[run.blank]))
    return sorted(rest + bridges, key=lambda cut: cut.time_ms)


def _into(cuts: list[Cut], run: BlankRun, slack_ms: int) -> Cut | None:
    """The cut that leads into a blank stretch."""
    middle_ms = (run.start_ms + run.end_ms) // 2
    near = [
        cut for cut in cuts if cut.time_ms < middle_ms and cut.end_ms >= run.start_ms - slack_ms
    ]
    return near[0] if near else None


def _out_of(cuts: list[Cut], run: BlankRun, slack_ms: int) -> Cut | None:
    """The cut that leads out of a blank stretch."""
    middle_ms = (run.start_ms + run.end_ms) // 2
    near = [
        cut for cut in cuts if cut.time_ms >= middle_ms and cut.start_ms <= run.end_ms + slack_ms
    ]
    return near[-1] if near else None


def _merged(into: Cut, out: Cut, kind: CutKind) -> Cut:
    """One cut for a dip to black or white: where a hard cut bounds it, there, else its middle."""
    confidence = max(into.confidence, out.confidence)
    start_ms, end_ms = into.start_ms, out.end_ms
    if out.kind is CutKind.HARD:
        if into.kind is CutKind.HARD:
            return replace(out, confidence=confidence)
        return Cut(out.time_ms, kind, confidence, start_ms, end_ms)
    middle_ms = into.time_ms if into.kind is CutKind.HARD else (start_ms + end_ms) // 2
    return Cut(middle_ms, kind, confidence, start_ms, end_ms)


def nearest_frame(times_ms: Times, time_ms: int) -> int:
    """Index of the frame nearest to ``time_ms``, the earlier one of two; needs one at least."""
    after = int(np.searchsorted(times_ms, time_ms))
    if after == 0:
        return 0
    if after == len(times_ms):
        return after - 1
    return after - 1 if time_ms - times_ms[after - 1] <= times_ms[after] - time_ms else after
