"""Words: their times in the sound, onto the video's timeline, into segments, in one script."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contracts import SAMPLE_RATE_HZ, Samples, Word
from pipelines.speech.alignment import settled
from pipelines.speech.languages import LanguageChoice
from pipelines.speech.words import (
    SegmentLimits,
    TrackWord,
    build_segments,
    ends_sentence,
    in_one_script,
    joined,
    place_words,
    to_ms,
)
from pipelines.types import TranscriptWord
from tests.tables import every

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


@every(
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


@every(
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


@pytest.mark.parametrize("count", [31, 32, 36, 61, 91])
def test_no_word_stands_alone_because_a_segment_was_full(count: int) -> None:
    words = [word(f"w{i}", i * 400, i * 400 + 400) for i in range(count)]
    lengths = [len(segment.words) for segment in build_segments(words, LIMITS)]
    assert sum(lengths) == count
    assert min(lengths) >= 6


def tokens(text: str, speakers: str = "") -> list[TrackWord]:
    """A recogniser's tokens between spaces, each of 0.2 s, and a digit a speaker."""
    return [
        TrackWord(token, i / 5, i / 5 + 0.2, 0.9 - i / 100, speakers[i : i + 1] or None)
        for i, token in enumerate(text.split())
    ]


@every(
    ("text", "words"),
    [
        ("モ デ ル の 認 識 を 視 覚 的 に", "モデル の 認識 を 視覚的 に"),
        ("オ ーデ ィ オ デ ー タ", "オーディオ データ"),
        ("「 はい 。 」 と", "「はい。」 と"),
        ("首先 咱 们 能 上 半 年 的", "首先 咱们 能 上半年 的"),
        ("วัน นี้ อา กาศ ดี", "วัน นี้ อากาศ ดี"),
        ("20 24 年 10 月 に", "2024年10月 に"),
        ("3. 5 キロ", "3.5キロ"),
        ("What 's it", "What's it"),
        ("안녕 하세요", "안녕 하세요"),
    ],
    ids=[
        "Japanese",
        "katakana",
        "marks",
        "Chinese",
        "Thai",
        "date",
        "decimal",
        "English",
        "Korean",
    ],
)
def test_what_a_recogniser_cut_is_a_word_of_its_dictionary(text: str, words: str) -> None:
    placed = place_words(tokens(text), offset_seconds=0, media_duration_ms=100_000)
    assert [each.text for each in placed] == words.split()
    assert (placed[0].start_ms, placed[-1].end_ms) == (0, 200 * len(text.split()))
    assert sum(each.end_ms - each.start_ms for each in placed) == placed[-1].end_ms


def test_a_word_has_the_speaker_of_most_of_its_time_and_the_least_confidence() -> None:
    found = tokens("カ タ ログ の オ ーデ ィ オ", "00001000")
    placed = place_words(found, offset_seconds=0, media_duration_ms=100_000)
    assert [(each.text, each.speaker) for each in placed] == [
        ("カタログ", "0"),
        ("の", "0"),
        ("オーディオ", "0"),
    ]
    assert placed[-1].confidence == pytest.approx(0.83)


@pytest.mark.parametrize(
    ("second", "words"), [("ディオ", ["オ", "ディオ"]), ("ーディオ", ["オーディオ"])]
)
def test_a_pause_ends_a_word_unless_what_follows_cannot_begin_one(
    second: str, words: list[str]
) -> None:
    found = [TrackWord("オ", 0, 0.2, 1.0), TrackWord(second, 0.9, 1.2, 1.0)]
    placed = place_words(found, offset_seconds=0, media_duration_ms=5000)
    assert [each.text for each in placed] == words


def test_a_segments_confidence_is_that_of_its_words_by_their_length() -> None:
    words = [TranscriptWord("a", 0, 300, 1.0, None), TranscriptWord("b", 300, 400, 0.2, None)]
    (segment,) = build_segments(words, LIMITS)
    assert segment.confidence == pytest.approx(0.8)


