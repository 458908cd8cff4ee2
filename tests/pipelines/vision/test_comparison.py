"""Two cuts compared: every shot is found again, wherever it went and however it looks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contracts import Box
from pipelines.across.comparison import ShotChange, ShotPair, changed_titles, compare_shots
from pipelines.speech import edits
from pipelines.speech.edits import changed_words, common_places
from pipelines.types import ScreenText, TranscriptWord
from pipelines.vision.fingerprints import (
    EVERY_MS,
    MOST_SAMPLES,
    Fingerprints,
    descriptors,
    joined_shots,
    picture_of,
    sample_times,
)
from tests.pipelines.media_builders import texture
from tests.stopwatch import Stopwatch
from tests.tables import every

Shots = Sequence[tuple[int, int, int]]
"""Seed of what is shown, first frame of it and how many, at 25 a second."""
A = [(1, 0, 50), (2, 0, 75), (3, 0, 40), (4, 0, 60), (5, 0, 100), (6, 0, 50), (7, 0, 80)]


@functools.cache
def ground(seed: int) -> np.typing.NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(texture(seed, 520, 180), cv2.COLOR_RGB2GRAY), np.uint8)


def luma(seed: int, frame: int) -> np.typing.NDArray[np.uint8]:
    """A camera that goes over a picture of its own."""
    return ground(seed)[:, 2 * frame : 2 * frame + 320]


def prints(shots: Shots, look: str = "", *, unseen: int | None = None) -> Fingerprints:
    """Of a cut, as its pictures look; the cut before the shot ``unseen`` was not found."""
    frames = [(seed, first + frame) for seed, first, count in shots for frame in range(count)]
    edges = np.cumsum([0, *(40 * count for _, _, count in shots)]).tolist()
    edges = [edge for number, edge in enumerate(edges) if number != unseen]
    spans, samples = [*itertools.pairwise(edges)], {}
    for span in spans:
        for time_ms in sample_times(*span).tolist():
            shown = luma(*frames[time_ms // 40])
            if "graded" in look:
                shown = np.clip(255 * (shown / 255) ** 1.6 * 1.1 + 12, 0, 255).astype(np.uint8)
            if "zoomed" in look:
                shown = np.ascontiguousarray(shown[20:-16, 40:-24])
            if "narrow" in look:
                shown = np.ascontiguousarray(shown[:, 60:-20])
            samples[time_ms] = picture_of(cv2.resize(shown, (64, 36), interpolation=cv2.INTER_AREA))
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


def test_long_cuts_are_compared_in_blocks_and_windows_by_a_sample_of_each_shot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = [A[0], A[3], (9, 0, 50), A[5], A[6], A[1]]
    whole = changes(A, after), changes(A, after, "zoomed")
    monkeypatch.setattr("pipelines.across.comparison._BLOCK_SAMPLES", 20)
    assert changes(A, after) == whole[0]
    monkeypatch.setattr("pipelines.across.comparison._WINDOW_SAMPLES", 1)
    found = changes(A, after, "zoomed")
    assert [(it.change, it.before, it.after) for it in found] == [
        (it.change, it.before, it.after) for it in whole[1]
    ]


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


def test_a_shot_that_was_cut_into_is_there_in_two_parts() -> None:
    """Whichever of the cuts it is whole in."""
    after = [*A[:4], (5, 0, 40), (9, 0, 50), (5, 40, 60), *A[5:]]
    start = sum(40 * count for _, _, count in A[:4])
    whole, parts = (start, start + 4000), [(start, start + 1600), (start + 3600, start + 6000)]
    [added] = changes(A, after)
    assert (added.change, added.after) == (ShotChange.ADDED, (5,))
    found = [it for it in compare_shots(prints(A), prints(after)) if it.before == (4,)]
    assert [it.before_ms for it in found] == [(start, start + 1600), (start + 1600, whole[1])]
    assert [(it.after, it.after_ms) for it in found] == [((4,), parts[0]), ((6,), parts[1])]
    [removed] = changes(after, A)
    assert (removed.change, removed.before) == (ShotChange.REMOVED, (5,))


def test_a_part_of_a_shot_that_went_elsewhere_moved() -> None:
    [moved] = changes(A, [*A[:4], (5, 0, 40), *A[5:], (5, 40, 60)])
    start = sum(40 * count for _, _, count in A[:4]) + 1600
    assert (moved.change, moved.before, moved.after) == (ShotChange.MOVED, (4,), (7,))
    assert moved.before_ms == (start, start + 2400)


@pytest.mark.parametrize("look", ["", "graded zoomed"])
def test_a_cut_that_was_found_in_one_file_only_changes_nothing(look: str) -> None:
    after = [*A[:2], A[3], A[2], *A[4:]]
    for first, second in ((2, None), (None, 2)):
        same = compare_shots(prints(A, unseen=first), prints(A, look, unseen=second))
        assert {it.change for it in same} == {ShotChange.KEPT}
        together = same[1]
        assert {len(together.before), len(together.after)} == {1, 2}
    found = compare_shots(prints(A, unseen=2), prints(after, look))
    assert [it.change for it in found].count(ShotChange.MOVED) == 1
    assert {it.change for it in found} == {ShotChange.KEPT, ShotChange.MOVED}


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


@every(
    ("length_ms", "count"),
    [(1, 1), (749, 1), (750, 2), (4000, 15), (4001, 8), (EVERY_MS * MOST_SAMPLES, MOST_SAMPLES)],
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


def test_a_change_among_thousands_of_words_is_found() -> None:
    said = [f"the {number % 4000}" for number in range(6000)]
    [changed] = changed_words(words(" ".join(said)), words(" ".join([*said[:5000], *said[5003:]])))
    assert sorted(word.text for word in changed.before) == ["1000", "1001", "1002", *["the"] * 3]
    assert not changed.after


@given(st.text("abcd", max_size=12), st.text("abcd", max_size=12), st.sampled_from([0, 8, 10**8]))
def test_as_many_words_as_possible_are_common_and_always_in_order(
    one: str, other: str, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edits, "MOST_PAIRS", most)
        found = [*common_places(one, other)]
    assert all(one[at] == other[place] for at, place in found)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(found))
    if most > len(one) * len(other):
        subsequences = (
            set(itertools.combinations(one, len(found) + 1)),
            itertools.combinations(other, len(found) + 1),
        )
        assert subsequences[0].isdisjoint(subsequences[1])


@pytest.mark.parametrize("words_of_one", ["a b", "a b c d e f g h i j", ""])
def test_long_texts_are_compared_in_bounded_time(words_of_one: str) -> None:
    before, after = (
        words(" ".join(f"{words_of_one} {each}{at}" for at in range(20_000))) for each in "xy"
    )
    with Stopwatch() as watch:
        changed = [*changed_words(before, after)]
    assert watch.seconds < 10
    assert sum(len(each.before) for each in changed) >= 20_000
    same = [*changed_words(before, [*before[:700], *before[703:]])]
    assert [(len(each.before), len(each.after)) for each in same] == [(3, 0)]


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


def test_titles_are_compared_in_bounded_time_whatever_is_written() -> None:
    before, after = ([line(f"{at} " + each * 60) for at in range(60)] for each in ("ab", "ac"))
    with Stopwatch() as watch:
        assert len([*changed_titles(before, after)]) == 60
    assert watch.seconds < 10
