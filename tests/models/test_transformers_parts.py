"""The pure parts around transformers models: guards, words of tokens, gaps, batches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import median_filter
from transformers import AutoTokenizer, M2M100ForConditionalGeneration
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from models.backends.decoded_text import (
    Decoded,
    compression_ratio,
    is_loop,
    is_silence,
    repeats_itself,
    words_of_tokens,
)
from models.backends.packaged.voices import PyannoteSpeakerSegmenter, open_pyannote_segmenter
from models.backends.questions import UnusableAnswerError, complete_sentences, summary_question
from models.backends.transformers import Batches, pick_hardware, texts
from models.backends.transformers.alignment import (
    Alphabet,
    _smoothed,
    fill_gaps,
    first_columns,
    romanise,
    spread,
)
from models.backends.transformers.describer import VisionLanguageDescriber
from models.backends.transformers.texts import M2M100Translator
from models.contracts import (
    ACTIVITY_WINDOW_SAMPLES,
    WRITTEN_LANGUAGES,
    DeviceMemoryError,
    Excerpt,
    Samples,
    SourceText,
    SummarySentence,
    written_language,
)
from models.provider import LocalModels
from models.registry import REGISTRY
from models.tasks import SEGMENT_SPEAKERS
from pipelines.media.audio import SampleReader, read_blocks
from tests.models.tiny_models import save_tiny_translator, save_tiny_vision_language
from tests.tables import every

SENTENCE = "the quick brown fox jumps over the lazy dog and then it sleeps in the warm sun"


@every(
    ("text", "loops"),
    [
        (SENTENCE, False),
        ("no no no no no", False),
        ("no " * 12, True),
        ("thank you very much " * 5, True),
        ("we will rock you we will rock you", False),
        ("Thanks for watching! " * 4, True),
        ("a b c d e f " * 4, True),
        ("", False),
    ],
    ids=[
        "a sentence",
        "a word five times, as people do",
        "a word twelve times",
        "a phrase five times",
        "a refrain twice",
        "what models say over music, four times",
        "a long run four times",
        "nothing",
    ],
)
def test_loops_are_told_from_speech(text: str, loops: bool) -> None:
    assert is_loop(text) is loops


def test_the_compression_ratio_is_that_of_zlib() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio(SENTENCE) < 1.5
    assert compression_ratio("na " * 100) > 10


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3))
def test_up_to_three_words_are_never_a_loop(words: list[str]) -> None:
    assert not repeats_itself(words)


@every(
    ("mean", "no_speech", "silent"),
    [(-1.5, 0.9, True), (-0.2, 0.9, False), (-1.5, 0.1, False)],
    ids=["unsure and silent", "sure of its words", "unsure of words only"],
)
def test_silence_needs_both_doubts(mean: float, no_speech: float, silent: bool) -> None:
    assert is_silence(Decoded("x", mean, no_speech)) is silent


PIECES = {
    1: " Hel",
    2: "lo",
    3: ",",
    4: " wor",
    5: "ld",
    6: " -",
    7: " ",
    8: "42",
    9: " Za",
    10: "z",
    11: "\x00\x06",
}


def decode(tokens: list[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


@every(
    ("tokens", "words"),
    [
        ([1, 2, 3, 4, 5], ["Hello,", "world"]),
        ([1, 2, 6, 4, 5], ["Hello-", "world"]),
        ([7, 8, 4, 5], ["42", "world"]),
        ([6, 1, 2], ["Hello"]),
        ([1, 11, 2, 3, 11, 4, 5], ["Hello,", "world"]),
        ([], []),
    ],
    ids=[
        "pieces",
        "a lone dash",
        "a lone space",
        "a dash in front",
        "control characters",
        "nothing",
    ],
)
def test_tokens_become_words(tokens: list[int], words: list[str]) -> None:
    found = words_of_tokens(tokens, [-0.5] * len(tokens), decode)
    assert [word.text for word in found] == words
    assert all(0 < word.confidence <= 1 for word in found)


def test_a_character_spread_over_tokens_is_one_piece() -> None:
    raw = " né".encode()
    found = words_of_tokens(
        list(raw), [-0.1] * len(raw), lambda ids: bytes(ids).decode(errors="replace")
    )
    assert [word.text for word in found] == ["né"]


def test_languages_without_spaces_get_a_word_a_token() -> None:
    pieces = {1: "日本", 2: "語", 3: "。"}
    found = words_of_tokens(
        [1, 2, 3], [-0.1] * 3, lambda ids: "".join(pieces[i] for i in ids), spaceless=True
    )
    assert [word.text for word in found] == ["日本", "語。"]


def test_an_alphabet_skips_what_it_lacks_and_separates_words() -> None:
    alphabet = Alphabet.of({"<pad>": 0, "|": 4, "A": 5, "B": 6}, blank=0)
    targets = alphabet.targets(["ab!", "42", "B"])
    assert targets.tokens == (5, 6, 4, 6)
    assert targets.word_of == (0, 0, -1, 2)


def test_other_scripts_are_romanised() -> None:
    assert romanise("привет") == "privet"
    alphabet = Alphabet.of({letter: i + 1 for i, letter in enumerate("privet")}, blank=0)
    assert alphabet.targets(["привет"]).tokens == (1, 2, 3, 4, 5, 6)


@given(
    st.lists(st.text("abc1", min_size=1, max_size=5), min_size=1, max_size=12),
    st.data(),
)
def test_filled_gaps_are_in_order_and_inside(words: list[str], data: st.DataObject) -> None:
    seconds = 10.0
    cuts = sorted(
        data.draw(st.lists(st.floats(0, seconds), min_size=2 * len(words), max_size=2 * len(words)))
    )
    spans = [
        (cuts[2 * i], cuts[2 * i + 1]) if data.draw(st.booleans()) else None
        for i in range(len(words))
    ]
    filled = fill_gaps(words, spans, seconds)
    assert len(filled) == len(words)
    assert all(0 <= start <= end <= seconds + 1e-9 for start, end in filled)
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(filled))
    assert all(f == s for f, s in zip(filled, spans, strict=True) if s is not None)


def test_time_is_spread_by_letters() -> None:
    assert spread(["a", "bbb"], 1.0, 5.0) == [(1.0, 2.0), (2.0, 5.0)]


class Memory:
    """A device that holds ``room`` items; counts what it was given."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried: list[int] = []

    def call(self, items: Sequence[int]) -> list[int]:
        self.tried.append(len(items))
        if len(items) > self.room:
            raise torch.OutOfMemoryError
        return [item * 2 for item in items]


