"""Tasks ``transcribe``, ``align`` and ``translate_speech``: Whisper on CTranslate2, faster-whisper.

A chunk is padded with silence to a window of its own length, not to the 30 s that Whisper was
trained with: the encoder costs 0.05 processor seconds for 5 s, 0.14 for 10 s, 0.24 for 15 s and
0.98 for 30 s (base, int8), so that three seconds of speech do not pay for thirty. Where the words
of a short window are doubtful, the chunk is decoded again in the full window, then without
repeated n-grams. No sampling: the same chunk has the same words, in whichever batch it comes.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import numpy.typing as npt
from faster_whisper import WhisperModel
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens

from models.backends import Backend
from models.backends.decoded_text import (
    LISTED_LANGUAGES,
    MIN_MEAN_LOG_PROBABILITY,
    SPACELESS,
    Decoded,
    Ranked,
    is_loop,
    is_silence,
    repeated_phrase,
)
from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    ChunkTranscript,
    Samples,
    SpokenText,
    Word,
    is_in_another_script,
    letter_beginnings,
    primary_language,
)

FULL_WINDOW_SECONDS = 30
WINDOW_STEP_SECONDS = 5
"""Windows have a multiple of this length, so that chunks of similar length share a batch."""
SHORTEST_WINDOW_SECONDS = 10
PADDING_SECONDS = 8.0
"""Silence after a chunk, at least (Whisper was trained with up to 30 s of it). Tried over the
recordings of benchmarks/transcript.py: windows of 5 s and more with 3 s of silence gave a WER
of 0.071 in English and 0.144 elsewhere (a phrase of 1.1 s came twice), 10 s and more with 3, 5 and
8 s of silence 0.060 and 0.144, 0.062 and 0.131, 0.057 and 0.122; full windows 0.062 and 0.131 in
1.7 times the processor time."""
BEAM_SIZE = 5
"""Greedy decoding gave a WER of 0.071 in English and 0.159 elsewhere, for a fifth less time."""
_SHORTEST_SAMPLES = SAMPLE_RATE_HZ // 10
"""Less than a tenth of a second holds no word."""
_TOKENS_PER_SECOND = 15
"""Bounds what is decoded of a window, so that a loop stays cheap. Speech has 3 to 8 tokens a
second, in scripts that are spelt in bytes up to 12."""
_PROMPT_TOKENS = 100
"""Most tokens of key terms that the decoder is prompted with; Whisper's own limit is 223."""
_NO_REPEAT_NGRAM = 3
_FRAMES_PER_SECOND = 100
_LATIN = re.compile("[A-Za-z0-9]+")
_CLOSING = frozenset("?!;:%»")

_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_UNPRINTED = (byte for byte in range(0x100) if byte not in _PRINTED)
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(0x100 + number): byte for number, byte in enumerate(_UNPRINTED)
}
"""What the characters of a byte-level vocabulary stand for (Radford et al. 2019)."""
_BEGINS_LETTER = frozenset({*string.ascii_letters.encode(), *range(0xC3, 0xEE)} - {0xE2})
"""Bytes; 0xE2 begins dashes and quotation marks."""

Prompt = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """What the decoder makes of one chunk; ``encoded`` is the window that it decoded."""

    tokens: list[int]
    decoded: Decoded
    encoded: npt.NDArray[np.float32]

    @property
    def is_doubtful(self) -> bool:
        fits = self.decoded.mean_log_probability >= MIN_MEAN_LOG_PROBABILITY
        return not fits or is_loop(self.decoded.text)


