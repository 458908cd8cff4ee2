"""Corrections of segments: what stays, what moves, what cannot be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pipelines.speech.edits import (
    MOST_WORDS,
    MOST_WORDS_AT_ONCE,
    Edit,
    EditError,
    Merge,
    SegmentChange,
    Splice,
    Split,
    aligned,
    differences,
    passages_of,
    replaced,
    speakers_after,
    splices_of,
    turns_after,
    words_of,
)
from pipelines.types import Speaker, SpeakerTurn, TranscriptSegment, TranscriptWord
from tests.stopwatch import Stopwatch
from tests.tables import every

SPEAKERS = [Speaker("a", "Speaker 1", 3.0), Speaker("b", "Speaker 2", 2.0)]


def segment(index: int, text: str, start_ms: int, speaker: str = "a") -> TranscriptSegment:
    """Its words last 400 ms each, with 100 ms between them."""
    words = tuple(
        TranscriptWord(word, at, at + 400, 0.5, speaker)
        for at, word in zip(range(start_ms, start_ms + 10**6, 500), text.split(), strict=False)
    )
    return TranscriptSegment(
        index, start_ms, words[-1].end_ms, text, speaker, 0.5, words, language="en"
    )


SAID = [segment(0, "I like green tees.", 1000), segment(1, "So do I.", 5000, "b"),
        segment(2, "Good.", 8000)]  # fmt: skip


def edited(*changes: SegmentChange, **others: tuple[Split | Merge, ...]) -> list[Splice]:
    return splices_of(Edit(changes, **others), SAID, SPEAKERS, 10_000)  # type: ignore[arg-type]


def times(found: TranscriptSegment) -> list[tuple[str, int, int]]:
    return [(word.text, word.start_ms, word.end_ms) for word in found.words]


@pytest.mark.parametrize(
    ("text", "expected", "estimated"),
    [
        pytest.param(
            "I like green teas.",
            [("I", 1000, 1400), ("like", 1500, 1900), ("green", 2000, 2400), ("teas.", 2500, 2900)],
            (3,), id="a word for a word",
        ),
        pytest.param(
            "I like Green, tees!",
            [("I", 1000, 1400), ("like", 1500, 1900), ("Green,", 2000, 2400),
             ("tees!", 2500, 2900)],
            (), id="another spelling",
        ),
        pytest.param(
            "I tees.", [("I", 1000, 1400), ("tees.", 2500, 2900)], (), id="words that go",
        ),
        pytest.param(
            "I like very green tees.",
            [("I", 1000, 1400), ("like", 1500, 1900), ("very", 1900, 2000), ("green", 2000, 2400),
             ("tees.", 2500, 2900)],
            (2,), id="a word in a pause",
        ),
        pytest.param(
            "I like green teas or so.",
            [("I", 1000, 1400), ("like", 1500, 1900), ("green", 2000, 2400),
             ("teas", 2500, 2677), ("or", 2677, 2766), ("so.", 2766, 2900)],
            (3, 4, 5), id="more words",
        ),
    ],
)  # fmt: skip
def test_words_that_stay_keep_their_times(
    text: str, expected: list[tuple[str, int, int]], estimated: tuple[int, ...]
) -> None:
    [splice] = edited(SegmentChange(0, text))
    [found] = splice.segments
    assert times(found) == expected
    assert found.estimated_words == estimated
    assert found.text == text
    kept = [word.confidence for at, word in enumerate(found.words) if at not in estimated]
    assert set(kept) <= {0.5}


def test_a_word_without_room_takes_time_from_its_neighbours_alone() -> None:
    [splice] = edited(SegmentChange(0, "I like so so so very green tees."))
    [found] = splice.segments
    assert [found.words[0], found.words[-1]] == [SAID[0].words[0], SAID[0].words[-1]]
    assert found.estimated_words == (1, 2, 3, 4, 5, 6)
    ends = [(word.start_ms, word.end_ms) for word in found.words]
    assert all(start < end for start, end in ends)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


@every(
    ("before", "after"),
    [
        pytest.param("a b", "a c", id="two words that alternate"),
        pytest.param("a b", "b b b a", id="more of them"),
        pytest.param("a b", "a x a b y b", id="new words everywhere"),
    ],
)
@every("step_ms", [1, 60, 500])
def test_what_an_edit_takes_does_not_depend_on_its_words(
    before: str, after: str, step_ms: int
) -> None:
    texts = [(f"{each} " * MOST_WORDS).split()[:MOST_WORDS] for each in (before, after)]
    said = tuple(
        TranscriptWord(text, at * step_ms, (at + 1) * step_ms, 0.5, "a")
        for at, text in enumerate(texts[0])
    )
    whole = TranscriptSegment(0, 0, said[-1].end_ms, " ".join(texts[0]), "a", 0.5, said)
    edit = Edit((SegmentChange(0, " ".join(texts[1])),))
    with Stopwatch() as watch:
        [splice] = splices_of(edit, [whole], SPEAKERS, None)
        assert [*differences([whole], splice.segments)]
    assert watch.seconds < 3
    [found] = splice.segments
    assert [word.text for word in found.words] == texts[1]
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(found.words))


def test_an_edit_and_its_segments_have_so_many_words_at_most() -> None:
    full = " ".join(["so"] * MOST_WORDS)
    many = [segment(at, "so", 10**7 * at) for at in range(MOST_WORDS_AT_ONCE // MOST_WORDS + 2)]
    changes = [SegmentChange(at, full, end_ms=10**7 * (at + 1)) for at in range(len(many))]
    fitting = Edit(tuple(changes[:-2]))
    splices = splices_of(fitting, many, SPEAKERS, None)
    assert sum(len(it.segments[0].words) for it in splices) == MOST_WORDS_AT_ONCE
    cases = {
        "segments[50].text": Edit(tuple(changes[:-1])),
        "segments[0].text": Edit((replace(changes[0], text=full + " so"),)),
        "merge[0].count": Edit((changes[0],), merge=(Merge(0, 2),)),
    }
    for param, edit in cases.items():
        with pytest.raises(EditError) as raised:
            splices_of(edit, many, SPEAKERS, None)
        assert raised.value.param == param


def test_what_is_so_already_changes_nothing() -> None:
    assert edited(SegmentChange(0, " I  like green tees. ", "a"), SegmentChange(1)) == []


def test_a_text_without_words_removes_its_segment() -> None:
    assert edited(SegmentChange(2, "  ")) == [Splice(2, 1, ())]


def test_segments_are_split_and_merged_with_the_times_of_their_words() -> None:
    halves, merged = edited(split=(Split(0, 2),), merge=(Merge(1, 2),))
    assert [each.text for each in halves.segments] == ["I like", "green tees."]
    assert [(each.start_ms, each.end_ms) for each in halves.segments] == [
        (1000, 1900),
        (2000, 2900),
    ]
    [one] = merged.segments
    assert (merged.first, merged.count, one.text) == (1, 2, "So do I. Good.")
    assert (one.start_ms, one.end_ms) == (5000, 8400)
    assert {one.speaker, *(word.speaker for word in one.words)} == {"b"}


def test_a_changed_text_is_split_where_its_words_are() -> None:
    [splice] = edited(SegmentChange(0, "I like teas. Always."), split=(Split(0, 3), Split(0, 1)))
    assert [each.text for each in splice.segments] == ["I", "like teas.", "Always."]
    assert [each.estimated_words for each in splice.segments] == [(), (1,), (0,)]


def test_a_changed_speaker_has_the_segments_turn_and_its_time() -> None:
    turns = [SpeakerTurn("a", 900, 4000), SpeakerTurn("b", 4900, 6500)]
    [splice] = edited(SegmentChange(0, speaker="b"))
    assert splice.segments[0].speaker == "b"
    found = turns_after(turns, [splice], SAID)
    assert found == [SpeakerTurn("a", 900, 1000), SpeakerTurn("b", 1000, 2900),
                     SpeakerTurn("a", 2900, 4000), SpeakerTurn("b", 4900, 6500)]  # fmt: skip
    assert [each.speaking_seconds for each in speakers_after(SPEAKERS, found)] == [1.2, 3.5]


@every(
    ("edit", "param"),
    [
        (Edit((SegmentChange(3, "x"),)), "segments[0].index"),
        (Edit((SegmentChange(0, "x"), SegmentChange(0, "y"))), "segments[1].index"),
        (Edit((SegmentChange(0, speaker="c"),)), "segments[0].speaker"),
        (Edit((SegmentChange(0, start_ms=2000, end_ms=2000),)), "segments[0].endTime"),
        (Edit((SegmentChange(0, start_ms=3000),)), "segments[0].endTime"),
        (Edit((SegmentChange(0, end_ms=5001),)), "segments[0].endTime"),
        (Edit((SegmentChange(1, start_ms=2899),)), "segments[0].startTime"),
        (Edit((SegmentChange(2, end_ms=10_001),)), "segments[0].endTime"),
        (Edit((SegmentChange(2, "x " * 401),)), "segments[0].text"),
        (Edit(split=(Split(0, 4),)), "split[0].word"),
        (Edit(split=(Split(3, 1),)), "split[0].index"),
        (Edit(split=(Split(0, 1), Split(0, 1))), "split[1].index"),
        (Edit((SegmentChange(0, ""),), split=(Split(0, 1),)), "split[0].word"),
        (Edit(merge=(Merge(2, 2),)), "merge[0].count"),
        (Edit(merge=(Merge(0, 2), Merge(1, 2))), "merge[1].count"),
        (Edit(split=(Split(1, 1),), merge=(Merge(0, 2),)), "split[0].index"),
    ],
)
def test_what_cannot_be_names_the_field(edit: Edit, param: str) -> None:
    with pytest.raises(EditError) as caught:
        splices_of(edit, SAID, SPEAKERS, 10_000)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello,  world!", ["Hello,", "world!"]),
        ("我喜欢绿茶。", ["我", "喜欢", "绿茶。"]),
        (" ", []),
    ],
)
def test_words_are_those_of_the_script(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_measured_times_go_to_estimated_words_between_those_that_stay() -> None:
    [splice] = edited(SegmentChange(0, "I like blue teas."))
    [found] = splice.segments
    assert [*passages_of(found)] == [(0, 4)]
    spans = [(900, 1300), (1550, 1950), (1700, 2300), (2310, 3900)]
    measured = aligned(found, 0, spans, (800, 3500))
    assert times(measured) == [("I", 1000, 1400), ("like", 1500, 1900), ("blue", 1900, 2300),
                               ("teas.", 2310, 3500)]  # fmt: skip
    assert (measured.estimated_words, measured.end_ms) == ((), 3500)


def test_of_a_long_segment_the_words_around_the_new_ones_are_aligned() -> None:
    long = segment(0, " ".join(f"w{n}" for n in range(100)), 0)
    text = long.text.replace("w50", "new")
    [splice] = splices_of(Edit((SegmentChange(0, text),)), [long], SPEAKERS, None)
    assert [*passages_of(splice.segments[0])] == [(42, 59)]
    assert splice.segments[0].words[49] == long.words[49]


PAIRS = [("ben it", "Bennet"), ("Webber", "Weber"), ("New York", "York"), ("c", "sea")]
REPLACED = {
    "lower case in whatever case": ("BEN It said", "Bennet said"),
    "others as they are": ("webber, WEBBER", "webber, WEBBER"),
    "punctuation stays": ("(Webber), so", "(Weber), so"),
    "a genitive stays": ("Webber’s ben it's", "Weber’s Bennet's"),
    "whole words": ("Webbers and C#", "Webbers and C#"),
    "not across a sentence": ("Ben. It rains", "Ben. It rains"),
    "the longest first, and none twice": ("New York C", "York sea"),
}


@pytest.mark.parametrize(("said", "written"), REPLACED.values(), ids=list(REPLACED))
def test_words_are_written_as_the_vocabulary_has_them(said: str, written: str) -> None:
    found = replaced(segment(0, said, 1000).words, PAIRS)
    assert " ".join(word.text for word in found) == written


def test_other_words_share_the_time_and_are_as_certain_as_the_least_certain() -> None:
    first, second, third = segment(0, "ask ben it", 1000).words
    words = [first, replace(second, confidence=0.9), replace(third, confidence=0.2)]
    assert replaced(words, PAIRS)[1:] == [
        TranscriptWord("Bennet", second.start_ms, third.end_ms, 0.2, "a")
    ]
    split = replaced(words, [("ask", "a tall")])
    assert [(it.text, it.start_ms, it.end_ms) for it in split[:2]] == [
        ("a", 1000, 1080), ("tall", 1080, 1400)]  # fmt: skip
    # As many words keep their times; those of several speakers stay, and those without room.
    kept = replaced(words, [("ask ben", "Ask Benn")])
    assert [it.start_ms for it in kept] == [it.start_ms for it in words]
    others = [first, second, replace(third, speaker="b")]
    assert replaced(others, PAIRS) == others
    short = [replace(first, end_ms=first.start_ms + 1)]
    assert replaced(short, [("ask", "a b")]) == short
