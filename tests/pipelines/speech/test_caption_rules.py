"""Captions by the rules of houses: kept where speech lets them, named where it does not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import ttconv.imsc.reader as imsc
import ttconv.srt.reader as srt
import ttconv.vtt.reader as vtt
import webvtt
from pysubs2 import SSAFile
from ttconv.model import ContentDocument, P

from benchmarks.speech.material import load
from benchmarks.speech.plain_loop import transcribe_samples
from models.provider import LocalModels
from pipelines.speech.caption_rules import (
    CaptionRule,
    CaptionRulesError,
    Cue,
    HouseRules,
    cues_of,
    find_rules,
    find_violations,
    read_rules,
    with_speakers,
)
from pipelines.speech.captions import to_ass, to_ebu_tt_d, to_srt, to_ttml, to_vtt
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.speech.words import SegmentLimits, build_segments
from pipelines.types import Speaker, TranscriptSegment, TranscriptWord
from tests.places import SHARED_MEDIA
from tests.tables import every

HOUSES = sorted(read_rules())
SPEAKERS = [Speaker(f"speaker_{number}", f"Speaker {number + 1}", 1.0) for number in range(3)]
TEXTS = {
    "en": "The bakers of this street, he said, begin at three in the morning and sleep at noon.",
    "de": "Die Bäcker dieser Straße fangen um drei Uhr morgens an, sagte er, und schlafen mittags.",
    "es": "Los panaderos de esta calle, dijo, empiezan a las tres y duermen al mediodía.",
    "fr": "Les boulangers de cette rue, dit-il, commencent à trois heures et dorment à midi.",
    "it": "I fornai di questa strada, disse, cominciano alle tre e dormono a mezzogiorno.",
    "pt": "Os padeiros desta rua, disse ele, começam às três da manhã e dormem ao meio-dia.",
    "ru": "Пекари этой улицы, сказал он, начинают в три часа утра и спят в полдень.",
    "ja": "この 通り の パン屋 は 、 朝 三時 に 始めて 、 昼 に 眠る と 彼 は 言った 。",
    "zh": "这 条 街 的 面包师 说 ， 他们 早上 三点 开始 工作 ， 中午 睡觉 。",
}
_ROOM_MS = 1_000
"""What the time that a caption before needs may put off the next by."""
CALM_MS = {"ja": 700}
"""Milliseconds a word at which every house's reading speed can be kept; else 440."""


def spoken(language: str, word_ms: int | None = None, seed: int = 1) -> list[TranscriptSegment]:
    """Sixty sentences of three people: two each in turn, with a pause before the next begins."""
    rng, words, now_ms = random.Random(seed), list[TranscriptWord](), 0
    each_ms = word_ms or CALM_MS.get(language, 440)
    for number in range(60):
        parts = TEXTS[language].split()
        begin = rng.randrange(len(parts) - 1)
        for text in parts[begin : begin + rng.randint(1, len(parts))]:
            end_ms = now_ms + max(60, round(rng.gauss(each_ms, each_ms / 6)))
            words.append(TranscriptWord(text, now_ms, end_ms, 0.9, f"speaker_{number // 2 % 3}"))
            now_ms = end_ms
        pauses = (400, 900, 1_500, 4_000) if number % 2 else (0, 0, 150, 400, 900)
        now_ms += rng.choice(pauses)
    return list(build_segments(words, SegmentLimits()))


def rules_of(house: str, language: str = "en") -> HouseRules:
    found = find_rules(read_rules(), house, language)
    assert found is not None
    return found


@every("language", TEXTS)
@every("house", HOUSES)
def test_captions_of_calm_speech_break_no_rule_of_a_house(house: str, language: str) -> None:
    rules = rules_of(house, language)
    for seed in range(3):
        cues = cues_of(spoken(language, seed=seed), rules)
        broken = [each for each in find_violations(cues, rules) if not each.is_advice]
        assert broken == []
        assert all(cue.end_ms <= after.start_ms for cue, after in pairwise(cues))


@pytest.mark.parametrize("house", HOUSES)
def test_no_word_is_lost_and_none_is_far_from_when_it_is_spoken(house: str) -> None:
    rules, segments = rules_of(house), spoken("en", 250)
    cues = cues_of(segments, rules)
    written = " ".join(line.removeprefix(rules.dash) for cue in cues for line in cue.lines)
    assert written == " ".join(each.text for each in segments)
    starts = {word.start_ms for each in segments for word in each.words}
    for cue in cues:
        assert any(
            -rules.early_ms <= cue.start_ms - start_ms <= max(rules.late_ms, _ROOM_MS)
            for start_ms in starts
        )


