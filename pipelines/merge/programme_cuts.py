"""The cuts of a programme: those inside each of its parts, and one wherever two parts meet.

Each part goes through a cut detector of its own, as if it were alone: frame rate
and picture shape may change where parts meet, and a cut there is known, not found.
So a programme's scenes are those of its parts, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from pipelines.merge.cuts import Cut, CutConfig, CutDetector, CutKind
from pipelines.merge.frame_features import FrameFeatures


class Detector(Protocol):
    """What finds the cuts of one part (``CutDetector``, ``LearnedCutDetector``)."""

    def feed(self, features: FrameFeatures) -> None: ...
    def finish(self, duration_ms: int) -> tuple[Cut, ...]: ...


class ProgrammeCuts:
    """Feed it the features of all parts in order of time, then ask for the cuts.

    ``spans_ms`` holds each part's start and end on the programme's timeline; a
    video that was never cut up is a single part.
    """

    def __init__(
        self,
        spans_ms: Sequence[tuple[int, int]],
        config: CutConfig | None = None,
        new_detector: Callable[[CutConfig | None], Detector] = CutDetector,
    ):
        self._spans_ms = tuple(spans_ms)
        self._config = config
        self._new_detector = new_detector
        self._part = 0
        self._detector = new_detector(config)
        self._cuts: list[Cut] = []

    def feed(self, part: int, features: FrameFeatures) -> None:
        """Take the next frames of ``part``, with their times on the programme's timeline."""
        while self._part < part:
            self._close_part()
        start_ms, _ = self._spans_ms[part]
        self._detector.feed(replace(features, times_ms=features.times_ms - start_ms))

    def finish(self) -> tuple[Cut, ...]:
        """All cuts, in order."""
        while self._part < len(self._spans_ms):
            self._close_part()
        return tuple(self._cuts)

    def _close_part(self) -> None:
        """Take the part's own cuts, and the one at the start of the part that follows."""
        start_ms, end_ms = self._spans_ms[self._part]
        self._cuts += [_moved(cut, start_ms) for cut in self._detector.finish(end_ms - start_ms)]
        self._part += 1
        self._detector = self._new_detector(self._config)
        if self._part < len(self._spans_ms):
            join_ms, _ = self._spans_ms[self._part]
            self._cuts.append(Cut(join_ms, CutKind.HARD, 1.0, join_ms, join_ms))


def _moved(cut: Cut, by_ms: int) -> Cut:
    return replace(
        cut,
        time_ms=cut.time_ms + by_ms,
        start_ms=cut.start_ms + by_ms,
        end_ms=cut.end_ms + by_ms,
    )
