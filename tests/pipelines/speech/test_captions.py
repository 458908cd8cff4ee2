"""Captions: strict grammars, reading limits, no word lost, lines as each script has them."""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import accumulate, pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contracts import SoundKind
from pipelines.speech.caption_rules import CaptionLimits, build_cues
from pipelines.speech.captions import to_markdown, to_srt, to_ttml, to_txt, to_vtt, with_sounds
from pipelines.speech.words import SPACELESS, SegmentLimits, TrackWord, build_segments, place_words
from pipelines.types import Speaker, TimedSound, TranscriptSegment, TranscriptWord
from tests.examples import examples
from tests.tables import every

SPEAKERS = (Speaker("speaker_0", "Speaker 1", 1.0), Speaker("speaker_1", "Speaker 2", 1.0))
SRT_BLOCK = re.compile(
    r"(\d+)\n(\d{2,}):(\d\d):(\d\d),(\d{3}) --> (\d{2,}):(\d\d):(\d\d),(\d{3})\n((?:[^\n]+\n)+)"
)
VTT_TIMING = re.compile(
    r"(\d{2,}):([0-5]\d):([0-5]\d)\.(\d{3}) --> (\d{2,}):([0-5]\d):([0-5]\d)\.(\d{3})"
)

USUAL = CaptionLimits()
ParsedCue = tuple[int, int, list[str]]
Segments = tuple[TranscriptSegment, ...]


def milliseconds(hour: str, minute: str, second: str, millis: str) -> int:
    assert int(minute) < 60
    assert int(second) < 60
    return ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 1000 + int(millis)


def visible(text: str) -> str:
    """The text without the controls of direction, of which each line closes what it opens."""
    for line in text.split("\n"):
        assert re.fullmatch("([^\u2068\u2069]|\u2068[^\u2068\u2069]+\u2069)*", line)
    return re.sub("[\u2068\u2069]", "", text)


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in line)


def parse_srt(text: str) -> list[ParsedCue]:
    """Strict: blocks numbered from 1, separated by exactly one empty line, nothing besides."""
    cues: list[ParsedCue] = []
    position = 0
    while position < len(text):
        match = SRT_BLOCK.match(text, position)
        assert match, f"no cue at {text[position : position + 40]!r}"
        assert int(match[1]) == len(cues) + 1
        # A word joiner keeps "<" and "{" of the text from being read as a tag; nobody sees it.
        lines = visible(match[10]).replace("\u2060", "").removesuffix("\n").split("\n")
        assert not any("-->" in line for line in lines)
        cues.append(
            (milliseconds(*match.group(2, 3, 4, 5)), milliseconds(*match.group(6, 7, 8, 9)), lines)
        )
        position = match.end()
        if position < len(text):
            assert text[position] == "\n"
            position += 1
    return cues


def parse_vtt(text: str) -> list[tuple[ParsedCue, str | None]]:
    """Strict, after the WebVTT grammar: header, blocks, voice span, escaped cue text."""
    header, _, body = text.partition("\n\n")
    assert header == "WEBVTT"
    cues: list[tuple[ParsedCue, str | None]] = []
    for block in body.removesuffix("\n").split("\n\n") if body else []:
        timing, *lines = block.split("\n")
        match = VTT_TIMING.fullmatch(timing)
        assert match, timing
        assert lines
        assert all(lines)
        assert "-->" not in "\n".join(lines)
        voice = re.match(r"<v ([^<>\n]+)>", lines[0])
        if voice:
            lines[0] = lines[0][voice.end() :]
        assert not any("<" in line or ">" in line for line in lines)
        assert all(re.fullmatch(r"([^&]|&(amp|lt|gt);)*", line) for line in lines)
        start, end = milliseconds(*match.groups()[:4]), milliseconds(*match.groups()[4:])
        texts = [html.unescape(visible(line)) for line in lines]
        cues.append(((start, end, texts), html.unescape(voice[1]) if voice else None))
    return cues