class CTranslate2Transcriber:
    """Whisper of any size: ``model`` is a folder, or the bytes of its files by name.

    Results depend neither on the batch nor on the number of threads.
    """

    def __init__(
        self,
        model: Path | Mapping[str, bytes],
        *,
        compute_type: str = "int8",
        threads: int = 1,
        workers: int = 1,
        max_batch: int = 4,
        beam_size: int = BEAM_SIZE,
    ) -> None:
        supported = ctranslate2.get_supported_compute_types("cpu")
        if compute_type not in supported:
            raise RuntimeError(
                f"This processor cannot run the transcriber in {compute_type}: "
                f"CTranslate2 supports {', '.join(sorted(supported)) or 'nothing'} on it."
            )
        in_memory = None if isinstance(model, Path) else dict(model)
        self._model: Any = WhisperModel(
            str(model) if isinstance(model, Path) else "whisper",
            device="cpu",
            compute_type=compute_type,
            cpu_threads=threads,
            num_workers=workers,
            files=in_memory,
        )
        self._max_batch = max_batch
        self._beam_size = beam_size
        self._languages: frozenset[str] = frozenset(self._model.supported_languages)
        self._suppressed = get_suppressed_tokens(self._tokenizer("en"), [-1])

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order. Raises ValueError for chunks beyond 30 s."""
        found = [ChunkTranscript((), None)] * len(chunks)
        for indices in self._batches(chunks):
            batch = [chunks[index] for index in indices]
            seconds = _window_of(batch[0])
            encoded = self._encoded([chunk.samples for chunk in batch], seconds)
            languages = self._detected(encoded, batch)
            if not batch[0].has_words:
                for index, ranked in zip(indices, languages, strict=True):
                    found[index] = ChunkTranscript((), None, languages=ranked)
                continue
            hypotheses = self._decoded(encoded, batch, [ranked[0][0] for ranked in languages])
            for index, hypothesis, ranked in zip(indices, hypotheses, languages, strict=True):
                found[index] = self._transcript(chunks[index], hypothesis, seconds, ranked)
        return found

    def align(self, passages: Sequence[SpokenText]) -> list[tuple[Word, ...]]:
        """Known words with times from the decoder's attention; none for what is beyond 30 s, has no
        sound or more tokens than the decoder takes."""
        return [self._aligned(each) for each in passages]

    def _aligned(self, passage: SpokenText) -> tuple[Word, ...]:
        chunk = AudioChunk(passage.samples, language=passage.language)
        seconds = len(passage.samples) / SAMPLE_RATE_HZ
        if not _SHORTEST_SAMPLES <= len(passage.samples) <= FULL_WINDOW_SECONDS * SAMPLE_RATE_HZ:
            return ()
        encoded = self._encoded([chunk.samples], window_seconds(chunk.samples))
        [((language, _), *_)] = self._detected(encoded, [chunk])
        tokenizer = self._tokenizer(language)
        text = "".join(passage.words) if language in SPACELESS else " " + " ".join(passage.words)
        tokens = tokenizer.encode(text)
        if len(tokens) > self._model.max_length - _PROMPT_TOKENS:
            return ()
        frames = math.ceil(seconds * _FRAMES_PER_SECOND)
        [alignment] = self._model.find_alignment(tokenizer, [tokens], _storage(encoded), frames)
        return tuple(_in_order(_placed(passage.words, alignment), seconds))

    def translate_speech(self, chunks: Sequence[AudioChunk]) -> list[str]:
        """The English of each chunk, in order. Raises ValueError for chunks beyond 30 s."""
        found = [""] * len(chunks)
        for indices in self._batches(chunks):
            batch = [chunks[index] for index in indices]
            seconds = _window_of(batch[0])
            encoded = self._encoded([chunk.samples for chunk in batch], seconds)
            languages = [ranked[0][0] for ranked in self._detected(encoded, batch)]
            first = self._decoded(encoded, batch, languages, task="translate")
            for index, tried, language in zip(indices, first, languages, strict=True):
                hypothesis, own = tried, (chunks[index], tried, seconds, language)
                if tried.is_doubtful and not is_silence(tried.decoded):
                    hypothesis = self._decoded_again(*own, task="translate")
                if not is_silence(hypothesis.decoded) and not is_loop(hypothesis.decoded.text):
                    found[index] = " ".join(hypothesis.decoded.text.split())
        return found

    def _batches(self, chunks: Sequence[AudioChunk]) -> Iterable[list[int]]:
        """Indices of chunks that share a window and a prompt, ``max_batch`` at most."""

        def shape(index: int) -> tuple[bool, int, Prompt]:
            chunk = chunks[index]
            return chunk.has_words, _window_of(chunk), chunk.keyterms

        worth = [
            index
            for index, chunk in enumerate(chunks)
            if len(chunk.samples) >= _SHORTEST_SAMPLES and chunk.samples.any()
        ]
        for _, group in groupby(sorted(worth, key=shape), key=shape):
            members = list(group)
            for first in range(0, len(members), self._max_batch):
                yield members[first : first + self._max_batch]

    def _encoded(self, samples: Sequence[Samples], seconds: int) -> npt.NDArray[np.float32]:
        """Encoder states, shape (chunks, positions, width)."""
        count = seconds * SAMPLE_RATE_HZ
        features = [
            self._model.feature_extractor(np.pad(each, (0, count - len(each))), padding=0)
            for each in samples
        ]
        mel = np.stack(features)[..., : seconds * _FRAMES_PER_SECOND]
        return np.asarray(self._model.encode(mel))

    def _detected(
        self, encoded: npt.NDArray[np.float32], chunks: Sequence[AudioChunk]
    ) -> list[Ranked]:
        """Languages of each chunk, as probable as they are among those that it may have."""
        hints = [next(iter(self._known((chunk.language or "",))), None) for chunk in chunks]
        if not self._model.model.is_multilingual:
            return [(("en", 1.0),)] * len(chunks)
        if all(hint is not None for hint in hints):
            return [((hint or "en", 1.0),) for hint in hints]
        found = []
        ranked = self._model.model.detect_language(_storage(encoded))
        for hint, chunk, pairs in zip(hints, chunks, ranked, strict=True):
            among = self._known(chunk.languages) or self._languages
            named = [(token.strip("<|>"), float(p)) for token, p in pairs]
            possible = [(name, p) for name, p in named if name in among]
            total = sum(p for _, p in possible) or 1.0
            listed = tuple((name, p / total) for name, p in possible[:LISTED_LANGUAGES])
            found.append(listed if hint is None else ((hint, 1.0),))
        return found

    def _known(self, tags: Iterable[str]) -> frozenset[str]:
        """The languages of BCP 47 tags, those that the model has."""
        return self._languages & {primary_language(tag) for tag in tags}

    def _decoded(
        self,
        encoded: npt.NDArray[np.float32],
        chunks: Sequence[AudioChunk],
        languages: Sequence[str],
        task: str = "transcribe",
        **options: Any,
    ) -> list[_Hypothesis]:
        tokenizers = [self._tokenizer(language, task) for language in languages]
        prompts = [
            self._model.get_prompt(each, self._prompt(chunk.keyterms), without_timestamps=True)
            for chunk, each in zip(chunks, tokenizers, strict=True)
        ]
        # By the window, which is the same for the whole batch, so that the batch changes nothing.
        longest = window_seconds(chunks[0].samples)
        room = _TOKENS_PER_SECOND * longest
        results = self._model.model.generate(
            _storage(encoded),
            prompts,
            beam_size=self._beam_size,
            max_length=min(len(prompts[0]) + room, self._model.max_length),
            return_scores=True,
            return_no_speech_prob=True,
            **{"suppress_tokens": self._suppressed} | options,
        )
        found = []
        for result, language, states in zip(results, languages, encoded, strict=True):
            tokens = list(result.sequences_ids[0])
            # The score is the mean over the tokens; that of Whisper counts the end as one more.
            mean = result.scores[0] * len(tokens) / (len(tokens) + 1)
            decoded = Decoded(self._tokenizer(language).decode(tokens), mean, result.no_speech_prob)
            found.append(_Hypothesis(tokens, decoded, states))
        return found

    def _prompt(self, keyterms: Prompt) -> list[int]:
        """Tokens of the vocabulary to expect, as text that came before the chunk."""
        if not keyterms:
            return []
        tokens: list[int] = self._tokenizer("en").encode(" " + ", ".join(keyterms))
        return tokens[:_PROMPT_TOKENS]

    def _tokenizer(self, language: str, task: str = "transcribe") -> Any:
        own = self._model.hf_tokenizer, self._model.model.is_multilingual
        return Tokenizer(*own, task=task, language=language)

    def _transcript(
        self, chunk: AudioChunk, hypothesis: _Hypothesis, seconds: int, languages: Ranked
    ) -> ChunkTranscript:
        language, probability = languages[0]
        repeated = repeated_phrase(hypothesis.decoded.text.split())
        if hypothesis.is_doubtful and not is_silence(hypothesis.decoded):
            hypothesis = self._decoded_again(chunk, hypothesis, seconds, language)
        if is_silence(hypothesis.decoded) or is_loop(hypothesis.decoded.text):
            return ChunkTranscript((), None, repeated=repeated)
        if is_in_another_script(hypothesis.decoded.text, language):
            # Decoded again in no other letters than the language's, unless that fits badly: small
            # models write Hindi as Urdu, whichever of the two they are prompted with.
            bound = [*self._suppressed, *self._foreign_tokens(language)]
            given = hypothesis.encoded[None], [chunk], [language]
            [again] = self._decoded(*given, suppress_tokens=bound)
            if not (again.is_doubtful or is_in_another_script(again.decoded.text, language)):
                hypothesis = again
        words = self._words(chunk, hypothesis, language)
        if not words:
            return ChunkTranscript((), None)
        fit = hypothesis.decoded.mean_log_probability
        return ChunkTranscript(words, language, probability, fit, languages, repeated)

    def _decoded_again(
        self, chunk: AudioChunk, first: _Hypothesis, seconds: int, language: str, **how: Any
    ) -> _Hypothesis:
        """The best of further attempts: the full window, then without repeated n-grams."""
        attempts = [first]
        encoded = first.encoded[None]
        if seconds < FULL_WINDOW_SECONDS:
            encoded = self._encoded([chunk.samples], FULL_WINDOW_SECONDS)
            attempts += self._decoded(encoded, [chunk], [language], **how)
        if attempts[-1].is_doubtful:
            attempts += self._decoded(
                encoded, [chunk], [language], no_repeat_ngram_size=_NO_REPEAT_NGRAM, **how
            )
        intact = [each for each in attempts if not is_loop(each.decoded.text)]
        return max(intact or attempts, key=lambda each: each.decoded.mean_log_probability)

    def _foreign_tokens(self, language: str) -> list[int]:
        """Those with letters that the language is not written in, or with beginnings of such."""
        own = letter_beginnings(language)

        def is_foreign(token: bytes) -> bool:
            begun = ((at, byte) for at, byte in enumerate(token) if byte in _BEGINS_LETTER)
            return any(token[at : at + (1 if byte < 0x80 else 2)] not in own for at, byte in begun)

        vocabulary = self._model.hf_tokenizer.get_vocab().items()
        end = self._tokenizer(language).eot
        return [
            at
            for text, at in vocabulary
            if at < end and is_foreign(bytes(_BYTES[character] for character in text))
        ]

    def _words(self, chunk: AudioChunk, hypothesis: _Hypothesis, language: str) -> tuple[Word, ...]:
        """The words with times from the decoder's attention (dynamic time warping)."""
        tokenizer = self._tokenizer(language)
        text = [token for token in hypothesis.tokens if token < tokenizer.eot]
        if not text:
            return ()
        seconds = len(chunk.samples) / SAMPLE_RATE_HZ
        states, frames = _storage(hypothesis.encoded[None]), math.ceil(seconds * _FRAMES_PER_SECOND)
        [alignment] = self._model.find_alignment(tokenizer, [text], states, frames)
        pieces = _joined(alignment, spaced=language not in SPACELESS)
        return tuple(_in_order(pieces, seconds))


