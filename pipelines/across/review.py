"""What of a result is most worth a person's time: intervals by expected errors a second. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from pipelines.types import PipelineWarning, Scene, TranscriptSegment, WarningCode

MISSED_A_WRONG_WORD = 0.2
"""Words that are spoken and not written, for each that is written and wrong: 20 to 91 on the tuning
half of ``benchmarks/calibration.py``."""
AROUND_SEGMENT_MS, AROUND_CUT_MS = 500, 1_000
"""Listened to on both sides of what is doubted."""
LONGEST_MS = 30_000
"""Of neighbours that are offered as one interval."""
MOST_INTERVALS = 1_000
_CLOSE_MS = 300
"""Between two speakers: no pause shows where one ends."""
_ROUNDS = 8
"""Neighbours that are merged leave time for others, each time less."""


class ReviewReason(StrEnum):
    """Why an interval is doubted."""

    WORDS = "words"
    CUT = "cut"
    SPEAKER = "speaker"
    LANGUAGE = "language"


@dataclass(frozen=True, slots=True)
class Expected:
    """Errors that the confidences lead to expect."""

    wrong_words: float = 0.0
    """Written and not spoken."""
    wrong_cuts: float = 0.0

    @property
    def word_errors(self) -> float:
        """Wrong words, and those that are missing."""
        return self.wrong_words * (1 + MISSED_A_WRONG_WORD)

    @property
    def errors(self) -> float:
        """Of all kinds."""
        return self.word_errors + self.wrong_cuts

    def plus(self, other: Expected) -> Expected:
        return Expected(self.wrong_words + other.wrong_words, self.wrong_cuts + other.wrong_cuts)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What to listen to, or to look at, in one go."""

    start_ms: int
    end_ms: int
    reasons: frozenset[ReviewReason]
    expected: Expected
    segments: tuple[int, ...] = ()
    """Indices of those that are doubted."""

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def worth(self) -> float:
        """Errors found a millisecond."""
        return self.expected.errors / max(1, self.length_ms)


@dataclass(frozen=True, slots=True)
class Review:
    """Intervals, the most worth a second first, and what is expected before and after."""

    intervals: tuple[Doubt, ...]
    words: int
    before: Expected
    after: Expected


def review_of(
    segments: Sequence[TranscriptSegment],
    scenes: Sequence[Scene],
    warnings: Iterable[PipelineWarning],
    *,
    language: str | None,
    checked: AbstractSet[int],
    budget_ms: int,
    media_ms: int,
) -> Review:
    """Return what to check in ``budget_ms`` of listening; segments ``checked`` by a person are
    right."""
    spoken = _of_segments(segments, [*warnings], language, checked, media_ms)
    of_cuts = (
        Doubt(
            max(0, scene.start_ms - AROUND_CUT_MS),
            min(media_ms, scene.start_ms + AROUND_CUT_MS),
            frozenset({ReviewReason.CUT}),
            Expected(wrong_cuts=1 - scene.confidence),
        )
        for scene in scenes[1:]
    )
    doubted = [*spoken, *of_cuts]
    chosen = _chosen([each for each in doubted if each.expected.errors > 0], budget_ms)
    found = sorted(chosen, key=lambda each: (-each.worth, each.start_ms))[:MOST_INTERVALS]
    before, corrected = (
        functools.reduce(Expected.plus, (each.expected for each in some), Expected())
        for some in (doubted, found)
    )
    after = Expected(
        max(0.0, before.wrong_words - corrected.wrong_words),
        max(0.0, before.wrong_cuts - corrected.wrong_cuts),
    )
    return Review(tuple(found), sum(len(each.words) for each in segments), before, after)


def _of_segments(
    segments: Sequence[TranscriptSegment],
    warnings: Sequence[PipelineWarning],
    language: str | None,
    checked: AbstractSet[int],
    media_ms: int,
) -> Iterator[Doubt]:
    doubtful = (it for it in warnings if it.code is WarningCode.LANGUAGE_UNCERTAIN)
    uncertain = [(it.start_ms, it.end_ms) for it in doubtful]
    for at, segment in enumerate(segments):
        if segment.index in checked:
            continue
        reasons = {ReviewReason.WORDS}
        for one, other in itertools.pairwise(segments[max(0, at - 1) : at + 2]):
            if one.speaker != other.speaker and other.start_ms - one.end_ms < _CLOSE_MS:
                reasons.add(ReviewReason.SPEAKER)
        if segment.language not in {None, language} or any(
            start is None or (start < segment.end_ms and segment.start_ms < (end or media_ms))
            for start, end in uncertain
        ):
            reasons.add(ReviewReason.LANGUAGE)
        yield Doubt(
            max(0, segment.start_ms - AROUND_SEGMENT_MS),
            min(media_ms, segment.end_ms + AROUND_SEGMENT_MS),
            frozenset(reasons),
            Expected(wrong_words=sum(1 - word.confidence for word in segment.words)),
            (segment.index,),
        )


def _chosen(doubted: Sequence[Doubt], budget_ms: int) -> list[Doubt]:
    """Greedily by what they are worth, neighbours merged, no longer together than the budget."""
    rest = sorted(doubted, key=lambda each: (-each.worth, each.start_ms))
    taken: list[Doubt] = []
    for _ in range(_ROUNDS):
        left_ms = budget_ms - sum(each.length_ms for each in _merged(taken))
        fitting, others = list[Doubt](), list[Doubt]()
        for each in rest:
            if each.length_ms <= left_ms:
                fitting.append(each)
                left_ms -= each.length_ms
            else:
                others.append(each)
        taken, rest = taken + fitting, others
        if not fitting or not rest:
            break
    return _merged(taken)


def _merged(intervals: Iterable[Doubt]) -> list[Doubt]:
    """Return those that overlap as one, up to LONGEST_MS."""
    merged: list[Doubt] = []
    for each in sorted(intervals, key=lambda each: (each.start_ms, each.end_ms)):
        last = merged[-1] if merged else None
        end_ms = max(last.end_ms, each.end_ms) if last else 0
        if last and each.start_ms <= last.end_ms and end_ms - last.start_ms <= LONGEST_MS:
            reasons, expected = last.reasons | each.reasons, last.expected.plus(each.expected)
            segments = last.segments + each.segments
            merged[-1] = Doubt(last.start_ms, end_ms, reasons, expected, segments)
        else:
            merged.append(each)
    return merged