def test_out_of_memory_halves_the_batch_and_goes_on() -> None:
    memory = Memory(room=3)
    batches = Batches(8)
    assert batches.run(memory.call, list(range(10))) == [n * 2 for n in range(10)]
    assert memory.tried == [8, 4, 2, 2, 2, 2, 2]
    assert batches.limit == 2, "for the time being"


def test_the_limit_recovers_once_a_neighbour_gave_its_memory_back() -> None:
    memory = Memory(room=3)
    batches = Batches(8)
    batches.run(memory.call, list(range(8)))
    memory.room = 8
    memory.tried.clear()
    batches.run(memory.call, list(range(200)))
    assert memory.tried[:4] == [2, 2, 2, 2]
    assert memory.tried[-2] == 8
    assert set(memory.tried[:-1]) == {2, 4, 8}
    assert batches.limit == 8


def test_one_item_is_tried_again_while_a_neighbour_has_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, pauses = Memory(room=0), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        memory.room = len(pauses) - 1

    monkeypatch.setattr("models.backends.transformers.time.sleep", pause)
    assert Batches(1).run(memory.call, [5]) == [10]
    assert pauses == [0.5, 1.0]


def test_one_item_that_does_not_fit_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.backends.transformers.time.sleep", lambda _: None)
    with pytest.raises(DeviceMemoryError):
        Batches(4).run(Memory(room=0).call, [1, 2])


def test_the_next_batch_is_made_ready_while_one_is_computed() -> None:
    second = threading.Event()

    def prepare(items: Sequence[int]) -> list[int]:
        if 2 in items:
            second.set()
        return list(items)

    def call(items: list[int]) -> list[int]:
        assert second.wait(30), "the second batch is made ready before the first is done"
        return items

    assert Batches(2).run_prepared(prepare, call, [0, 1, 2]) == [0, 1, 2]


def test_threads_take_turns_to_compute() -> None:
    batches, busy = Batches(1), threading.Lock()

    def call(items: Sequence[int]) -> list[int]:
        assert busy.acquire(blocking=False)
        time.sleep(0.01)
        busy.release()
        return list(items)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: batches.run(call, [n, n]), range(8)))
    assert found == [[n, n] for n in range(8)]


