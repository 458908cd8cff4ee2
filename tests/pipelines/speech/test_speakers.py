"""Voices from vectors: how many there are, who speaks when, and when not to tell."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speech.speakers import (
    SpeakerRules,
    TimeSpan,
    WindowLimits,
    assign_voices,
    name_speakers,
    voice_windows,
)
from pipelines.types import Speaker, TranscriptWord

RULES = SpeakerRules(min_seconds=3.0, min_silhouette=0.3, switch_penalty=0.02)
LIMITS = WindowLimits(pause_seconds=0.35, min_seconds=1.5, max_seconds=3.5)


def vectors_of(
    turns: list[int], *, spread: float = 0.1, seed: int = 7, voices: int = 6
) -> npt.NDArray[np.float32]:
    """A vector a turn: that voice's own direction, and noise."""
    random = np.random.default_rng(seed)
    centres = np.linalg.qr(random.normal(size=(24, voices)))[0].T
    noisy = centres[turns] + spread * random.normal(size=(len(turns), 24))
    unit: npt.NDArray[np.float32] = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return unit.astype(np.float32)


def two_seconds(turns: list[int]) -> npt.NDArray[np.float64]:
    return np.full(len(turns), 2.0)


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param([0] * 10, id="one voice"),
        pytest.param([0, 0, 1, 1, 0, 1, 0, 1], id="two voices in turn"),
        pytest.param([0, 1, 2, 0, 1, 2, 3, 3, 0, 2, 1], id="four voices"),
        pytest.param([0] * 200 + [1] * 3, id="one says little"),
    ],
)
def test_every_voice_is_found_and_keeps_its_windows(turns: list[int]) -> None:
    assert assign_voices(two_seconds(turns), vectors_of(turns), RULES).tolist() == turns


def test_voices_are_numbered_by_first_appearance_whatever_their_share() -> None:
    turns = [3, 3, 1, 1, 1, 1, 1, 0, 0]
    labels = assign_voices(two_seconds(turns), vectors_of(turns), RULES)
    assert labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2]


def test_a_voice_heard_too_briefly_joins_the_nearest() -> None:
    turns = [0, 0, 0, 1, 0, 0]
    assert set(assign_voices(two_seconds(turns), vectors_of(turns), RULES).tolist()) == {0}


@pytest.mark.parametrize(
    ("turns", "vectors"),
    [
        pytest.param([0] * 8, vectors_of([0] * 8, spread=1.0), id="no structure at all"),
        pytest.param([0], vectors_of([0]), id="a single window"),
        pytest.param([], np.empty((0, 1), np.float32), id="nothing said"),
    ],
)
def test_where_the_evidence_is_weak_there_is_one_speaker(
    turns: list[int], vectors: npt.NDArray[np.float32]
) -> None:
    rules = SpeakerRules()
    assert assign_voices(two_seconds(turns), vectors, rules).tolist() == turns


def test_telling_speakers_apart_can_be_switched_off() -> None:
    turns = [0, 0, 1, 1]
    rules = SpeakerRules(enabled=False)
    assert assign_voices(two_seconds(turns), vectors_of(turns), rules).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("turns", "expected", "heard"),
    [
        pytest.param([0, 0, 1, 1, 2, 2, 0, 1], 3, 3, id="as many as there are"),
        pytest.param([0, 0, 1, 1, 2, 2, 0, 1], 2, 2, id="fewer than there seem to be"),
        pytest.param([0, 0, 1, 1, 0, 1], 4, 4, id="more than there seem to be"),
        pytest.param([0, 0, 1, 1], 1, 1, id="one alone"),
        pytest.param([0, 1, 2], 3, 3, id="each says one thing"),
        pytest.param([0, 1, 2], 20, 3, id="more than there are windows"),
        pytest.param([0] * 12, 2, 2, id="two whom nothing but the request tells apart"),
        pytest.param([*range(12)] * 2, 12, 12, id="more than are believed in unasked"),
    ],
)
def test_as_many_voices_as_are_expected(turns: list[int], expected: int, heard: int) -> None:
    vectors = vectors_of(turns, voices=12)
    rules = replace(RULES, expected=expected)
    assert len(set(assign_voices(two_seconds(turns), vectors, rules).tolist())) == heard


def test_windows_that_do_not_differ_are_one_voice_whatever_is_expected() -> None:
    vectors = vectors_of([0, 0, 1, 0, 1], spread=0.0)
    labels = assign_voices(two_seconds([0] * 5), vectors, replace(RULES, expected=4))
    assert labels.tolist() == [0, 0, 1, 0, 1]


