"""Where a video's scenes begin: chosen among the candidates that ``search`` finds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pipelines.vision.cuts.gradual import Gradual, IntervalIndex, best_graduals
from pipelines.vision.cuts.measures import Blank
from pipelines.vision.cuts.search import (
    BlankRun,
    Found,
    SearchConfig,
    search,
)
from pipelines.vision.features import FrameFeatures, joined

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
    """A black or white stretch no longer than this is part of a transition, not a scene."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be cuts in a video. Limits of confidence are tried on it without looking again."""

    cuts: tuple[Cut, ...]
    wipes: tuple[Gradual, ...]
    blanks: tuple[BlankRun, ...]
    duration_ms: int

    @classmethod
    def among(cls, found: Found, duration_ms: int) -> Candidates:
        """Each of what was found in all blocks of a video."""
        hard = (Cut(at, CutKind.HARD, confidence, at, at) for at, confidence in found.hard)
        graduals = (_gradual_cut(gradual) for gradual in best_graduals([*found.graduals]))
        return cls((*hard, *graduals), found.wipes, found.blanks, duration_ms)

    @classmethod
    def in_features(
        cls, features: FrameFeatures, duration_ms: int, config: SearchConfig
    ) -> Candidates:
        """Those of a whole video, searched in one go."""
        found = search(features, 0, len(features), config, duration_ms)
        return cls.among(found, duration_ms)

    def select(self, config: CutConfig) -> tuple[Cut, ...]:
        """The cuts, in order."""
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
    """``cuts`` and the wipes without those caused by things that enter and leave the picture.

    Something that moves in front of the camera and leaves again looks like two
    wipes, and what it does in between may look like cuts. Unlike after an
    edit, the old picture returns without a sure cut.
    """
    sure = [
        cut
        for cut in cuts
        if cut.confidence >= (_SURE if cut.kind is CutKind.HARD else _SURE_GRADUAL)
    ]
    sure_times = IntervalIndex(sure, lambda cut: (cut.time_ms, cut.time_ms))
    visits = IntervalIndex(
        [
            (start_ms, end_ms)
            for wipe in wipes
            for start_ms, end_ms in wipe.visits_ms
            if not _some(sure_times.touching(start_ms + 1, end_ms))
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
        if not _some(sure_times.touching(wipe.start_ms + 1, wipe.end_ms - 1))
        and not any(
            start <= wipe.start_ms and wipe.end_ms <= end
            for start, end in visits.touching(wipe.start_ms, wipe.end_ms)
        )
    ]
    return kept + [replace(_gradual_cut(wipe), kind=CutKind.WIPE) for wipe in edits]


def detect_cuts(
    features: Iterable[FrameFeatures], duration_ms: int, config: CutConfig | None = None
) -> tuple[Cut, ...]:
    """The cuts of a video whose features come in parts, in order; all are held in memory."""
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
    return [
        cut
        for cut in cuts
        if cut.kind is not CutKind.HARD
        or not any(
            gradual.start_ms < cut.time_ms < gradual.end_ms
            for gradual in graduals.touching(cut.time_ms, cut.time_ms)
        )
    ]


def _strongest_apart(cuts: list[Cut], gap_ms: int, sure_gap_ms: int) -> list[Cut]:
    """The most confident cuts that neither overlap nor come within ``gap_ms``, or, where both
    are sure, within ``sure_gap_ms`` of each other; in order."""
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


def _some(items: Iterable[object]) -> bool:
    return any(True for _ in items)


def _clear(cut: Cut, other: Cut, gap_ms: int, sure_gap_ms: int) -> bool:
    between_ms = max(cut.start_ms, other.start_ms) - min(cut.end_ms, other.end_ms)
    if between_ms >= sure_gap_ms and min(cut.confidence, other.confidence) >= _STANDS:
        return True
    return between_ms > 0 and abs(cut.time_ms - other.time_ms) >= gap_ms


def _bridge_blanks(
    cuts: list[Cut], blanks: list[BlankRun], duration_ms: int, config: CutConfig
) -> list[Cut]:
    """Each short black or white stretch, and the cuts into and out of it, made one cut.

    At the very start or end of the video there is only one scene beside it, so
    no cut is left there. ``cuts`` are in order and do not overlap.
    """
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
    """The cut that leads into a blank stretch."""
    first = bisect_left(cuts, run.start_ms - slack_ms, key=lambda cut: cut.end_ms)
    near = cuts[first : first + 1]
    return near[0] if near and near[0].time_ms < _middle_ms(run) else None


def _out_of(cuts: list[Cut], run: BlankRun, slack_ms: int) -> Cut | None:
    """The cut that leads out of a blank stretch."""
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
    """One cut for a dip to black or white: where a hard cut bounds it, there, else its middle."""
    confidence = max(into.confidence, out.confidence)
    start_ms, end_ms = into.start_ms, out.end_ms
    if out.kind is CutKind.HARD:
        if into.kind is CutKind.HARD:
            return replace(out, confidence=confidence)
        return Cut(out.time_ms, kind, confidence, start_ms, end_ms)
    middle_ms = into.time_ms if into.kind is CutKind.HARD else (start_ms + end_ms) // 2
    return Cut(middle_ms, kind, confidence, start_ms, end_ms)