def test_speech_that_is_too_fast_to_read_is_named_with_cue_and_time() -> None:
    rules = rules_of("netflix")
    cues = cues_of(spoken("en", 120), rules)
    broken = list(find_violations(cues, rules))
    assert {each.rule for each in broken} <= {CaptionRule.READING_SPEED, CaptionRule.DURATION}
    first = next(each for each in broken if each.rule is CaptionRule.READING_SPEED)
    assert "columns a second, at most 20" in first.message
    assert not first.is_advice
    assert (first.start_ms, first.end_ms) == cues[first.cue - 1][:2]
    assert all(each.is_advice for each in find_violations(cues, rules_of("youtube"))
               if each.rule is CaptionRule.READING_SPEED)  # fmt: skip


@every(
    ("cues", "house", "expected"),
    [
        ([Cue(0, 3_000, ("x" * 43,), None)], "netflix", ("line_length", "43 columns, at most 42")),
        ([Cue(0, 4_000, ("あ" * 14,), None)], "netflix:ja", ("line_length", "28 columns")),
        ([Cue(0, 2_000, ("a", "b", "c"), None)], "bbc", ("lines", "3 lines, at most 2")),
        ([Cue(0, 800, ("No.",), None)], "netflix", ("duration", "800 ms, at least 834")),
        ([Cue(0, 7_001, ("No.",), None)], "ted", ("duration", "7001 ms, at most 7000")),
        ([Cue(0, 1_000, ("x" * 22,), None)], "ted", ("reading_speed", "22.0 columns a second")),
        ([Cue(0, 900, ("One two three.",), None)], "bbc", ("reading_speed", "200 words a minute")),
        (
            [Cue(0, 1_000, ("One.",), None), Cue(1_079, 2_100, ("Two.",), None)],
            "netflix",
            ("gap", "79 ms to the next, at least 80"),
        ),
        (
            [Cue(0, 1_000, ("One.",), None), Cue(1_300, 2_400, ("Two.",), None)],
            "bbc",
            ("gap", "neither closed nor 1000"),
        ),
        (
            [Cue(0, 5_000, ("This is the first of", "two."), None)],
            "ted",
            ("line_balance", "20 and 4 columns"),
        ),
    ],
)
def test_each_rule_is_found_where_it_is_broken(
    cues: list[Cue], house: str, expected: tuple[str, str]
) -> None:
    name, _, language = house.partition(":")
    [broken] = find_violations(cues, rules_of(name, language or "en"))
    assert broken.rule == expected[0]
    assert expected[1] in broken.message


def test_a_gap_is_counted_in_frames_of_the_picture() -> None:
    table = read_rules()
    gaps = {
        rate: find_rules(table, "netflix", "en", rate)
        for rate in (None, Fraction(24), Fraction(60))
    }
    assert [rules.gap_ms for rules in gaps.values() if rules] == [80, 84, 34]


def test_two_who_speak_in_turns_of_a_word_share_a_caption_with_dashes() -> None:
    words = [
        TranscriptWord("Ready?", 0, 500, 0.9, "speaker_0"),
        TranscriptWord("Yes.", 520, 900, 0.9, "speaker_1"),
        TranscriptWord("Then", 940, 1_200, 0.9, "speaker_0"),
        TranscriptWord("go.", 1_200, 1_900, 0.9, "speaker_0"),
    ]
    rules = replace(rules_of("netflix"), late_ms=0)
    cues = cues_of(build_segments(words, SegmentLimits()), rules)
    assert [cue.lines for cue in cues] == [("-Ready?", "-Yes."), ("Then go.",)]
    assert not list(find_violations(cues, rules))


def test_names_stand_where_another_begins_to_speak() -> None:
    segments = spoken("en")[:8]
    labelled = list(with_speakers(segments, SPEAKERS, rules_of("netflix").speaker))
    begins = [True] + [after.speaker != before.speaker for before, after in pairwise(segments)]
    assert [each.text.startswith("[Speaker") for each in labelled] == begins
    cues = cues_of(labelled, rules_of("netflix"))
    assert cues[0].lines[0].startswith("[Speaker 1] ")
    assert list(with_speakers(segments, SPEAKERS[:1], "{speaker}:")) == segments
    loud = next(with_speakers(segments, SPEAKERS, rules_of("bbc").speaker))
    assert loud.text.startswith("SPEAKER 1: ")


@pytest.mark.parametrize("language", ["en", "ja", "ru"])
def test_outside_readers_take_all_formats_and_find_the_same_captions(language: str) -> None:
    rules, segments = rules_of("netflix", language), spoken(language)
    cues = cues_of(segments, rules)
    times = [(cue.start_ms, cue.end_ms) for cue in cues]
    read = webvtt.from_buffer(StringIO(to_vtt(segments, SPEAKERS, rules))).captions
    assert [each.text.split("\n") for each in read] == [list(cue.lines) for cue in cues]
    assert [(each.start, each.end) for each in read] == [
        tuple(f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"
              for ms in span) for span in times]  # fmt: skip
    ass = SSAFile.from_string(to_ass(segments, rules))
    assert [each.plaintext for each in ass] == ["\n".join(cue.lines) for cue in cues]
    assert all(abs(each.start - start) <= 10 for each, (start, _) in zip(ass, times, strict=True))
    for document in (
        imsc.to_model(tree(to_ttml(segments, SPEAKERS, language, rules))),
        imsc.to_model(tree(to_ebu_tt_d(segments, language, rules))),
        srt.to_model(StringIO(to_srt(segments, rules))),
        vtt.to_model(StringIO(to_vtt(segments, SPEAKERS, rules))),
    ):
        assert spans_of(document) == times