def words_of(*texts: str, each_ms: int = 300, speaker: str | None = None) -> list[TranscriptWord]:
    return [
        TranscriptWord(text, i * each_ms, (i + 1) * each_ms, 0.9, speaker)
        for i, text in enumerate(texts)
    ]


def segments_of(words: list[TranscriptWord]) -> tuple[TranscriptSegment, ...]:
    return build_segments(words, SegmentLimits())


@st.composite
def transcripts(draw: st.DrawFn) -> tuple[TranscriptSegment, ...]:
    texts = draw(
        st.lists(
            st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=100).filter(
                lambda text: "-->" not in text and text.split() == [text]
            ),
            max_size=60,
        )
    )
    time_ms = 0
    words: list[TranscriptWord] = []
    for text in texts:
        start_ms = time_ms + draw(st.integers(0, 3000))
        time_ms = start_ms + draw(st.integers(1, 9000))
        speaker = draw(st.sampled_from([None, "speaker_0", "speaker_1"]))
        words.append(TranscriptWord(text, start_ms, time_ms, 0.5, speaker))
    return segments_of(words)


def assert_readable(cues: list[ParsedCue], limits: CaptionLimits = USUAL) -> None:
    previous_end = 0
    for start, end, lines in cues:
        assert previous_end <= start < end <= start + 7000
        assert 1 <= len(lines) <= limits.lines
        assert all(1 <= columns(line) <= limits.line_columns for line in lines)
        previous_end = end


def spoken(segments: tuple[TranscriptSegment, ...]) -> str:
    return "".join(word.text for segment in segments for word in segment.words)


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_srt_parses_strictly_keeps_the_limits_and_every_character_in_order(
    segments: tuple[TranscriptSegment, ...],
) -> None:
    cues = parse_srt(to_srt(segments))
    assert_readable(cues)
    assert "".join(line for _, _, lines in cues for line in lines).replace(" ", "") == spoken(
        segments
    )


@settings(max_examples=examples(60), deadline=None)
@given(transcripts(), st.integers(12, 120), st.integers(1, 4), st.integers(5, 60))
def test_limits_that_are_asked_for_are_kept(
    segments: tuple[TranscriptSegment, ...], width: int, lines: int, speed: int
) -> None:
    limits = CaptionLimits(width, lines, speed)
    cues = parse_srt(to_srt(segments, limits))
    assert_readable(cues, limits)
    assert "".join(line for _, _, each in cues for line in each).replace(" ", "") == spoken(
        segments
    )


def test_slower_reading_leaves_captions_on_the_screen_longer() -> None:
    words = [
        TranscriptWord("Good", 0, 300, 0.9, None), TranscriptWord("morning.", 300, 600, 0.9, None),
        TranscriptWord("Yes.", 5_000, 5_200, 0.9, None),
    ]  # fmt: skip
    fast, slow = (
        build_cues(segments_of(words), CaptionLimits(columns_per_second=speed))[0]
        for speed in (20, 5)
    )
    assert (fast.end_ms, slow.end_ms) == (1000, 2600)


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_ttml_is_xml_with_the_cues_of_the_other_formats(
    segments: tuple[TranscriptSegment, ...],
) -> None:
    names = {"tt": "http://www.w3.org/ns/ttml"}
    root = ET.fromstring(to_ttml(segments, SPEAKERS, "en"))  # noqa: S314 - our own
    found = root.findall(".//tt:p", names)
    expected = parse_srt(to_srt(segments))
    texts = [visible("".join(each.itertext())) for each in found]
    assert texts == ["".join(c[2]) for c in expected]
    times = [re.match(r"(..):(..):(..)\.(...)", each.get("begin", "")) for each in found]
    assert [milliseconds(*each.groups()) for each in times if each] == [c[0] for c in expected]
    agents = {each.get("{http://www.w3.org/ns/ttml#metadata}agent") for each in found}
    assert agents <= {None, "speaker_0", "speaker_1"}


