"""Key terms: put in where what was heard sounds like them, and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pocketsphinx
import pytest

from models.backends.embedded.keyterms import Pronounce, sound_distance, with_keyterms
from models.contracts import Word


@pytest.fixture(scope="module")
def pronounce() -> Pronounce:
    found: Pronounce = pocketsphinx.Decoder(loglevel="FATAL", lm=None).lookup_word
    return found


def heard(text: str, confidence: float = 0.5) -> list[Word]:
    return [Word(word, i * 0.4, i * 0.4 + 0.4, confidence) for i, word in enumerate(text.split())]


def text_with(words: list[Word], keyterms: list[str], pronounce: Pronounce) -> str:
    return " ".join(word.text for word in with_keyterms(words, keyterms, pronounce))


@pytest.mark.parametrize(
    ("said", "keyterms", "expected"),
    [
        pytest.param(
            "all the other and says in your data",
            ["utterances"],
            "all the utterances in your data",
            id="one word heard as several",
        ),
        pytest.param(
            "he was not exposed young man",
            ["ill disposed"],
            "he was not ill disposed young man",
            id="a phrase",
        ),
        pytest.param(
            "the page of the book", ["Page"], "the Page of the book", id="the term's own spelling"
        ),
        pytest.param(
            "we deployed copper net is today",
            ["Kubernetes"],
            "we deployed Kubernetes today",
            id="a word that no dictionary has",
        ),
    ],
)
def test_what_sounds_like_a_term_becomes_the_term(
    pronounce: Pronounce, said: str, keyterms: list[str], expected: str
) -> None:
    assert text_with(heard(said), keyterms, pronounce) == expected


@pytest.mark.parametrize(
    ("words", "keyterms"),
    [
        pytest.param(heard("the weather is fine today"), ["Pemberley", "Goddard"], id="unlike"),
        pytest.param(heard("it ran on and on"), ["Ann", "it's"], id="short terms"),
        pytest.param(heard("all the other and says", 0.97), ["utterances"], id="surely heard"),
        pytest.param(heard("nothing to look for"), ["", "   "], id="empty terms"),
        pytest.param([], ["Goddard"], id="nothing heard"),
    ],
)
def test_everything_else_stays(
    pronounce: Pronounce, words: list[Word], keyterms: list[str]
) -> None:
    assert with_keyterms(words, keyterms, pronounce) == tuple(words)


def test_a_terms_words_share_the_time_of_what_they_replace(pronounce: Pronounce) -> None:
    before = heard("he was not exposed young man")
    words = with_keyterms(before, ["ill disposed"], pronounce)
    ill, disposed = words[3], words[4]
    assert (ill.start_seconds, disposed.end_seconds) == (
        before[3].start_seconds,
        before[3].end_seconds,
    )
    assert ill.end_seconds - ill.start_seconds < disposed.end_seconds - disposed.start_seconds
    assert all(left.end_seconds <= right.start_seconds for left, right in pairwise(words))
    assert all(0 <= word.confidence <= 1 for word in words)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        pytest.param("D AE SH", "D AE SH", 0.0, id="the same"),
        pytest.param("D AE SH", "T AE SH", 0.5 / 3, id="sounds of one class"),
        pytest.param("D AE SH", "M AE SH", 1 / 3, id="other sounds"),
        pytest.param("D AE SH", "D AE", 1 / 3, id="one too few"),
        pytest.param("", "D", 1.0, id="nothing against something"),
    ],
)
def test_sounds_are_compared_phone_by_phone(one: str, other: str, distance: float) -> None:
    found = sound_distance(tuple(one.split()), tuple(other.split()))
    assert found == pytest.approx(distance)
