"""Two cuts compared: every shot is found again, wherever it went and however it looks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from models.contracts import Box
from pipelines.speech.word_changes import changed_words
from pipelines.types import ScreenText, TranscriptWord
from pipelines.vision.comparison import ShotChange, ShotPair, compare_shots
from pipelines.vision.fingerprints import (
    EVERY_MS,
    MOST_SAMPLES,
    Fingerprints,
    descriptors,
    joined_shots,
    picture_of,
    sample_times,
)
from pipelines.vision.titles import changed_titles
from tests.pipelines.media_builders import texture

Shots = Sequence[tuple[int, int, int]]
"""Seed of what is shown, first frame of it and how many, at 25 a second."""
A = [(1, 0, 50), (2, 0, 75), (3, 0, 40), (4, 0, 60), (5, 0, 100), (6, 0, 50), (7, 0, 80)]


@functools.cache
def ground(seed: int) -> np.typing.NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(texture(seed, 520, 180), cv2.COLOR_RGB2GRAY), np.uint8)


def luma(seed: int, frame: int) -> np.typing.NDArray[np.uint8]:
    """A camera that goes over a picture of its own."""
    return ground(seed)[:, 2 * frame : 2 * frame + 320]


def prints(shots: Shots, look: str = "") -> Fingerprints:
    """Of a cut, as its pictures look."""
    spans, samples, at = [], {}, 0
    for seed, first, frames in shots:
        spans.append((at, at + frames * 40))
        for time_ms in sample_times(*spans[-1]).tolist():
            shown = luma(seed, first + (time_ms - at) // 40)
            if "graded" in look:
                shown = np.clip(255 * (shown / 255) ** 1.6 * 1.1 + 12, 0, 255).astype(np.uint8)
            if "zoomed" in look:
                shown = np.ascontiguousarray(shown[20:-16, 40:-24])
            if "narrow" in look:
                shown = np.ascontiguousarray(shown[:, 60:-20])
            samples[time_ms] = picture_of(cv2.resize(shown, (64, 36), interpolation=cv2.INTER_AREA))
        at = spans[-1][1]
    return joined_shots(spans, samples)


def changes(before: Shots, after: Shots, look: str = "") -> list[ShotPair]:
    return [
        pair
        for pair in compare_shots(prints(before), prints(after, look))
        if pair.change is not ShotChange.KEPT
    ]


def test_a_cut_compared_with_itself_is_kept_as_it_is() -> None:
    found = compare_shots(prints(A), prints(A))
    assert [(pair.before, pair.after) for pair in found] == [((n,), (n,)) for n in range(len(A))]
    assert {pair.change for pair in found} == {ShotChange.KEPT}
    assert not any(pair.reframed for pair in found)


@pytest.mark.parametrize("look", ["", "graded", "zoomed", "narrow", "graded zoomed"])
def test_what_was_done_to_a_cut_is_found_however_it_looks(look: str) -> None:
    after = [A[0], A[3], (9, 0, 50), (5, 25, 75), A[5], A[6], A[1]]
    found = {(it.change, it.before, it.after) for it in changes(A, after, look)}
    assert found == {
        (ShotChange.REMOVED, (2,), ()),
        (ShotChange.ADDED, (), (2,)),
        (ShotChange.RETIMED, (4,), (3,)),
        (ShotChange.MOVED, (1,), (6,)),
    }


def test_a_trimmed_shot_says_at_which_end() -> None:
    [head] = changes(A, [*A[:4], (5, 25, 75), *A[5:]])
    assert (head.head_ms, head.tail_ms, head.speed) == (1000, 0, 1.0)
    [tail] = changes(A, [*A[:4], (5, 0, 75), *A[5:]])
    assert (tail.head_ms, tail.tail_ms, tail.speed) == (0, 1000, 1.0)


def test_a_block_that_moved_is_moved_and_what_it_passed_is_not() -> None:
    found = changes(A, [A[0], A[3], A[4], A[5], A[1], A[2], A[6]])
    assert {(it.change, it.before) for it in found} == {
        (ShotChange.MOVED, (1,)),
        (ShotChange.MOVED, (2,)),
    }


def test_two_cuts_with_nothing_in_common_have_nothing_in_common() -> None:
    other = [(seed + 50, first, frames) for seed, first, frames in A]
    found = compare_shots(prints(A), prints(other))
    assert [pair.change for pair in found].count(ShotChange.REMOVED) == len(A)
    assert [pair.change for pair in found].count(ShotChange.ADDED) == len(A)


def test_plain_pictures_are_found_in_no_other_cut_by_what_they_show() -> None:
    black = picture_of(np.zeros((36, 64), np.uint8))
    spans = [(0, 1000), (1000, 2000)]
    samples = {int(time): black for span in spans for time in sample_times(*span)}
    found = compare_shots(joined_shots(spans, samples), prints(A))
    assert {pair.change for pair in found} == {ShotChange.REMOVED, ShotChange.ADDED}


@pytest.mark.parametrize(
    ("length_ms", "count"), [(1, 1), (999, 1), (1000, 2), (EVERY_MS * MOST_SAMPLES, MOST_SAMPLES)]
)
def test_a_shot_is_sampled_from_its_own_start(length_ms: int, count: int) -> None:
    times = sample_times(7_000, 7_000 + length_ms)
    assert len(times) == count
    assert 7_000 <= times[0] <= times[-1] < 7_000 + length_ms
    assert (times - 7_000 == sample_times(0, length_ms)).all()


def test_a_long_shot_has_no_more_samples_than_the_most() -> None:
    assert MOST_SAMPLES // 2 <= len(sample_times(0, 86_400_000)) <= MOST_SAMPLES


def test_fingerprints_are_read_as_they_were_written() -> None:
    found = prints(A[:2])
    again = Fingerprints.from_bytes(found.to_bytes())
    for name in Fingerprints.__dataclass_fields__:
        assert (getattr(again, name) == getattr(found, name)).all()
    assert again.to_bytes() == found.to_bytes()
    assert descriptors(again.pictures).shape == (len(found.times_ms), 63)
    with pytest.raises(ValueError, match="magic"):
        Fingerprints.from_bytes(b"none")


def words(text: str) -> list[TranscriptWord]:
    return [
        TranscriptWord(word, 100 * at, 100 * at + 90, 1.0, None)
        for at, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("We meet at noon.", "we meet at noon", []),
        ("we meet at noon", "we eat at noon", [("meet", "eat")]),
        ("we meet at noon", "at noon", [("we meet", "")]),
        ("at noon", "at noon today", [("", "today")]),
    ],
)
def test_words_are_compared_without_case_and_points(
    before: str, after: str, expected: list[tuple[str, str]]
) -> None:
    found = changed_words(words(before), words(after))
    texts = [
        [" ".join(word.text for word in side) for side in (it.before, it.after)] for it in found
    ]
    assert [tuple(each) for each in texts] == expected


def line(text: str) -> ScreenText:
    return ScreenText(text, 0.9, Box(0.1, 0.8, 0.3, 0.1), 0, 1000)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["Anna Weber, baker"], ["Anna Weber. baker"], []),
        (
            ["Anna Weber, baker"],
            ["Anna Weber, brewer"],
            [("Anna Weber, baker", "Anna Weber, brewer")],
        ),
        (["Chapter 1"], ["Chapter 2"], [("Chapter 1", "Chapter 2")]),
        (["Anna Weber"], ["The End"], [("Anna Weber", ""), ("", "The End")]),
        (["Yes", "Yes"], ["Yes"], [("Yes", "")]),
    ],
)
def test_titles_are_compared_line_by_line(
    before: list[str], after: list[str], expected: list[tuple[str, str]]
) -> None:
    found = changed_titles([*map(line, before)], [*map(line, after)])
    texts = [
        tuple("" if it is None else it.text for it in (each.before, each.after)) for each in found
    ]
    assert texts == expected
