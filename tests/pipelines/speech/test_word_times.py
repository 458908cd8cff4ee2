"""Times of words: a pause belongs to none, what is detected as speech stays."""

from __future__ import annotations

import numpy as np
import pytest

from models.contracts import SAMPLE_RATE_HZ, Samples, Word
from pipelines.speech.alignment import settled

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