def test_the_median_is_scipys() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 11))
    expected = median_filter(values, size=(1, 1, 7), mode="reflect")
    assert _smoothed(torch.from_numpy(values)).numpy() == pytest.approx(expected)
    short = median_filter(values[..., :2], size=(1, 1, 7), mode="reflect")
    assert _smoothed(torch.from_numpy(values[..., :2])).numpy() == pytest.approx(short)


def test_a_call_that_loses_results_is_found_out() -> None:
    with pytest.raises(ValueError, match="2 inputs gave 1 results"):
        Batches(2).run(lambda items: items[:1], [1, 2])


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [("cpu", "float12", "number format"), ("cuda", "auto", "GPU")],
    ids=["no such format", "no such GPU"],
)
def test_impossible_hardware_is_named(device: str, dtype: str, message: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=message):
        pick_hardware(device, dtype)


def cheapest(costs: list[list[float]]) -> float:
    """Of all paths from the first cell to the last, step by step."""
    rows, columns = len(costs), len(costs[0])
    best = [[float("inf")] * columns for _ in range(rows)]
    for row in range(rows):
        for column in range(columns):
            before = [
                best[r][c]
                for r, c in ((row - 1, column - 1), (row - 1, column), (row, column - 1))
                if r >= 0 and c >= 0
            ]
            best[row][column] = costs[row][column] + (min(before) if before else 0.0)
    return best[-1][-1]


@given(
    st.integers(1, 6).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(-9, 9).map(float), min_size=width, max_size=width),
            min_size=1,
            max_size=6,
        )
    )
)
def test_rows_begin_where_the_cheapest_path_enters_them(costs: list[list[float]]) -> None:
    """A path that enters each row there, and leaves it there or one before, costs the least."""
    firsts = first_columns(np.array(costs))
    assert firsts[0] == 0
    assert all(one <= two for one, two in pairwise(firsts))
    last = len(costs[0]) - 1
    spent = 0.0
    for row, first in enumerate(firsts):
        if row + 1 == len(firsts):
            spent += sum(costs[row][first : last + 1])
        else:
            # Down or diagonally into the next row: the cell above its start may be left out.
            following = firsts[row + 1]
            straight = sum(costs[row][first : following + 1])
            across = sum(costs[row][first:following]) if following > first else straight
            spent += min(straight, across)
    assert spent == pytest.approx(cheapest(costs))


@every(
    ("pieces", "spans"),
    [
        ([" Hello", ",", " wor", "ld", "."], [(0, 1), (2, 4)]),
        ([" ", "Hi", "!", " you"], [(1, 2), (3, 4)]),
    ],
    ids=["marks after words", "a lone space"],
)
def test_words_know_their_tokens_without_the_marks(
    pieces: list[str], spans: list[tuple[int, int]]
) -> None:
    words = words_of_tokens(
        range(len(pieces)), [0.0] * len(pieces), lambda ids: "".join(pieces[each] for each in ids)
    )
    assert [(word.first, word.after) for word in words] == spans


LINES = ("Good morning.", "It rains all day.", "音楽が流れる。")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory) -> VisionLanguageDescriber:
    folder = save_tiny_vision_language(tmp_path_factory.mktemp("summarizer"))
    return VisionLanguageDescriber(str(folder), pick_hardware("cpu"))


@pytest.mark.parametrize("lines", [LINES[:1], LINES, LINES * 40], ids=len)
def test_every_sentence_rests_on_a_line(
    summarizer: VisionLanguageDescriber, lines: tuple[str, ...]
) -> None:
    [sentences] = summarizer.summarize([Excerpt(lines, 4)])
    assert 1 <= len(sentences) <= 4
    for sentence in sentences:
        assert 0 <= sentence.line < len(lines)
        assert 4 <= len(sentence.text) <= 200
        assert sentence.text == sentence.text.strip()
        assert sentence.text.isprintable()