def test_markdown_has_turns_with_their_time_and_nothing_that_is_markup() -> None:
    said = segments_of(words_of("*Hello*", "[x](y)", "<b>.", speaker="speaker_1"))
    assert to_markdown(said, SPEAKERS) == (
        "**Speaker 2** `00:00:00` \\*Hello\\* \\[x\\](y) \\<b\\>.\n"
    )


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_vtt_parses_strictly_keeps_the_limits_and_every_character_in_order(
    segments: tuple[TranscriptSegment, ...],
) -> None:
    cues = parse_vtt(to_vtt(segments, SPEAKERS))
    assert_readable([cue for cue, _ in cues])
    text = "".join(line for (_, _, lines), _ in cues for line in lines)
    assert text.replace(" ", "") == spoken(segments)


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_words_that_fit_a_line_are_never_broken(segments: tuple[TranscriptSegment, ...]) -> None:
    whole = [s for s in segments if not SPACELESS.search(s.text)]
    # As they are written: a mark that is a word of its own is joined to the one before it.
    short = [word for s in whole for word in s.text.split() if columns(word) <= 42]
    shown = [
        w for _, _, lines in parse_srt(to_srt(segments)) for line in lines for w in line.split()
    ]
    remaining = iter(shown)
    assert all(word in remaining for word in short)


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_txt_has_a_paragraph_a_turn_and_all_the_words(
    segments: tuple[TranscriptSegment, ...],
) -> None:
    text = visible(to_txt(segments, ()))
    turns = sum(
        1
        for i, segment in enumerate(segments)
        if i == 0 or segments[i - 1].speaker != segment.speaker
    )
    assert len(text.split("\n\n") if text else []) == turns
    words = [word.text for segment in segments for word in segment.words]
    assert "".join(text.split()) == "".join("".join(words).split())


def test_nothing_said_gives_valid_empty_files() -> None:
    assert to_srt(()) == ""
    assert to_vtt((), ()) == "WEBVTT\n\n"
    assert to_txt((), ()) == ""


def test_srt_looks_like_srt() -> None:
    assert to_srt(segments_of(words_of("hello", "world"))) == (
        "1\n00:00:00,000 --> 00:00:00,600\nhello world\n"
    )


def test_vtt_names_the_voice_and_escapes_markup() -> None:
    speakers = (Speaker("speaker_0", "Tom & <Jerry>", 1.0),)
    text = to_vtt(segments_of(words_of("R&D", "<i>", speaker="speaker_0")), speakers)
    assert text.endswith("<v Tom &amp; &lt;Jerry&gt;>R&amp;D &lt;i&gt;\n")
    assert parse_vtt(text) == [((0, 600, ["R&D <i>"]), "Tom & <Jerry>")]


def test_an_arrow_in_the_text_does_not_look_like_a_timing_line() -> None:
    segments = segments_of(words_of("a", "-->", "b"))
    assert len(parse_srt(to_srt(segments))) == 1
    assert parse_vtt(to_vtt(segments, ()))[0][0][2] == ["a --> b"]
    dashed = (Speaker("speaker_0", "Tom --", 1.0),)
    assert "-->a" not in to_vtt(segments_of(words_of("a", speaker="speaker_0")), dashed)


def test_hours_keep_counting_beyond_ninety_nine() -> None:
    late = [TranscriptWord("late", 100 * 3_600_000, 100 * 3_600_000 + 500, 1.0, None)]
    assert to_srt(segments_of(late)).startswith("1\n100:00:00,000 --> 100:00:00,500\n")


def test_a_word_longer_than_a_line_is_spread_over_lines_and_cues_that_share_its_time() -> None:
    cues = parse_srt(to_srt(segments_of([TranscriptWord("x" * 100, 0, 3000, 1.0, None)])))
    assert [lines for _, _, lines in cues] == [["x" * 42, "x" * 42], ["x" * 16]]
    assert [(start, end) for start, end, _ in cues] == [(0, 2000), (2000, 3000)]


