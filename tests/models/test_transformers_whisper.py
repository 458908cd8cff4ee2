"""Whisper and CTC alignment on tiny random models of the published classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin, WhisperForConditionalGeneration, WhisperProcessor
from transformers.modeling_outputs import BaseModelOutput

from models.backends.transformers import pick_hardware
from models.backends.transformers.alignment import CtcAligner
from models.backends.transformers.whisper import WhisperTranscriber
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, Samples
from tests.models.tiny_models import save_tiny_ctc, save_tiny_whisper

HARDWARE = pick_hardware("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors on two busy cores: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> CtcAligner:
    return CtcAligner(str(save_tiny_ctc(tmp_path_factory.mktemp("ctc"))), HARDWARE)


@pytest.fixture(scope="module")
def transcriber(whisper_folder: Path, aligner: CtcAligner) -> WhisperTranscriber:
    return WhisperTranscriber(str(whisper_folder), aligner, HARDWARE, max_batch=2)


def noise(seconds: float, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    samples = generator.standard_normal(round(seconds * SAMPLE_RATE_HZ)) * 0.1
    return samples.astype(np.float32)


def spoken(text: str) -> str:
    """Letters and digits only."""
    return "".join(character for character in text if character.isalnum())


def test_words_lie_inside_the_chunk_in_order(transcriber: WhisperTranscriber) -> None:
    chunks = [AudioChunk(noise(seconds, seed)) for seed, seconds in enumerate((1.0, 3.0, 7.5))]
    transcripts = transcriber.transcribe(chunks)
    assert len(transcripts) == len(chunks)
    assert any(transcript.words for transcript in transcripts), "the tiny model says something"
    for chunk, transcript in zip(chunks, transcripts, strict=True):
        at = 0.0
        for word in transcript.words:
            assert at <= word.start_seconds <= word.end_seconds
            assert word.end_seconds <= len(chunk.samples) / SAMPLE_RATE_HZ + 1e-6
            assert 0 <= word.confidence <= 1
            at = word.end_seconds


def test_the_same_chunk_gives_the_same_words_alone_and_in_company(
    transcriber: WhisperTranscriber,
) -> None:
    chunks = [AudioChunk(noise(2.0, seed), keyterms=("Ray",) * (seed % 2)) for seed in range(5)]
    together = transcriber.transcribe(chunks)
    alone = [transcriber.transcribe([chunk])[0] for chunk in chunks]
    assert [[w.text for w in t.words] for t in together] == [
        [w.text for w in t.words] for t in alone
    ]


@pytest.mark.parametrize("language", ["en", "de"])
def test_greedy_decoding_is_the_librarys_own(
    transcriber: WhisperTranscriber, whisper_folder: Path, language: str
) -> None:
    """Outside view: transformers' short-form generate says the same."""
    samples = noise(4.0, 11)
    processor: Any = WhisperProcessor.from_pretrained(str(whisper_folder))
    model: Any = WhisperForConditionalGeneration.from_pretrained(str(whisper_folder))
    features = processor(samples, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt").input_features
    tokens = model.generate(
        features, language=language, task="transcribe", return_timestamps=False, max_new_tokens=32
    )
    expected = processor.batch_decode(tokens, skip_special_tokens=True)[0]
    _, own = transcriber._features([AudioChunk(samples)])
    encoded = transcriber._encode(own)
    heard = transcriber._decode(encoded, [AudioChunk(samples)], [language], [0.0])[0]
    # Marks that stand alone and broken characters are no words of ours.
    assert spoken(heard.decoded.text) == spoken(expected)
    assert spoken(expected) or language != "en", "the tiny model says something"


def test_keyterms_steer_the_decoder(transcriber: WhisperTranscriber) -> None:
    chunk = AudioChunk(noise(3.0, 5), language="en")
    encoded = transcriber._encode(transcriber._features([chunk])[1])
    plain = transcriber._decode(encoded, [chunk], ["en"], [0.0])[0].decoded
    hinted_chunk = AudioChunk(chunk.samples, ("Kubernetes", "Ray Serve"), language="en")
    hinted = transcriber._decode(encoded, [hinted_chunk], ["en"], [0.0])[0].decoded
    assert hinted != plain
    starts = transcriber._starts([hinted_chunk.keyterms], ["en"])[0][0].tolist()
    assert "Kubernetes, Ray Serve" in transcriber._processor.tokenizer.decode(starts)


def test_many_keyterms_leave_room_to_speak(transcriber: WhisperTranscriber) -> None:
    terms = tuple(f"phrase number {n}" for n in range(100))
    starts, _ = transcriber._starts([terms], ["en"])
    assert starts.shape[1] <= transcriber._model.config.max_target_positions // 2 + 4
    transcriber.transcribe([AudioChunk(noise(1.0), keyterms=terms)])


@pytest.mark.parametrize(
    ("hint", "known"),
    [("en", "en"), ("de-DE", "de"), ("tlh", None), (None, None)],
    ids=["code", "with region", "unknown to the model", "none"],
)
def test_language_hints_are_taken_where_known(
    transcriber: WhisperTranscriber, hint: str | None, known: str | None
) -> None:
    chunk = AudioChunk(noise(1.0), language=hint)
    [ranked], silences = transcriber._first_step(
        transcriber._encode(transcriber._features([chunk])[1]), [chunk]
    )
    languages = [ranked[0][0]]
    assert known is None or ranked == ((known, 1.0),)
    assert languages[0] in transcriber._tokens.languages
    assert 0 <= silences[0] <= 1


def test_the_encoder_over_thirty_seconds_is_the_librarys_own(
    transcriber: WhisperTranscriber,
) -> None:
    _, features = transcriber._features([AudioChunk(noise(2.0)), AudioChunk(noise(7.0, 1))])
    expected = transcriber._model.get_encoder()(features).last_hidden_state
    assert torch.allclose(transcriber._encode(features), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("seconds", "positions"), [(0.5, 750), (3.0, 750), (4.0, 750), (4.1, 1500), (30.0, 1500)]
)
def test_short_windows_are_encoded_as_such_where_only_languages_are_detected(
    transcriber: WhisperTranscriber, seconds: float, positions: int
) -> None:
    chunk = AudioChunk(noise(seconds), has_words=False)
    _, features = transcriber._features([chunk])
    assert transcriber._encode(features).shape[1] == positions
    _, features = transcriber._features([replace(chunk, has_words=True)])
    assert transcriber._encode(features).shape[1] == 1500
    [found] = transcriber.transcribe([chunk])
    assert not found.words
    assert found.languages


def test_chunks_with_other_key_terms_share_a_batch(
    transcriber: WhisperTranscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    decode = transcriber._decode

    def counted(encoded: torch.Tensor, *given: Any, **options: Any) -> Any:
        if "no_repeat_ngram_size" not in options:
            sizes.append(len(encoded))
        return decode(encoded, *given, **options)

    monkeypatch.setattr(transcriber, "_decode", counted)
    terms = [(), ("Ray",), ("Kubernetes", "Ray Serve"), ("a", "b", "c")]
    transcriber.transcribe([AudioChunk(noise(2.0), keyterms=each) for each in terms])
    assert sizes == [2, 2]


def test_the_probability_of_a_word_is_the_librarys_own(transcriber: WhisperTranscriber) -> None:
    """Outside view: the logits that ``generate`` can keep."""
    chunk = AudioChunk(noise(2.0, 3), ("Ray",), language="en")
    encoded = transcriber._encode(transcriber._features([chunk])[1])
    [ours] = transcriber._decode(encoded, [chunk], ["en"], [0.0])
    starts, given = transcriber._starts([chunk.keyterms], ["en"])
    room = transcriber._model.config.max_target_positions
    output = GenerationMixin.generate(
        transcriber._model,
        encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
        decoder_input_ids=starts,
        max_length=None,
        max_new_tokens=min(room - starts.shape[1] - 1, room // 2),
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    scores = torch.stack(output.logits, dim=1).log_softmax(dim=-1)[0]
    chosen = scores.gather(1, output.sequences[0, starts.shape[1] :, None])[:, 0]
    spoken = [
        doubt
        for token, doubt in zip(output.sequences[0, starts.shape[1] :], chosen, strict=True)
        if token < transcriber._tokens.first_special
    ]
    assert given.all()
    assert ours.decoded.mean_log_probability == pytest.approx(np.mean(spoken), abs=1e-4)


def test_words_are_placed_alike_alone_and_in_company(aligner: CtcAligner) -> None:
    samples = [noise(seconds, seed) for seed, seconds in enumerate((2.0, 4.9, 7.0, 0.01, 3.3))]
    words = [["hello", "big", "world"], ["a"], ["one", "two"], ["short"], []]
    together = aligner.align(samples, words, ["en"] * 5)
    alone = [
        aligner.align([one], [own], ["en"])[0] for one, own in zip(samples, words, strict=True)
    ]
    for one, other in zip(together, alone, strict=True):
        assert np.array(one) == pytest.approx(np.array(other))


def test_a_chunk_beyond_thirty_seconds_is_refused(transcriber: WhisperTranscriber) -> None:
    with pytest.raises(ValueError, match="30 seconds"):
        transcriber.transcribe([AudioChunk(noise(30.5))])


def test_no_chunks_give_no_transcripts(transcriber: WhisperTranscriber) -> None:
    assert transcriber.transcribe([]) == []


def test_aligned_words_are_in_order_and_inside(aligner: CtcAligner) -> None:
    words = ["hello", "there", "42", "big", "мир", "world"]
    [spans] = aligner.align([noise(4.0, 3)], [words], ["en"])
    assert len(spans) == len(words)
    assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))
    assert spans[0][0] >= 0
    assert spans[-1][1] <= 4.0 + 1e-6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.01, ["short"]), (0.2, ["far", "too", "many", "letters", "for", "ten", "frames"])],
    ids=["below one frame", "more letters than frames"],
)
def test_what_cannot_be_aligned_is_spread(
    aligner: CtcAligner, seconds: float, words: list[str]
) -> None:
    [spans] = aligner.align([noise(seconds)], [words], ["en"])
    assert len(spans) == len(words)
    assert spans[0][0] == 0
    assert spans[-1][1] == pytest.approx(seconds)


def test_a_peaked_model_puts_letters_where_they_are(
    aligner: CtcAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emissions written by hand: "ab" at frames 10 and 11, "c" at frame 40, of 50 in one second."""
    ids = aligner._alphabet.ids
    emissions = torch.full((50, len(aligner._processor.tokenizer)), -20.0)
    emissions[:, aligner._blank] = -0.1
    for frame, letter in ((10, "a"), (11, "b"), (40, "c")):
        emissions[frame] = -20.0
        emissions[frame, ids[letter]] = -0.1
    assert aligner._alphabet.separator is not None
    emissions[25] = -20.0
    emissions[25, aligner._alphabet.separator] = -0.1
    monkeypatch.setattr(aligner, "_emissions", lambda samples: [emissions])
    [spans] = aligner.align([noise(1.0)], [["ab", "c"]], ["en"])
    assert np.array(spans) == pytest.approx(np.array([[0.2, 0.24], [0.8, 0.82]]))