RECORDINGS = (
    "speech/jfk.wav", "speech/azure-en.wav", "speech/leopard-test.wav", "speech/spk1_snt1.wav",
    "speech/spk1_snt5.wav", "speech/whatstheweatherlike.wav", "speech/sonnet-I-p001.mp3",
    "speech/librivox-austen-0870.wav", "speech/azure-de.wav", "speech/leopard-test_de.wav",
    "speech/leopard-test_es.wav", "speech/leopard-test_fr.wav", "speech/azure-ja.wav",
    "mixed-speech/fleurs-de.wav", "mixed-speech/fleurs-hi.wav", "mixed-speech/watson-ko.wav",
    "mixed-speech/zh-meeting-farfield.wav", "speakers/sample.wav",
    "speakers2/watson-dutch-duo.wav", "speakers2/watson-ja-call-a.wav",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.shared_media
@pytest.mark.parametrize("name", RECORDINGS)
def test_captions_of_recordings_break_no_rule_but_where_speech_outruns_readers(
    name: str, tmp_path: Path
) -> None:
    samples = load(SHARED_MEDIA / name)
    said = transcribe_samples(samples, tmp_path, LocalModels(), TranscriptConfig())
    language = said.language or "en"
    for house in HOUSES:
        rules = rules_of(house, language)
        cues = cues_of(said.segments, rules)
        assert cues
        broken = [each for each in find_violations(cues, rules) if not each.is_advice]
        print(name, language, house, len(cues), Counter(each.rule for each in broken))
        assert {each.rule for each in broken} <= {CaptionRule.READING_SPEED, CaptionRule.DURATION}
        read = webvtt.from_buffer(StringIO(to_vtt(said.segments, SPEAKERS, rules))).captions
        times = [(cue.start_ms, cue.end_ms) for cue in cues]
        assert len(read) == len(cues)
        assert spans_of(imsc.to_model(tree(to_ebu_tt_d(said.segments, language, rules)))) == times


def tree(document: str) -> ET.ElementTree[ET.Element]:
    return ET.ElementTree(ET.fromstring(document.encode()))  # noqa: S314  (our own)


def spans_of(document: ContentDocument) -> list[tuple[int, int]]:
    """Start (none is 0) and end in milliseconds of each paragraph."""
    paragraphs = [each for each in document.get_body().dfs_iterator() if isinstance(each, P)]
    times = [(each.get_begin() or 0, each.get_end()) for each in paragraphs]
    return [(round(start * 1000), round(end * 1000)) for start, end in times]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("[house]\nlines = 2\nline_columns = \n", "at line 3"),
        ("[house]\nlines = 2\n", "house: HouseRules.title"),
        (
            "[house]\ntitle='a'\nsource=''\nlines = 9\nline_columns = 40\n",
            "house: HouseRules.lines",
        ),
        ("[house]\ntitle='a'\nsource=''\nlines = 2\nline_columns = 40\nspeed = 3\n", "speed"),
        (
            "[house]\ntitle='a'\nsource=''\nlines = 2\nline_columns = 40\n"
            "[house.languages.ja]\nline_columns = 'x'\n",
            "house.languages.ja: HouseRules.line_columns",
        ),
        ("[house]\ntitle='a'\nsource=''\nlines=2\nline_columns=40\nsound='{noise}'\n", "noise"),
        ("house = 3\n", "house: "),
    ],
)
def test_an_error_in_a_table_is_one_sentence_that_names_its_place(
    tmp_path: Path, table: str, named: str
) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(table)
    with pytest.raises(CaptionRulesError) as error:
        read_rules(path)
    assert str(error.value).startswith(f"caption rules {path}: ")
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptionRulesError, match=r"caption rules .*none\.toml: .*No such file"):
        read_rules(tmp_path / "none.toml")


def test_an_operators_house_stands_beside_ours_or_in_place_of_one(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    house = "title = 'Ours'\nsource = ''\nlines = 1\nline_columns = 30\n"
    path.write_text(f"[station]\n{house}[bbc]\n{house}")
    table = read_rules(path)
    assert set(table) == {*HOUSES, "station"}
    assert find_rules(table, "bbc", "en") == find_rules(table, "station", "de")
    assert find_rules(table, "nobody", "en") is None