def test_an_answer_without_a_whole_sentence_is_an_error(
    summarizer: VisionLanguageDescriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.backends.transformers.describer.SUMMARY_ROOM", 12)
    with pytest.raises(UnusableAnswerError):
        summarizer.summarize([Excerpt(LINES, 2)])


@every(
    ("text", "expected"),
    [
        ("", []),
        ("{}", []),
        ('[{"line":1,"text":"It rains."}]', [(1, "It rains.")]),
        ('[{"line":1,"text":"It rains."},{"line":0,"text":"They gre', [(1, "It rains.")]),
        ('[{"line":3,"text":"It rains."}]', []),
        ('[{"line":-1,"text":"It rains."}]', []),
        ('[{"line":0,"text":"a\\u0000bcd"}]', []),
        ('[{"line":2,"text":"音楽が流れる。"}]', [(2, "音楽が流れる。")]),
        ('[{"line":0,"text":"A one."},{"line":0,"text":"A two."},{"line":0,"text":"Over."}]',
         [(0, "A one."), (0, "A two.")]),
    ],
)  # fmt: skip
def test_only_whole_sentences_on_lines_that_are_there_count(
    text: str, expected: list[tuple[int, str]]
) -> None:
    found = complete_sentences(text, Excerpt(LINES, 2))
    assert found == tuple(SummarySentence(*each) for each in expected)


def test_lines_are_numbered_in_the_question() -> None:
    question = summary_question(Excerpt(LINES, 1))
    assert "in one sentence" in question
    assert question.endswith("\n\n0: Good morning.\n1: It rains all day.\n2: 音楽が流れる。")


TEXTS = [
    SourceText("good morning", "en", "de"),
    SourceText("guten tag allerseits wie geht es", "de-AT", "fr"),
    SourceText("good morning", "en", "fr"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_translator(tmp_path_factory.mktemp("m2m100"))


@pytest.fixture(scope="module")
def model(folder: Path) -> M2M100Translator:
    return M2M100Translator(str(folder), pick_hardware("cpu"), max_batch=2)


def test_texts_are_translated_as_the_library_does_it_one_by_one(
    folder: Path, model: M2M100Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_MOST_TOKENS", 40)  # random weights come to no end
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    network: Any = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    expected = []
    for text in TEXTS:
        tokenizer.src_lang = text.language.split("-")[0]
        output = network.generate(
            **tokenizer([text.text], return_tensors="pt"),
            forced_bos_token_id=tokenizer.get_lang_id(text.target),
            num_beams=5,
            max_length=40,
        )
        expected += tokenizer.batch_decode(output[:, 2:], skip_special_tokens=True)
    assert model.translate_texts(TEXTS) == expected
    assert expected[0] != expected[2], "the language makes a difference"


def test_the_languages_are_those_of_the_tokenizer(model: M2M100Translator) -> None:
    assert {*FAIRSEQ_LANGUAGE_CODES["m2m100"]} == WRITTEN_LANGUAGES
    names = [written_language(tag) for tag in ("pt-BR", "nb", "fil", "jv", "yue", "nn-NO")]
    assert names == ["pt", "no", "tl", "jv", "zh", "no"]
    with pytest.raises(ValueError, match="tlh"):
        model.translate_texts([SourceText("nuqneH", "tlh", "en")])


SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"


@pytest.fixture(scope="module")
def segmenter() -> PyannoteSpeakerSegmenter:
    row = replace(REGISTRY["gpu"][SEGMENT_SPEAKERS], device="cpu", max_batch=2)
    return open_pyannote_segmenter(row, None)


@pytest.fixture(scope="module")
def windows() -> list[Samples]:
    reader = SampleReader(read_blocks(SPEECH / "two_voices.flac"))
    first, second = (reader.read(at, at + ACTIVITY_WINDOW_SAMPLES) for at in (0, 80_000))
    return [first, second, np.zeros(0, np.float32)]


def test_it_finds_what_the_packaged_network_finds(
    segmenter: PyannoteSpeakerSegmenter, windows: list[Samples]
) -> None:
    packaged = LocalModels().get(SEGMENT_SPEAKERS).segment(windows)
    for one, other in zip(segmenter.segment(windows), packaged, strict=True):
        assert one.speech == pytest.approx(other.speech, abs=1e-3)
        assert np.mean(one.speaking != other.speaking) < 1e-3
    assert packaged[0].speaking.any(axis=0).sum() == 2


def test_the_library_reports_nothing_to_its_makers(segmenter: PyannoteSpeakerSegmenter) -> None:
    from pyannote.audio.telemetry.metrics import is_metrics_enabled

    assert os.environ["PYANNOTE_METRICS_ENABLED"] == "0"
    assert not is_metrics_enabled()