def test_an_odd_window_does_not_take_the_place_of_an_expected_voice() -> None:
    """The cough in the middle is farther from both voices than they are from each other."""
    turns = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    near = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0]])
    vectors = near[turns].astype(np.float32)
    vectors[4] = [0.0, 0.0, 1.0]
    random = np.random.default_rng(3)
    vectors += 0.02 * random.normal(size=vectors.shape).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = assign_voices(two_seconds(turns), vectors, replace(RULES, expected=2))
    assert labels.tolist() == turns


def test_expected_voices_are_smoothed_too() -> None:
    turns = [0] * 20 + [1] * 20
    vectors = vectors_of(turns, spread=0.0)
    doubtful = vectors[2] + 1.02 * vectors[38]
    vectors[10] = doubtful / np.linalg.norm(doubtful)
    rules = replace(RULES, expected=2)
    assert assign_voices(two_seconds(turns), vectors, rules).tolist() == turns


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.integers(1, 20))
def test_never_more_voices_than_expected_and_never_fewer_than_differ(
    turns: list[int], expected: int
) -> None:
    labels = assign_voices(
        two_seconds(turns), vectors_of(turns, spread=0.0), replace(RULES, expected=expected)
    )
    assert len(set(labels.tolist())) == min(expected, len(set(turns)))
    assert labels[0] == 0


def test_a_doubtful_window_stays_with_the_voice_around_it() -> None:
    turns = [0] * 20 + [1] * 20
    vectors = vectors_of(turns, spread=0.0)
    doubtful = vectors[2] + 1.02 * vectors[38]
    vectors[10] = doubtful / np.linalg.norm(doubtful)
    assert assign_voices(two_seconds(turns), vectors, RULES).tolist() == turns


def test_a_long_track_is_clustered_on_a_bounded_number_of_windows() -> None:
    turns = ([0] * 20 + [1] * 20) * 200
    rules = SpeakerRules(max_exemplars=300)
    assert assign_voices(two_seconds(turns), vectors_of(turns), rules).tolist() == turns


def _spans(steps: list[tuple[float, float]]) -> list[TimeSpan]:
    spans: list[TimeSpan] = []
    time = 0.0
    for gap, length in steps:
        spans.append((time + gap, time + gap + length))
        time += gap + length
    return spans


word_spans = st.lists(
    st.tuples(st.floats(0, 1.5), st.floats(0.01, 1.2)), min_size=1, max_size=40
).map(_spans)


@given(word_spans)
def test_windows_stand_for_every_word_once_and_lie_inside_the_chunk(words: list[TimeSpan]) -> None:
    span = (0.0, words[-1][1] + 0.2)
    windows = voice_windows(words, span, LIMITS)
    assert sum(window.word_count for window in windows) == len(words)
    for window in windows:
        assert span[0] <= window.start_seconds < window.end_seconds <= span[1]
        length = window.end_seconds - window.start_seconds
        assert length >= min(LIMITS.min_seconds, span[1] - span[0]) - 1e-6
    assert all(a.start_seconds <= b.start_seconds for a, b in pairwise(windows))


def test_a_window_ends_at_a_pause() -> None:
    words = [(0.0, 1.0), (1.1, 2.0), (3.0, 4.0), (4.1, 5.0)]
    windows = voice_windows(words, (0.0, 5.2), LIMITS)
    assert [(w.start_seconds, w.end_seconds, w.word_count) for w in windows] == [
        (0.0, 2.0, 2),
        (3.0, 5.0, 2),
    ]


def test_speakers_are_named_by_first_appearance_with_their_speaking_time() -> None:
    words = [
        TranscriptWord("a", 0, 400, 1.0, "7"),
        TranscriptWord("b", 500, 1000, 1.0, "2"),
        TranscriptWord("c", 1000, 1250, 1.0, "7"),
        TranscriptWord("d", 1300, 1400, 1.0, None),
    ]
    named, speakers = name_speakers(words)
    assert [word.speaker for word in named] == ["speaker_0", "speaker_1", "speaker_0", None]
    assert speakers == (
        Speaker("speaker_0", "Speaker 1", 0.65),
        Speaker("speaker_1", "Speaker 2", 0.5),
    )


def test_twelve_hours_of_talk_take_no_more_memory_than_a_bounded_sample() -> None:
    """20,000 windows: all distances between them would be 1.6 GB."""
    turns = [i // 7 % 3 for i in range(20_000)]
    vectors = vectors_of(turns)
    tracemalloc.start()
    labels = assign_voices(two_seconds(turns), vectors, RULES)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert labels.tolist() == turns
    assert peak_bytes < 100 * 2**20
