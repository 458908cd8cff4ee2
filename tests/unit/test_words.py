"""Words onto the video's timeline, and into segments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.contracts import TranscriptWord
from pipelines.merge.words import (
    SegmentLimits,
    TrackWord,
    build_segments,
    ends_sentence,
    joined,
    place_words,
    to_ms,
)

LIMITS = SegmentLimits(pause_ms=600, max_ms=15_000, max_words=30)

track_words = st.lists(
    st.builds(
        lambda text, start, length, confidence: TrackWord(text, start, start + length, confidence),
        st.text(st.characters(exclude_categories=["C"]), max_size=8),
        st.floats(-5, 120),
        st.floats(0, 20),
        st.floats(-0.5, 1.5),
    ),
    max_size=50,
)


def word(text: str, start_ms: int, end_ms: int, speaker: str | None = None) -> TranscriptWord:
    return TranscriptWord(text, start_ms, end_ms, 0.5, speaker)


@settings(deadline=None)
@given(track_words, st.floats(-30, 30), st.integers(0, 100_000))
def test_placed_words_lie_in_order_inside_the_media(
    words: list[TrackWord], offset_seconds: float, duration_ms: int
) -> None:
    placed = place_words(words, offset_seconds=offset_seconds, media_duration_ms=duration_ms)
    previous_end = 0
    for each in placed:
        assert previous_end <= each.start_ms < each.end_ms <= duration_ms
        assert 0 <= each.confidence <= 1
        assert each.text == " ".join(each.text.split()) != ""
        previous_end = each.end_ms


@settings(deadline=None)
@given(track_words, st.lists(st.sampled_from(["speaker_0", "speaker_1", None]), min_size=50))
def test_segments_hold_every_word_once_within_the_limits(
    words: list[TrackWord], speakers: list[str | None]
) -> None:
    named = [
        TrackWord(w.text, w.start_seconds, w.end_seconds, w.confidence, s)
        for w, s in zip(words, speakers, strict=False)
    ]
    placed = place_words(named, offset_seconds=0, media_duration_ms=200_000)
    segments = build_segments(placed, LIMITS)
    assert [w for segment in segments for w in segment.words] == placed
    for index, segment in enumerate(segments):
        assert segment.index == index
        assert segment.text == joined([w.text for w in segment.words])
        assert (segment.start_ms, segment.end_ms) == (
            segment.words[0].start_ms,
            segment.words[-1].end_ms,
        )
        assert {w.speaker for w in segment.words} == {segment.speaker}
        assert 0 <= segment.confidence <= 1
        assert len(segment.words) <= LIMITS.max_words
        assert len(segment.words) == 1 or segment.end_ms - segment.start_ms <= LIMITS.max_ms


@pytest.mark.parametrize(
    ("start", "end", "offset", "expected"),
    [
        pytest.param(1.0, 1.5, 0.0, [(1000, 1500)], id="no offset"),
        pytest.param(1.0, 1.5, 2.25, [(3250, 3750)], id="track starts after the video"),
        pytest.param(1.0, 1.5, -1.2, [(0, 300)], id="clipped at the start"),
        pytest.param(1.0, 1.5, -2.0, [], id="before the start"),
        pytest.param(9.8, 10.4, 0.0, [(9800, 10_000)], id="clipped at the end"),
        pytest.param(10.0, 10.4, 0.0, [], id="after the end"),
        pytest.param(1.0, 1.0, 0.0, [(1000, 1001)], id="no length"),
        pytest.param(1.0004, 1.0005, 0.0, [(1000, 1001)], id="shorter than a millisecond"),
    ],
)
def test_a_word_is_moved_by_the_tracks_offset_and_clipped_to_the_media(
    start: float, end: float, offset: float, expected: list[tuple[int, int]]
) -> None:
    placed = place_words(
        [TrackWord("word", start, end, 1.0)], offset_seconds=offset, media_duration_ms=10_000
    )
    assert [(each.start_ms, each.end_ms) for each in placed] == expected


def test_overlapping_words_are_laid_end_to_end() -> None:
    words = [TrackWord("a", 0.0, 1.0, 1.0), TrackWord("b", 0.8, 1.4, 1.0)]
    placed = place_words(words, offset_seconds=0, media_duration_ms=5000)
    assert [(each.start_ms, each.end_ms) for each in placed] == [(0, 1000), (1000, 1400)]


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0.0005, 1), (-0.0005, -1), (0.00049, 0), (1.2345, 1235), (-2.0, -2000)]
)
def test_milliseconds_round_half_away_from_zero(seconds: float, ms: int) -> None:
    assert to_ms(seconds) == ms


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        pytest.param(
            [word("a", 0, 100, "x"), word("b", 100, 200, "y")], ["a", "b"], id="change of speaker"
        ),
        pytest.param([word("a", 0, 100), word("b", 800, 900)], ["a", "b"], id="long pause"),
        pytest.param([word("a", 0, 100), word("b", 700, 900)], ["a b"], id="short pause"),
        pytest.param([word("Yes.", 0, 100), word("No", 100, 200)], ["Yes.", "No"], id="full stop"),
        pytest.param([word("Mr.", 0, 100), word("X", 100, 200)], ["Mr. X"], id="abbreviation"),
        pytest.param([], [], id="nothing said"),
    ],
)
def test_segments_end_where_a_sentence_or_a_turn_ends(
    words: list[TranscriptWord], texts: list[str]
) -> None:
    assert [segment.text for segment in build_segments(words, LIMITS)] == texts


def test_a_long_run_is_cut_at_its_longest_pause() -> None:
    starts = [i * 500 + (200 if i >= 22 else 0) for i in range(40)]
    words = [word(f"w{i}", start, start + 450) for i, start in enumerate(starts)]
    first, second = build_segments(words, LIMITS)
    assert (len(first.words), len(second.words)) == (22, 18)


def test_a_segments_confidence_is_that_of_its_words_by_their_length() -> None:
    words = [TranscriptWord("a", 0, 300, 1.0, None), TranscriptWord("b", 300, 400, 0.2, None)]
    (segment,) = build_segments(words, LIMITS)
    assert segment.confidence == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("done.", True),
        ('done."', True),
        ("what?", True),
        ("Dr.", False),
        ("3.5", False),
        ("is", False),
        ("。", True),
    ],
)
def test_sentence_ends_are_read_from_punctuation(text: str, ends: bool) -> None:
    assert ends_sentence(text) is ends


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["two", "words"], "two words"),
        (["音", "楽。", "です"], "音楽。です"),
        (["Microsoft", "の", "音"], "Microsoft の音"),
        (["안녕", "하세요"], "안녕 하세요"),
        (["สวัส", "ดี"], "สวัสดี"),
        ([], ""),
    ],
    ids=["English", "Japanese", "mixed", "Korean", "Thai", "nothing"],
)
def test_words_are_joined_as_their_script_is_written(words: list[str], text: str) -> None:
    assert joined(words) == text
