"""Summaries on a tiny random Qwen3-VL: whatever it thinks, each sentence rests on a line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models.backends.transformers import pick_hardware
from models.backends.transformers.describer import (
    UnusableAnswerError,
    VisionLanguageDescriber,
    complete_sentences,
    summary_question,
)
from models.contracts import Excerpt, SummarySentence
from tests.models.tiny_models import save_tiny_vision_language
from tests.tables import every

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
