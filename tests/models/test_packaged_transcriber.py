"""The packaged transcriber: words with times, languages with probabilities, nothing made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import ctranslate2
import numpy as np
import pytest

from models.backends.decoded_text import Decoded
from models.backends.packaged import transcriber as module
from models.backends.packaged.transcriber import (
    CTranslate2Transcriber,
    open_transcriber,
    window_seconds,
)
from models.contracts import (
    SAMPLE_RATE_HZ,
    SPOKEN_LANGUAGES,
    AudioChunk,
    ChunkTranscript,
    Samples,
    is_in_another_script,
)
from models.registry import PACKAGED, WHISPER_BASE
from models.tasks import TRANSCRIBE
from pipelines.speech.regions import Chunk
from pipelines.speech.transcribe import ChunkDecoder
from tests.tables import every

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


def plain(spoken: str) -> str:
    return "".join(c for c in spoken.lower() if c.isalnum() or c.isspace())


@pytest.fixture(scope="module")
def transcriber() -> CTranslate2Transcriber:
    return open_transcriber(PACKAGED[TRANSCRIBE], None)


@pytest.fixture(scope="module")
def sentence() -> AudioChunk:
    return cut(load(SPEECH / "one_voice.flac"), 3.7, 6.2)


@pytest.fixture(scope="module")
def transcript(transcriber: CTranslate2Transcriber, sentence: AudioChunk) -> ChunkTranscript:
    return transcriber.transcribe([sentence])[0]


def test_a_spoken_sentence_is_transcribed_in_its_language(transcript: ChunkTranscript) -> None:
    truth = json.loads((SPEECH / "truth.json").read_text())
    assert plain(text(transcript)) == truth["one_voice.flac"]["sentences"][1]["text"]
    assert transcript.language == "en"
    assert transcript.language_probability == pytest.approx(1.0, abs=0.2)


def test_words_are_in_order_inside_the_chunk_at_their_times(
    transcript: ChunkTranscript, sentence: AudioChunk
) -> None:
    time = 0.0
    for word in transcript.words:
        assert time <= word.start_seconds <= word.end_seconds
        assert 0 < word.confidence <= 1
        time = word.end_seconds
    assert time <= len(sentence.samples) / SAMPLE_RATE_HZ
    assert transcript.words[0].start_seconds == pytest.approx(3.933 - 3.7, abs=0.25)
    assert transcript.words[-1].end_seconds == pytest.approx(5.887 - 3.7, abs=0.25)


def test_a_transcript_depends_neither_on_its_batch_nor_on_the_number_of_threads(
    sentence: AudioChunk, transcript: ChunkTranscript
) -> None:
    other = CTranslate2Transcriber(WHISPER_BASE.read(None), threads=2, max_batch=3)
    noise = 0.1 * np.random.default_rng(1).normal(size=SAMPLE_RATE_HZ).astype(np.float32)
    voices = load(SPEECH / "two_voices.flac")
    batch = [AudioChunk(noise), cut(voices, 3.2, 5.3), cut(voices, 0.0, 10.6), sentence]
    assert other.transcribe(batch)[3] == transcript


def test_a_model_is_opened_from_a_folder_as_from_bytes(
    tmp_path: Path, sentence: AudioChunk, transcript: ChunkTranscript
) -> None:
    for name, data in WHISPER_BASE.read(None).items():
        (tmp_path / name).write_bytes(data)
    assert CTranslate2Transcriber(tmp_path).transcribe([sentence]) == [transcript]


@pytest.mark.parametrize("gain", [0.01, 0.1])
def test_a_quiet_sentence_has_the_same_words(
    transcriber: CTranslate2Transcriber,
    sentence: AudioChunk,
    transcript: ChunkTranscript,
    gain: float,
) -> None:
    quiet = AudioChunk((gain * sentence.samples).astype(np.float32))
    assert text(transcriber.transcribe([quiet])[0]) == text(transcript)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(np.empty(0, np.float32), id="no samples"),
        pytest.param(np.ones(50, np.float32), id="fifty samples"),
        pytest.param(np.zeros(SAMPLE_RATE_HZ, np.float32), id="digital silence"),
    ],
)
def test_what_cannot_hold_a_word_has_none(
    transcriber: CTranslate2Transcriber, samples: Samples
) -> None:
    assert transcriber.transcribe([AudioChunk(samples)]) == [ChunkTranscript((), None)]


@every(("seconds", "window"), [(0.5, 10), (11.9, 20), (26.0, 30), (30.0, 30)], ids=str)
def test_a_window_is_as_long_as_its_chunk_needs(seconds: float, window: int) -> None:
    assert window_seconds(np.zeros(round(seconds * SAMPLE_RATE_HZ), np.float32)) == window


def test_a_chunk_beyond_the_full_window_is_rejected(transcriber: CTranslate2Transcriber) -> None:
    with pytest.raises(ValueError, match="longer than 30 seconds"):
        transcriber.transcribe([AudioChunk(np.ones(31 * SAMPLE_RATE_HZ, np.float32))])


def test_a_given_language_is_kept_and_an_unknown_one_is_detected(
    transcriber: CTranslate2Transcriber, sentence: AudioChunk
) -> None:
    samples = sentence.samples
    chunks = [AudioChunk(samples, language=tag) for tag in ("en-GB", "de", "zz")]
    british, german, unknown = transcriber.transcribe(chunks)
    assert (british.language, british.language_probability) == ("en", 1.0)
    assert german.language == "de"
    assert unknown.language == "en"


@pytest.mark.shared_media
def test_key_terms_prompt_the_decoder(transcriber: CTranslate2Transcriber) -> None:
    samples = load(SHARED / "cards-002.wav")
    chunks = [AudioChunk(samples), AudioChunk(samples, ("queen of clubs", "spades"))]
    unprompted, prompted = transcriber.transcribe(chunks)
    assert "clubs" not in text(unprompted)
    assert text(prompted).endswith("queen of clubs")


class Scripted:
    """Stands for the decoder: gives texts with their mean log probabilities, one a call."""

    def __init__(self, transcriber: CTranslate2Transcriber, *answers: tuple[str, float]) -> None:
        self.tokenizer = transcriber._tokenizer("en")
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self, encoded: Any, chunks: Any, languages: Any, **options: Any
    ) -> list[module._Hypothesis]:
        self.calls.append({"positions": encoded.shape[1]} | options)
        words, probability = self.answers.pop(0)
        decoded = Decoded(words, probability, 0.0)
        return [module._Hypothesis(self.tokenizer.encode(" " + words), decoded, encoded[0])]


@pytest.fixture
def scripted(
    transcriber: CTranslate2Transcriber, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Scripted]:
    def script(*answers: tuple[str, float]) -> Scripted:
        decoder = Scripted(transcriber, *answers)
        monkeypatch.setattr(transcriber, "_decoded", decoder)
        return decoder

    return script


LOOP = "the market " * 12


def test_a_loop_is_decoded_again_in_the_full_window_then_without_repetition(
    transcriber: CTranslate2Transcriber, sentence: AudioChunk, scripted: Callable[..., Scripted]
) -> None:
    decoder = scripted((LOOP, -0.1), (LOOP, -0.1), ("the market was open", -0.5))
    (answer,) = transcriber.transcribe([sentence])
    assert text(answer) == "the market was open"
    assert [call["positions"] for call in decoder.calls] == [750, 1500, 1500]
    assert [call.get("no_repeat_ngram_size") for call in decoder.calls] == [None, None, 3]


def test_what_stays_a_loop_has_no_words(
    transcriber: CTranslate2Transcriber, sentence: AudioChunk, scripted: Callable[..., Scripted]
) -> None:
    scripted(*[(LOOP, -0.1)] * 3)
    looped = ChunkTranscript((), None, repeated=("the market", 12))
    assert transcriber.transcribe([sentence]) == [looped]


def test_the_better_of_two_doubtful_texts_is_kept(
    transcriber: CTranslate2Transcriber, sentence: AudioChunk, scripted: Callable[..., Scripted]
) -> None:
    decoder = scripted(("mumble", -1.4), ("the market", -0.3))
    assert text(transcriber.transcribe([sentence])[0]) == "the market"
    assert len(decoder.calls) == 2


PIECES = {
    "hyphens": ([" side", "-by", "-side", " view", "."], True, ["side-by-side", "view."]),
    "apostrophes": ([" d", "'", "eaux", ","], True, ["d'eaux,"]),
    "marks after a space": ([" Quoi", " ?", " 50", " %"], True, ["Quoi?", "50%"]),
    "opening marks": ([" “", "Yes", ",”", " he"], True, ["“Yes,”", "he"]),
    "marks alone": ([" -", " ..."], True, []),
    "Japanese": (
        ["音", "楽", "。", "Mic", "rosoft", "の"],
        False,
        ["音", "楽。", "Microsoft", "の"],
    ),
}


@every(("pieces", "spaced", "words"), PIECES.values(), ids=PIECES)
def test_pieces_of_the_alignment_become_words(
    pieces: list[str], spaced: bool, words: list[str]
) -> None:
    alignment = [
        {"word": piece, "start": i, "end": i + 1, "probability": 0.5}
        for i, piece in enumerate(pieces)
    ]
    assert [word.text for word in module._joined(alignment, spaced=spaced)] == words


def test_a_processor_without_the_compute_type_is_named_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32"})
    with pytest.raises(RuntimeError, match=r"cannot run the transcriber in int8: .* float32"):
        CTranslate2Transcriber({})


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("name", "language", "words"),
    [
        ("spk1_snt5.wav", "en", "sunday is the best part of the week"),
        ("whatstheweatherlike.wav", "en", "whats the weather like"),
        (
            "leopard-test_es.wav",
            "es",
            "las arenas son blanquecinas de grano medio y tienen muy poca asistencia",
        ),
    ],
)
def test_short_recordings_of_people_are_transcribed(
    transcriber: CTranslate2Transcriber, name: str, language: str, words: str
) -> None:
    (answer,) = transcriber.transcribe([AudioChunk(load(SHARED / name))])
    assert (plain(text(answer)), answer.language) == (words, language)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("times", "pause_seconds"),
    [
        (7, 0.3),
        pytest.param(7, 0.1, marks=pytest.mark.long),
        pytest.param(10, 0.3, marks=pytest.mark.long),
    ],
)
def test_a_roll_call_is_written_as_often_as_it_is_spoken_and_spelt_alike(
    transcriber: CTranslate2Transcriber, times: int, pause_seconds: float
) -> None:
    pause = np.zeros(round(pause_seconds * SAMPLE_RATE_HZ), np.float32)
    samples = np.concatenate([load(SHARED / "cards-001.wav"), pause] * times)
    chunk = Chunk(0, len(samples) // 320, detected=((0, len(samples) // 320),))
    [parts] = ChunkDecoder(transcriber).decode([chunk], [samples])
    words = [word.text for part in parts for word in part.words]
    assert words == words[:3] * times
    assert words[1:3] == ["of", "clubs"]


def test_languages_are_those_of_whispers_tokenizer() -> None:
    tokens = json.loads(WHISPER_BASE.read(None)["tokenizer.json"])["added_tokens"]
    named = {token["content"].strip("<|>") for token in tokens if token["content"].islower()}
    tasks = {"endoftext", "startoftranscript", "transcribe", "translate", "startoflm"}
    tasks |= {"startofprev", "nospeech", "notimestamps", "nocaptions"}
    assert named - tasks == SPOKEN_LANGUAGES - {"yue"}  # Cantonese came with the third large model


@every(
    ("text", "language", "foreign"),
    [
        ("वूना को", "hi", False),
        ("لُنہ کو", "hi", True),
        ("لُنہ کو", "ur", False),
        ("read in Hebrew", "he", False),
        ("привет", "en", True),
        ("привет", "sr", False),
        ("東京タワー", "ja", False),
        ("東京であります", "zh", True),
        ("12 %", "hi", False),
    ],
)
def test_a_text_is_in_a_script_of_its_language_or_in_latin_letters(
    text: str, language: str, foreign: bool
) -> None:
    assert is_in_another_script(text, language) is foreign


@pytest.mark.shared_media
def test_hindi_is_written_in_its_own_letters(transcriber: CTranslate2Transcriber) -> None:
    """The model writes it as Urdu, whichever of the two it is prompted with."""
    samples = load(SHARED.parent / "mixed-speech" / "fleurs-hi.wav")
    [found] = transcriber.transcribe([AudioChunk(samples, language="hi")])
    letters = [each for each in text(found) if each.isalpha()]
    assert len(letters) > 15
    assert all("\u0900" <= each <= "\u097f" for each in letters)


def test_languages_are_detected_without_words_among_those_that_are_possible(
    transcriber: CTranslate2Transcriber, sentence: AudioChunk
) -> None:
    asked = replace(sentence, has_words=False)
    among = replace(asked, languages=("de-AT", "nl"))
    free, bounded, decoded = transcriber.transcribe(
        [asked, among, replace(sentence, languages=("de", "nl"))]
    )
    assert (free.words, free.languages[0][0]) == ((), "en")
    assert {name for name, _ in bounded.languages} == {"de", "nl"}
    assert sum(p for _, p in bounded.languages) == pytest.approx(1.0)
    assert decoded.language in {"de", "nl"}
    assert decoded.words


def test_text_says_how_well_it_fits(transcript: ChunkTranscript) -> None:
    assert transcript.log_probability is not None
    assert -0.5 < transcript.log_probability < 0
