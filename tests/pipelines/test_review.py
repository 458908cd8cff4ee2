"""What is worth a person's time: the most expected errors a second, within what they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contracts import CameraMotion, ShotAngle, ShotType
from pipelines.across.review import LONGEST_MS, ReviewReason, review_of
from pipelines.types import PipelineWarning, Scene, TranscriptSegment, WarningCode
from tests.pipelines.speech.test_edits import segment


def said(confidences: list[float], apart_ms: int = 10_000) -> list[TranscriptSegment]:
    """Segments of four words each, a confidence a segment."""
    lines = [segment(at, "one two three four", apart_ms * at) for at in range(len(confidences))]
    return [
        replace(
            line,
            language=None,
            words=tuple(replace(word, confidence=sure) for word in line.words),
        )
        for line, sure in zip(lines, confidences, strict=True)
    ]


def scenes(*cuts: tuple[int, float]) -> list[Scene]:
    kinds = ShotType.UNKNOWN, ShotAngle.UNKNOWN, CameraMotion.STATIC
    return [
        Scene(at, start, start + 1, "", (), (), *kinds, confidence, "")
        for at, (start, confidence) in enumerate([(0, 1.0), *cuts])
    ]


def test_the_most_errors_a_second_come_first_and_the_rest_is_what_remains() -> None:
    made = review_of(
        said([0.9, 0.2, 0.6]),
        [],
        [],
        language="en",
        checked=frozenset(),
        budget_ms=6_000,
        media_ms=60_000,
    )
    assert [each.segments for each in made.intervals] == [(1,), (2,)]
    assert made.before.wrong_words == pytest.approx(0.4 + 3.2 + 1.6)
    assert made.after.wrong_words == pytest.approx(0.4)
    assert (made.intervals[0].start_ms, made.intervals[0].end_ms) == (9_500, 12_400)


def test_what_a_person_corrected_is_right() -> None:
    made = review_of(
        said([0.9, 0.2]),
        [],
        [],
        language="en",
        checked=frozenset({1}),
        budget_ms=60_000,
        media_ms=60_000,
    )
    assert [each.segments for each in made.intervals] == [(0,)]
    assert made.before.wrong_words == pytest.approx(0.4)


def test_neighbours_are_one_stretch_with_all_their_reasons() -> None:
    one, other = said([0.5, 0.5], apart_ms=2_000)
    other = replace(other, speaker="b", language="fr")
    made = review_of(
        [one, other],
        scenes((2_000, 0.6), (50_000, 1.0)),
        [PipelineWarning(WarningCode.LANGUAGE_UNCERTAIN, "", start_ms=0, end_ms=100)],
        language="en",
        checked=frozenset(),
        budget_ms=60_000,
        media_ms=60_000,
    )
    [found] = made.intervals
    assert found.segments == (0, 1)
    assert found.reasons == frozenset(ReviewReason)
    assert (found.start_ms, found.end_ms) == (0, 4_400)
    assert made.before.wrong_cuts == pytest.approx(0.4)
    assert made.after.errors == pytest.approx(0)


@given(
    st.lists(st.floats(0, 1), max_size=40),
    st.integers(1, 400_000),
    st.integers(1_900, 20_000),
)
def test_no_review_is_longer_than_its_budget(
    confidences: list[float], budget_ms: int, apart_ms: int
) -> None:
    made = review_of(
        said(confidences, apart_ms),
        scenes(*((at * 3_000, sure) for at, sure in enumerate(confidences, 1))),
        [],
        language="en",
        checked=frozenset(),
        budget_ms=budget_ms,
        media_ms=900_000,
    )
    assert sum(each.length_ms for each in made.intervals) <= budget_ms
    assert all(0 < each.length_ms <= LONGEST_MS for each in made.intervals)
    worths = [each.worth for each in made.intervals]
    assert worths == sorted(worths, reverse=True)
    corrected = sum(each.expected.errors for each in made.intervals)
    assert made.after.errors == pytest.approx(made.before.errors - corrected, abs=1e-6)