def test_two_lines_are_about_equally_long() -> None:
    text = "the quick brown fox jumps over the lazy old dog"
    segments = segments_of(words_of(*text.split(), each_ms=100))
    ((_, _, lines),) = parse_srt(to_srt(segments))
    assert lines == ["the quick brown fox jumps", "over the lazy old dog"]


@pytest.mark.parametrize(
    ("speakers", "expected"),
    [
        pytest.param(SPEAKERS[:1], "good morning\n\ngood evening\n", id="one speaker: no labels"),
        pytest.param(
            SPEAKERS, "Speaker 1: good morning\n\nSpeaker 2: good evening\n", id="two: labels"
        ),
    ],
)
def test_txt_prefixes_labels_only_where_there_are_several_speakers(
    speakers: tuple[Speaker, ...], expected: str
) -> None:
    first = words_of("good", "morning", speaker="speaker_0")
    second = [
        TranscriptWord(text, 5000 + i * 300, 5300 + i * 300, 1.0, "speaker_1")
        for i, text in enumerate(["good", "evening"])
    ]
    assert to_txt(segments_of(first + second), speakers) == expected


def sentence(text: str, *, each_ms: int = 300, pauses: dict[str, int] | None = None) -> Segments:
    """The words of ``text`` end to end, with a pause after the words named in ``pauses``."""
    words: list[TranscriptWord] = []
    now_ms = 0
    for word in text.split():
        words.append(TranscriptWord(word, now_ms, now_ms + each_ms, 0.9, None))
        now_ms += each_ms + (pauses or {}).get(word, 0)
    return build_segments(words, SegmentLimits(pause_ms=2000))


LONG = (
    "when the ships had left the harbour nobody in the town could say how long"
    " they would be gone or what they would bring"
)


@pytest.mark.parametrize(
    ("text", "pauses", "first"),
    [
        pytest.param(
            LONG,
            {"harbour": 350},
            "when the ships had left the harbour",
            id="at the longest pause",
        ),
        pytest.param(
            LONG.replace("harbour", "harbour,"),
            {},
            "when the ships had left the harbour,",
            id="after a comma",
        ),
        pytest.param(
            "they looked for it all night long in every corner of the old house"
            " because the letter had to be found",
            {},
            "they looked for it all night long in every corner of the old house",
            id="before the word that opens a clause",
        ),
    ],
)
def test_a_cue_ends_where_a_listener_hears_an_end(
    text: str, pauses: dict[str, int], first: str
) -> None:
    cues = build_cues(sentence(text, pauses=pauses))
    assert len(cues) == 2
    assert " ".join(cues[0].lines) == first


def test_no_line_ends_with_a_word_that_belongs_to_the_next() -> None:
    (cue,) = build_cues(sentence("it was the first time that anyone had seen the old king smile"))
    assert len(cue.lines) == 2
    assert cue.lines[0].split()[-1] not in {"the", "had", "that", "it", "was"}


def test_a_cue_stays_until_it_can_be_read_where_nothing_else_is_said() -> None:
    fast = "everybody talks terribly quickly here"
    first = words_of(*fast.split(), each_ms=100)
    later = [TranscriptWord("yes", 9000, 9200, 1.0, None)]
    shown = build_cues(segments_of(first + later))[0]
    assert shown.end_ms == round(len(fast) * 1000 / 20)
    soon = [TranscriptWord("yes", 1300, 1500, 1.0, None)]
    assert build_cues(segments_of(first + soon))[0].end_ms == 1300


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_no_cue_is_faster_than_twenty_characters_a_second_without_need(
    segments: tuple[TranscriptSegment, ...],
) -> None:
    cues = build_cues(segments)
    for cue, following in pairwise(cues):
        needed_ms = min(7000, 50 * len(" ".join(cue.lines)))
        assert cue.end_ms - cue.start_ms >= needed_ms or cue.end_ms == following.start_ms