@every(
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


@every(
    ("words", "text"),
    [
        (["two", "words"], "two words"),
        (["音", "楽。", "です"], "音楽。です"),
        (["Microsoft", "の", "音"], "Microsoft の音"),
        (["안녕", "하세요"], "안녕 하세요"),
        (["สวัส", "ดี"], "สวัสดี"),
        (["2024", "年", "10", "月"], "2024年10月"),
        (["你好,", "世界"], "你好,世界"),
        (["called", "音楽,", "means"], "called 音楽, means"),
        (["50", "%", "of", "What", "'s"], "50% of What's"),
        ([], ""),
    ],
    ids=[
        "English",
        "Japanese",
        "mixed",
        "Korean",
        "Thai",
        "date",
        "Chinese",
        "a word of another script",
        "marks",
        "nothing",
    ],
)
def test_words_are_joined_as_their_script_is_written(words: list[str], text: str) -> None:
    assert joined(words) == text


@every(
    ("texts", "script", "kept", "found"),
    [
        pytest.param(["我們", "說", "話"], None, (), ["我们", "说", "话"], id="of no place"),
        pytest.param(["我", "买", "软体"], None, (), ["我", "買", "軟體"], id="Taiwan's word"),
        pytest.param(["我", "買", "軟件"], None, (), ["我", "买", "软件"], id="the mainland's"),
        pytest.param(
            ["头", "发", "發", "展"], "Hant", (), ["頭", "髮", "發", "展"], id="by phrases"
        ),
        pytest.param(["里", "面", "程"], "Hant", (), ["裡", "面", "程"], id="forms of Taiwan"),
        pytest.param(["臺", "灣", "说"], "Hans", ("臺灣",), ["臺", "灣", "说"], id="a kept word"),
        pytest.param(
            ["台", "灣", "說"], None, ("台湾",), ["台", "湾", "说"], id="spelt like the kept"
        ),
        pytest.param(["大", "OK", "小"], None, (), ["大", "OK", "小"], id="no difference"),
        pytest.param([], None, ("臺灣",), [], id="nothing"),
    ],
)
def test_chinese_has_one_script(
    texts: Sequence[str], script: str | None, kept: tuple[str, ...], found: list[str]
) -> None:
    assert in_one_script(texts, script, kept) == found


@every(
    ("choice", "script"),
    [
        (LanguageChoice(), None),
        (LanguageChoice(language="zh"), None),
        (LanguageChoice(language="zh-Hant"), "Hant"),
        (LanguageChoice(language="zh-hk"), "Hant"),
        (LanguageChoice(language="cmn-Hans-TW"), "Hans"),
        (LanguageChoice(languages=("en-SG", "zh-CN")), "Hans"),
        (LanguageChoice(languages=("en-HK", "ja")), None),
    ],
    ids=str,
)
def test_a_tag_may_name_a_script_or_a_place(choice: LanguageChoice, script: str | None) -> None:
    assert choice.chinese_script == script


AHEAD = 0.06
"""By so much the alignment runs ahead of the sound."""


def sound(*stretches: tuple[float, float]) -> Samples:
    """Ten seconds of faint hiss, loud from and to these seconds."""
    generator = np.random.default_rng(1)
    samples = generator.normal(scale=1e-4, size=10 * SAMPLE_RATE_HZ)
    for start, end in stretches:
        part = slice(round(start * SAMPLE_RATE_HZ), round(end * SAMPLE_RATE_HZ))
        samples[part] = generator.normal(scale=0.1, size=part.stop - part.start)
    return samples.astype(np.float32)


@pytest.mark.parametrize(
    ("spoken", "word", "expected"),
    [
        pytest.param([(1.0, 3.0)], (1.4, 1.8), (1.4 + AHEAD, 1.8 + AHEAD), id="in running speech"),
        pytest.param([(1.0, 3.0)], (0.6, 1.3), (1.0, 1.3 + AHEAD), id="the pause before it"),
        pytest.param([(1.0, 3.0)], (2.5, 3.2), (2.5 + AHEAD, 3.0), id="the pause after it"),
        pytest.param([(1.0, 1.4), (7.4, 9.0)], (1.0, 7.8), (7.4, 7.86), id="6 s of silence"),
        pytest.param(
            [(1.0, 1.5), (1.55, 2.0)], (1.2, 1.8), (1.2 + AHEAD, 1.8 + AHEAD), id="a stop's closure"
        ),
    ],
)
def test_a_pause_is_no_part_of_a_word(
    spoken: list[tuple[float, float]], word: tuple[float, float], expected: tuple[float, float]
) -> None:
    [found] = settled([Word("consider", *word, 0.9)], sound(*spoken))
    assert (found.start_seconds, found.end_seconds) == pytest.approx(expected, abs=0.03)


def test_soft_speech_between_loud_is_no_pause() -> None:
    samples, word = sound((1.0, 1.5), (2.2, 3.0)), Word("consider", 1.0, 2.5, 0.9)
    [found] = settled([word], samples, speech=[(1.0, 3.0)])
    assert found.start_seconds == pytest.approx(1.0 + AHEAD)


def test_no_word_lasts_longer_than_its_letters_allow() -> None:
    [found] = settled([Word("so", 1.0, 7.8, 0.9)], sound((0.5, 9.0)), speech=[(0.5, 9.0)])
    assert found.end_seconds - found.start_seconds < 1.0


def test_words_stay_in_order_inside_the_chunk() -> None:
    words = [Word("a", at / 4, at / 4 + 0.25, 0.9) for at in range(40)]
    found = settled(words, sound((0.0, 2.0), (3.0, 10.0)))
    times = [time for word in found for time in (word.start_seconds, word.end_seconds)]
    assert times == sorted(times)
    assert times[-1] <= 10.0
    assert [word.text for word in found] == ["a"] * 40
    assert settled([], np.empty(0, np.float32)) == []