def window_seconds(samples: Samples) -> int:
    """How long a window the encoder gets for a chunk. Raises ValueError for chunks beyond 30 s."""
    seconds = len(samples) / SAMPLE_RATE_HZ
    if seconds > FULL_WINDOW_SECONDS:
        raise ValueError(f"A chunk is longer than {FULL_WINDOW_SECONDS} seconds.")
    steps = math.ceil((seconds + PADDING_SECONDS) / WINDOW_STEP_SECONDS)
    return min(FULL_WINDOW_SECONDS, max(SHORTEST_WINDOW_SECONDS, steps * WINDOW_STEP_SECONDS))


def _window_of(chunk: AudioChunk) -> int:
    """Languages are detected without padding: 0.03 processor seconds for 3 s, not 0.11."""
    if chunk.has_words:
        return window_seconds(chunk.samples)
    return max(1, math.ceil(len(chunk.samples) / SAMPLE_RATE_HZ))


def _storage(array: npt.NDArray[np.float32]) -> Any:
    return ctranslate2.StorageView.from_array(np.ascontiguousarray(array))


def _joined(alignment: Sequence[Mapping[str, Any]], *, spaced: bool) -> list[Word]:
    """Pieces of the alignment as words: faster-whisper splits at every hyphen and apostrophe.

    A piece belongs to the word before it unless a space comes between; in languages without
    spaces, if it has no letter or digit or continues a word in Latin script. Marks before a word
    belong to it, but those that French sets apart from the word before; alone they are nothing.
    """
    words: list[Word] = []
    opening = ""
    for piece in alignment:
        text = "".join(piece["word"].split())
        start, end, probability = (float(piece[key]) for key in ("start", "end", "probability"))
        is_spoken = any(character.isalnum() for character in text)
        begins = piece["word"][:1].isspace() or (
            not spaced
            and is_spoken
            and not (words and _LATIN.fullmatch(words[-1].text[-1] + text[0]))
        )
        closes = set(text) <= _CLOSING
        if words and (closes or not begins) and not opening:
            last = words.pop()
            confidence = min(last.confidence, probability) if is_spoken else last.confidence
            end = end if is_spoken else last.end_seconds
            words.append(Word(last.text + text, last.start_seconds, end, confidence))
        elif is_spoken:
            words.append(Word(opening + text, start, end, probability))
            opening = ""
        else:
            opening += text
    return words