# Words, as a dictionary has them, between spaces that are no part of the text but in Korean.
SCRIPTS = {
    "Japanese": "カスタム スピーチ に は、 オーディオ データ を 対応 する 認識 結果 と 比較 する"
    " こと に よって、 モデル の 認識 品質 を 視覚的 に 検査 する ツール が あり ます。",
    "Chinese": "今天 是 2024年10月5日， 人工 智能 正在 改变 我们 的 生活 方式， 尤其 是 在 医疗 和"
    " 教育 领域。",
    "Thai": "วัน นี้ อากาศ ดี มาก และ เรา จะ ไป เที่ยว ทะเล กับ ครอบครัว ใน วัน หยุด สุด สัปดาห์",
    "Khmer": "ថ្ងៃនេះ អាកាសធាតុ ល្អ ណាស់ ហើយ យើង នឹង ទៅលេង សមុទ្រ ជាមួយ គ្រួសារ របស់ យើង",
    "Burmese": "ဒီ နေ့ ရာသီဥတု က အရမ်း ကောင်း တယ်၊ ငါ တို့ ပင်လယ် ကို မိသားစု နဲ့ အတူ သွား မယ်",
    "Lao": "ມື້ນີ້ ອາກາດ ດີ ຫຼາຍ ແລະ ພວກ ເຮົາ ຈະ ໄປ ທ່ຽວ ທະເລ ກັບ ຄອບຄົວ ໃນ ວັນ ພັກ",
    "Korean": "오늘은 날씨가 매우 좋아서 우리는 가족과 함께 바다로 여행을 갑니다 내일 돌아옵니다",
}
NOT_AT_START = set("ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々、。，．！？：；）」』】〉》…％%၊ๆ")


def recognised(*tokens: str, each_ms: int = 300) -> Segments:
    """Segments of what a recogniser takes for words."""
    words = [
        TrackWord(token, i * each_ms / 1000, (i + 1) * each_ms / 1000, 0.9)
        for i, token in enumerate(tokens)
    ]
    return segments_of(place_words(words, offset_seconds=0, media_duration_ms=10**7))


def lines_of(segments: Segments, limits: CaptionLimits = USUAL) -> list[str]:
    cues = parse_srt(to_srt(segments, limits))
    assert_readable(cues, limits)
    return [line for _, _, lines in cues for line in lines]


@every("width", [16, 20, 26, 42])
@every("words", SCRIPTS.values(), ids=SCRIPTS)
@every("pieces", ["words", "characters"])
def test_lines_end_between_words_as_their_script_has_them(
    words: str, width: int, pieces: str
) -> None:
    tokens = words.split() if pieces == "words" or words == SCRIPTS["Korean"] else [*words]
    lines = lines_of(recognised(*filter(str.strip, tokens), each_ms=150), CaptionLimits(width))
    assert "".join(lines).replace(" ", "") == words.replace(" ", "")
    ends = {len("".join(words.split()[:count])) for count in range(len(words))}
    assert set(accumulate(len(line.replace(" ", "")) for line in lines)) <= ends
    assert not NOT_AT_START & {line[0] for line in lines}


def test_what_is_wider_than_a_line_ends_where_a_line_may() -> None:
    long = "スーパーカリフラジリスティックエクスピアリドーシャス" * 3
    lines = lines_of(recognised(long, each_ms=9000), CaptionLimits(20))
    assert "".join(lines) == long
    assert not NOT_AT_START & {line[0] for line in lines}


@every(
    ("tokens", "written"),
    [
        pytest.param("2024 年 10 月 5 日 に", "2024年10月5日に", id="a date"),
        pytest.param("成功 率 は 1 0 0 % です", "成功率は100%です", id="digits one by one"),
        pytest.param("約 3. 5 キロ です", "約3.5キロです", id="a decimal point"),
        pytest.param("What 's it for", "What's it for", id="an English ending"),
        pytest.param("I do n't know", "I don't know", id="another"),
        pytest.param("go get 'em", "go get 'em", id="a word that begins with an apostrophe"),
        pytest.param("call 5 5 5 now", "call 5 5 5 now", id="digits said in English"),
    ],
)
def test_no_format_has_a_space_inside_a_word_or_a_number(tokens: str, written: str) -> None:
    segments = recognised(*tokens.split())
    assert [segment.text for segment in segments] == [written]
    assert lines_of(segments) == [written]
    for text in (to_vtt(segments, ()), to_ttml(segments, (), "ja"), to_txt(segments, ())):
        assert written in text
    assert f"` {written}\n" in to_markdown(segments, ())


