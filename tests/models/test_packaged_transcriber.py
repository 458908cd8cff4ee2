"""The embedded transcriber: words with times and honest confidences, nothing made up."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from models.backends.packaged.decoding_text import (
    DecodedEntry,
    confidences,
    is_filler,
    pause_frames,
    spelling,
    spoken_words,
)

from models.backends.packaged.transcriber import PackagedTranscriber
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, ChunkTranscript, Samples

TESTS = Path(__file__).resolve().parents[1]
SPEECH = TESTS / "media" / "speech"
SHARED = TESTS.parent / ".." / "shared" / "media" / "speech"


def load(path: Path) -> Samples:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def cut(samples: Samples, start_seconds: float, end_seconds: float) -> AudioChunk:
    start, end = round(start_seconds * SAMPLE_RATE_HZ), round(end_seconds * SAMPLE_RATE_HZ)
    return AudioChunk(samples[start:end])


def text(transcript: ChunkTranscript) -> str:
    return " ".join(word.text for word in transcript.words)


@pytest.fixture(scope="module")
def transcriber() -> PackagedTranscriber:
    return PackagedTranscriber()


@pytest.fixture(scope="module")
def sentence() -> AudioChunk:
    return cut(load(SPEECH / "one_voice.flac"), 3.7, 6.2)


@pytest.fixture(scope="module")
def heard(transcriber: PackagedTranscriber, sentence: AudioChunk) -> ChunkTranscript:
    return transcriber.transcribe([sentence])[0]


def test_a_spoken_sentence_is_understood(heard: ChunkTranscript) -> None:
    truth = json.loads((SPEECH / "truth.json").read_text())
    assert text(heard) == truth["one_voice.flac"]["sentences"][1]["text"]
    assert heard.language == "en"


def test_words_are_in_order_inside_the_chunk_at_the_time_they_are_said(
    heard: ChunkTranscript, sentence: AudioChunk
) -> None:
    time = 0.0
    for word in heard.words:
        assert time <= word.start_seconds < word.end_seconds
        assert 0 < word.confidence < 1
        time = word.end_seconds
    assert time <= len(sentence.samples) / SAMPLE_RATE_HZ
    assert heard.words[0].start_seconds == pytest.approx(3.933 - 3.7, abs=0.1)
    assert heard.words[-1].end_seconds == pytest.approx(5.887 - 3.7, abs=0.15)


def test_a_transcript_does_not_depend_on_what_the_decoder_heard_before(
    transcriber: PackagedTranscriber, sentence: AudioChunk, heard: ChunkTranscript
) -> None:
    loud_noise = 0.5 * np.random.default_rng(1).normal(size=SAMPLE_RATE_HZ).astype(np.float32)
    other = cut(load(SPEECH / "two_voices.flac"), 3.2, 5.3)
    again = transcriber.transcribe([AudioChunk(loud_noise), other, sentence])[2]
    assert again == heard


def test_sentences_of_one_chunk_are_understood_and_stay_in_order(
    transcriber: PackagedTranscriber,
) -> None:
    truth = json.loads((SPEECH / "truth.json").read_text())["two_voices.flac"]["sentences"]
    (several,) = transcriber.transcribe([cut(load(SPEECH / "two_voices.flac"), 0.0, 10.6)])
    assert text(several) == " ".join(sentence["text"] for sentence in truth[:4])
    times = [time for word in several.words for time in (word.start_seconds, word.end_seconds)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(truth[3]["end_ms"] / 1000, abs=0.15)


def test_loudness_does_not_matter(
    transcriber: PackagedTranscriber, sentence: AudioChunk, heard: ChunkTranscript
) -> None:
    quiet = AudioChunk((0.01 * sentence.samples).astype(np.float32))
    assert text(transcriber.transcribe([quiet])[0]) == text(heard)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(np.empty(0, np.float32), id="no samples"),
        pytest.param(np.ones(50, np.float32), id="fifty samples"),
        pytest.param(np.zeros(SAMPLE_RATE_HZ, np.float32), id="digital silence"),
        pytest.param(
            0.1 * np.random.default_rng(5).normal(size=2 * SAMPLE_RATE_HZ), id="white noise"
        ),
        pytest.param(
            0.3 * np.sin(np.arange(2 * SAMPLE_RATE_HZ) * 2 * np.pi * 220 / SAMPLE_RATE_HZ),
            id="a tone",
        ),
    ],
)
def test_what_is_not_speech_has_no_words(
    transcriber: PackagedTranscriber, samples: Samples
) -> None:
    chunk = AudioChunk(samples.astype(np.float32))
    assert transcriber.transcribe([chunk]) == [ChunkTranscript((), None)]


def entries(*words: tuple[str, int, int, float]) -> list[DecodedEntry]:
    return [DecodedEntry(*word) for word in words]


@pytest.mark.parametrize(
    ("path", "seconds"),
    [
        pytest.param(entries(("hoosier", 40, 99, 0.99)), 3.0, id="one word in three seconds"),
        pytest.param(
            entries(("we", 10, 180, 0.4), ("pack", 200, 350, 0.4), ("a", 360, 430, 0.6)),
            5.0,
            id="long words, far apart and doubtful",
        ),
    ],
)
def test_sounds_that_resemble_a_word_now_and_then_are_not_speech(
    path: list[DecodedEntry], seconds: float
) -> None:
    assert spoken_words(path, seconds) == ()


def test_a_short_answer_is_speech() -> None:
    (word,) = spoken_words(entries(("yes", 32, 62, 0.9)), 0.95)
    assert word.text == "yes"


def test_key_terms_are_put_in_where_they_were_probably_said(
    transcriber: PackagedTranscriber, sentence: AudioChunk, heard: ChunkTranscript
) -> None:
    (asked,) = transcriber.transcribe([AudioChunk(sentence.samples, None, ("Market", "Goddard"))])
    assert text(asked) == text(heard).replace("market", "Market")


def test_a_chunk_is_cut_in_the_middle_of_its_long_pauses() -> None:
    assert pause_frames([(0.0, 1.0), (1.2, 2.0), (3.0, 4.0)]) == [250]
    assert pause_frames([]) == []


@pytest.mark.parametrize(
    ("entry", "filler"),
    [
        ("<s>", True),
        ("</s>", True),
        ("<sil>", True),
        ("[NOISE]", True),
        ("++UM++", True),
        ("the(2)", False),
    ],
)
def test_fillers_are_known_by_their_marks(entry: str, filler: bool) -> None:
    assert is_filler(entry) is filler


@pytest.mark.parametrize(
    ("entry", "word"), [("the", "the"), ("the(2)", "the"), ("to(13)", "to"), ("nasa's", "nasa's")]
)
def test_marks_of_pronunciation_are_removed(entry: str, word: str) -> None:
    assert spelling(entry) == word


def test_confidence_rises_with_the_posterior_of_the_word_and_of_its_chunk() -> None:
    alone = [confidences([p])[0] for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert alone == sorted(alone)
    assert all(0 < value < 1 for value in alone)
    assert confidences([0.5, 0.9])[0] > confidences([0.5, 0.1])[0]


def test_words_that_are_probably_wrong_are_left_out() -> None:
    path = [
        DecodedEntry("<s>", 0, 9, 1.0),
        DecodedEntry("good(2)", 10, 29, 0.99),
        DecodedEntry("xylem", 30, 49, 0.0),
        DecodedEntry("morning", 50, 99, 0.4),
    ]
    words = spoken_words(path, 1.0)
    assert [(w.text, w.start_seconds, w.end_seconds) for w in words] == [
        ("good", 0.1, 0.3),
        ("morning", 0.5, 1.0),
    ]


def test_a_chunk_of_improbable_words_has_none() -> None:
    path = [DecodedEntry("word", i * 10, i * 10 + 9, 0.05) for i in range(9)]
    assert spoken_words([*path, DecodedEntry("lucky", 90, 99, 0.5)], 1.0) == ()


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("spk1_snt5.wav", "sunday is the best part of the week"),
        ("ps-goforward.wav", "go forward ten meters"),
        ("whatstheweatherlike.wav", "what's the weather like"),
        ("cards-005.wav", "eight of spades four of clubs seven of hearts"),
    ],
)
def test_short_recordings_of_people_are_understood(
    transcriber: PackagedTranscriber, name: str, said: str
) -> None:
    assert text(transcriber.transcribe([AudioChunk(load(SHARED / name))])[0]) == said


@pytest.mark.shared_media
def test_rain_has_no_words_even_without_the_detector(transcriber: PackagedTranscriber) -> None:
    chunk = cut(load(SHARED / "rain-nospeech.mp3"), 20.0, 26.0)
    assert transcriber.transcribe([chunk]) == [ChunkTranscript((), None)]
