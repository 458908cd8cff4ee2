"""Chapters: where the subject shifts, covering the media, the same each time."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chapters import programme_of
from benchmarks.speech.subjects import TUNED
from pipelines.across.chapters import SHORTEST_MS, find_chapters
from pipelines.types import TranscriptSegment
from tests.examples import examples

BREAD = "Knead the dough and let the dough rise in the warm oven until the bread is brown"
STARS = "The telescope shows Saturn with its rings and a moon beside the planet tonight"
JAPANESE = (
    "パンの生地をこねて生地を温かい場所で発酵させます",
    "望遠鏡で土星の輪を見ると衛星が土星の横に見えます",
)


def segment(index: int, start_ms: int, text: str, speaker: str | None = None) -> TranscriptSegment:
    return TranscriptSegment(index, start_ms, start_ms + 4_500, text, speaker, 0.9, ())


def talk(*texts: str, each: int = 8, speaker: str | None = None) -> list[TranscriptSegment]:
    said = [text for text in texts for _ in range(each)]
    return [segment(n, n * 5_000, text, speaker) for n, text in enumerate(said)]


@pytest.mark.parametrize("texts", [(BREAD, STARS), JAPANESE], ids=["English", "Japanese"])
def test_a_shift_of_subject_begins_a_chapter(texts: tuple[str, str]) -> None:
    chapters = find_chapters(talk(*texts), duration_ms=80_000)
    assert [(each.start_ms, each.end_ms) for each in chapters] == [
        (0, 39_750), (39_750, 80_000)
    ]  # fmt: skip


def test_titles_are_phrases_that_were_said_and_tell_the_chapters_apart() -> None:
    first, second = find_chapters(talk(BREAD, STARS), duration_ms=80_000)
    assert first.title.lower() in BREAD.lower()
    assert second.title.lower() in STARS.lower()


def test_one_subject_is_one_chapter() -> None:
    [only] = find_chapters(talk(BREAD, each=20), duration_ms=100_000)
    assert (only.index, only.start_ms, only.end_ms) == (0, 0, 100_000)


@pytest.mark.parametrize("segments", [[], [segment(0, 0, "  ")]], ids=["none", "white space"])
def test_nothing_said_has_no_chapters(segments: list[TranscriptSegment]) -> None:
    assert find_chapters(segments, duration_ms=5_000) == []


@pytest.mark.parametrize(
    ("cut_ms", "expected"), [(41_200, 41_200), (38_000, 38_000), (45_000, 39_750)]
)
def test_a_chapter_begins_at_the_cut_beside_it(cut_ms: int, expected: int) -> None:
    chapters = find_chapters(talk(BREAD, STARS), duration_ms=80_000, cuts_ms=[0, cut_ms])
    assert chapters[1].start_ms == expected


def test_two_who_take_turns_are_no_shift_of_subject() -> None:
    said = [segment(n, n * 5_000, BREAD, f"speaker_{n // 4 % 2}") for n in range(40)]
    assert len(find_chapters(said, duration_ms=200_000)) == 1


def test_chapters_of_joined_talks_are_found() -> None:
    """The figures are those of the benchmark; here only that most boundaries are right."""
    right = total = 0
    for seed in range(6):
        segments, truth, duration_ms = programme_of(TUNED, random.Random(seed), "joined")
        starts = [each.start_ms for each in find_chapters(segments, duration_ms=duration_ms)]
        right += sum(any(abs(at - start) <= 5_000 for start in starts) for at in truth)
        total += len(truth)
    assert right >= 0.8 * total


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 9_000), st.sampled_from("abc")),
             max_size=40),
    st.lists(st.integers(0, 400_000), max_size=10),
)  # fmt: skip
def test_chapters_cover_the_media_in_order_and_are_not_too_short(
    said: list[tuple[str, int, str]], cuts: list[int]
) -> None:
    segments, time_ms = [], 0
    for number, (text, pause_ms, speaker) in enumerate(said):
        segments.append(segment(number, time_ms, text, speaker))
        time_ms += 4_500 + pause_ms
    chapters = find_chapters(segments, duration_ms=time_ms + 10, cuts_ms=sorted(cuts))
    assert bool(chapters) == any(text.strip() for text, *_ in said)
    assert [each.index for each in chapters] == list(range(len(chapters)))
    for before, after in pairwise(chapters):
        assert before.end_ms == after.start_ms > before.start_ms
        assert before.end_ms - before.start_ms >= SHORTEST_MS - 10_000
    if chapters:
        assert (chapters[0].start_ms, chapters[-1].end_ms) == (0, time_ms + 10)
        assert all(each.title for each in chapters)


def test_vectors_tell_subjects_apart_where_words_do_not() -> None:
    """And are used only where every segment has one."""
    said = [segment(n, n * 5_000, f"unique{n} sentence{n} number{n}") for n in range(16)]
    axes = np.eye(2, dtype=np.float32)
    vectors = {each.text: axes[number // 8] for number, each in enumerate(said)}
    assert len(find_chapters(said, duration_ms=80_000)) == 1
    found = find_chapters(said, duration_ms=80_000, vectors=vectors)
    assert [each.start_ms for each in found] == [0, 39_750]
    del vectors[said[3].text]
    assert len(find_chapters(said, duration_ms=80_000, vectors=vectors)) == 1