@every("width", range(12, 30, 2))
def test_no_line_ends_inside_a_number(width: int) -> None:
    numbers = ("2024年10月5日", "100%", "3.5キロ", "第３章", "二〇二四年")
    text = "に".join(numbers)
    lines = lines_of(recognised(*text), CaptionLimits(width))
    assert all(any(number in line for line in lines) for number in numbers if width > 13)


def test_a_line_in_two_directions_isolates_the_words_against_its_own() -> None:
    hebrew = to_srt(segments_of(words_of("המחשב", "עם", "Windows", "11,", "הוא", "טוב.")))
    assert "המחשב עם \u2068Windows 11\u2069, הוא טוב.\n" in hebrew
    english = to_vtt(segments_of(words_of("he", "said", "שלום", "עולם,", "twice")), ())
    assert "he said \u2068שלום עולם\u2069, twice\n" in english
    alone = to_srt(segments_of(words_of("שלום", "עולם")))
    assert "שלום עולם\n" in alone


def test_a_label_does_not_set_the_direction_of_its_paragraph() -> None:
    segments = segments_of(words_of("שלום", "עולם", speaker="speaker_1"))
    assert to_txt(segments, SPEAKERS) == "\u2068Speaker 2\u2069: שלום עולם\n"


def test_controls_of_direction_in_what_was_said_do_not_reach_a_file() -> None:
    said = segments_of(words_of("a\u202eb", "\u2066c"))
    assert to_srt(said) == "1\n00:00:00,000 --> 00:00:00,600\na b c\n"


def test_japanese_paragraphs_have_no_space_between_segments() -> None:
    assert to_txt(recognised("はい。", "そうです。"), ()) == "はい。そうです。\n"


def greeting(start_ms: int, end_ms: int) -> TranscriptSegment:
    words = (TranscriptWord("Hello.", start_ms, end_ms, 1.0, "speaker_0"),)
    return TranscriptSegment(0, start_ms, end_ms, "Hello.", "speaker_0", 1.0, words)


@pytest.mark.parametrize(
    ("segments", "sounds", "expected"),
    [
        pytest.param([], [("music", 0, 9000)], [("[music]", 0, 9000)], id="nothing is spoken"),
        pytest.param(
            [(3000, 4000), (9000, 9500)],
            [("music", 1000, 12_000)],
            [("[music]", 1000, 3000), ("[music]", 4000, 9000), ("[music]", 9500, 12_000)],
            id="between words",
        ),
        pytest.param([(3000, 4000)], [("music", 2000, 5000)], [], id="too little beside words"),
        pytest.param([(3000, 4000)], [("speech", 0, 9000)], [], id="speech is no caption"),
        pytest.param(
            [],
            [("music", 0, 9000), ("singing", 3000, 8000)],
            [("[music]", 0, 9000), ("[singing]", 3000, 8000)],
            id="singing over music",
        ),
    ],
)
def test_sounds_are_captions_where_nothing_is_spoken(
    segments: list[tuple[int, int]],
    sounds: list[tuple[str, int, int]],
    expected: list[tuple[str, int, int]],
) -> None:
    said = [greeting(*span) for span in segments]
    found = with_sounds(
        said, [TimedSound(SoundKind(kind), start, end, 0.9) for kind, start, end in sounds]
    )
    named = [(each.text, each.start_ms, each.end_ms) for each in found if each not in said]
    assert named == expected
    assert [each for each in found if each in said] == said
    cues = build_cues(found)
    assert all(one.end_ms <= other.start_ms for one, other in pairwise(cues))