def _placed(words: Sequence[str], alignment: Sequence[Mapping[str, Any]]) -> Iterable[Word]:
    """Known words out of the pieces of their alignment, which have the same characters."""
    letters = "".join("".join(piece["word"].split()) for piece in alignment)
    pieces = [piece for piece in alignment for _ in "".join(piece["word"].split())]
    if letters != "".join(words):
        return  # characters that the tokenizer does not give back
    at = 0
    for word in words:
        own, at = range(at, at + len(word)), at + len(word)
        spoken = [pieces[n] for n in own if letters[n].isalnum()] or [pieces[n] for n in own]
        probability = min(float(piece["probability"]) for piece in spoken)
        yield Word(word, float(spoken[0]["start"]), float(spoken[-1]["end"]), probability)


def _in_order(words: Iterable[Word], seconds: float) -> Iterable[Word]:
    """The words inside the chunk, none before the end of the one before."""
    earliest = 0.0
    for word in words:
        start = min(max(earliest, word.start_seconds), seconds)
        end = min(max(start, word.end_seconds), seconds)
        yield Word(word.text, start, end, min(1.0, max(0.0, word.confidence)))
        earliest = end


def open_transcriber(row: Backend, models_dir: Path | None) -> CTranslate2Transcriber:
    """Whisper of a package, or of the user's own."""
    model = row.own or row.packaged().read(models_dir)
    return CTranslate2Transcriber(model, max_batch=row.max_batch, workers=row.workers)


def open_hub_transcriber(row: Backend, models_dir: Path | None) -> CTranslate2Transcriber:
    """Whisper of a hub, fetched where there is no models folder, or of the user's own."""
    where = row.location(models_dir)
    folder = Path(where.source)
    if where.revision is not None:
        from huggingface_hub import snapshot_download

        files = list(where.files)
        folder = Path(
            snapshot_download(where.source, revision=where.revision, allow_patterns=files)
        )
    return CTranslate2Transcriber(folder, max_batch=row.max_batch)
