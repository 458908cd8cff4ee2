"""Calibrated confidences: others than the model's, of the same words at the same times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.speech.material import load
from benchmarks.speech.plain_loop import transcribe_samples
from models.profiles import digest_of
from models.provider import LocalModels
from models.tasks import TRANSCRIBE
from pipelines.codec import encode
from pipelines.speech.pipeline import (
    TranscriptConfig,
    WordCalibration,
    calibrated,
    word_calibrations,
)
from pipelines.types import TranscriptResult
from tests.pipelines.speech.test_edits import segment
from tests.places import PROJECT

PACKAGED = digest_of("packaged", (TRANSCRIBE,))


def bare(found: TranscriptResult) -> bytes:
    """All but confidences, as it is stored."""
    segments = tuple(
        replace(it, confidence=0.0, words=tuple(replace(word, confidence=0.0) for word in it.words))
        for it in found.segments
    )
    return encode(replace(found, segments=segments, calibrated=False, voices=()))


def test_words_and_times_stay_to_the_byte_where_confidences_are_calibrated(tmp_path: Path) -> None:
    samples = load(PROJECT / "tests/media/speech/one_voice.flac")
    raw, true, unknown = (
        transcribe_samples(samples, tmp_path, LocalModels(), TranscriptConfig(transcriber=name))
        for name in ("", PACKAGED, "another")
    )
    assert raw.segments
    assert (raw.calibrated, true.calibrated, unknown.calibrated) == (False, True, False)
    assert bare(true) == bare(raw)
    assert encode(unknown) == encode(raw)
    assert true == calibrated(raw, word_calibrations()[PACKAGED])
    assert encode(true) != encode(raw)


def test_the_table_is_of_a_transcriber_that_there_is() -> None:
    assert set(word_calibrations()) == {PACKAGED}


@pytest.mark.parametrize("name", [*word_calibrations()])
def test_a_more_probable_word_has_no_lower_confidence(name: str) -> None:
    found = [word_calibrations()[name].confidence(n / 100) for n in range(101)]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 1


def test_a_segment_has_the_share_of_its_words_that_is_right() -> None:
    said = segment(0, "I like tea.", 1000)
    words = tuple(
        replace(word, confidence=sure)
        for word, sure in zip(said.words, (0.9, 0.5, 0.1), strict=True)
    )
    found = TranscriptResult("en", (), (replace(said, words=words),))
    [made] = calibrated(found, WordCalibration(bias=0.0, slope=1.0)).segments
    assert made.confidence == pytest.approx(0.5)
    assert [word.confidence for word in made.words] == pytest.approx([0.9, 0.5, 0.1])
