"""Speech to words with Whisper (Radford et al. 2022) through transformers.

Chunks are cut by our own segmentation and are at most 30 seconds, so the
library's long-form machinery and its timestamps are not used: one encoder pass
a batch, one decoder step for language and silence, then greedy decoding. Times
come from forced alignment, or, where no acoustic model serves for a language, from the decoder's
attention (both in ``alignment.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import GenerationMixin, WhisperForConditionalGeneration, WhisperProcessor
from transformers.modeling_outputs import BaseModelOutput

from models.backends import Backend
from models.backends.decoded_text import (
    LISTED_LANGUAGES,
    SPACELESS,
    Decoded,
    Ranked,
    SpokenWord,
    is_loop,
    is_silence,
    words_of_tokens,
)
from models.backends.transformers.alignment import (
    AlignerByLanguage,
    AttentionAligner,
    CtcAligner,
    Span,
    spread,
)
from models.backends.transformers.hardware import ATTENTION, Batches, Hardware, pick_hardware
from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    ChunkTranscript,
    Samples,
    SpokenText,
    Word,
)
from models.languages import primary_language

_NO_REPEAT_NGRAM = 3
"""Second try of a chunk that came out as a loop."""

_PROMPT_SHARE = 2
"""At most half of the decoder's positions are for the prompt, as the paper has it."""


class Aligner(Protocol):
    """Places words in time."""

    def align(
        self, samples: Samples, words: Sequence[str], language: str | None
    ) -> list[Span] | None:
        """One span a word, or None for a language that it lacks."""
        ...


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One chunk's words before they have times."""

    words: tuple[SpokenWord, ...]
    tokens: tuple[int, ...]
    """Of the text alone; the words' positions count in them."""
    decoded: Decoded
    language: str


class WhisperTranscriber:
    """Task ``transcribe`` with any Whisper checkpoint.

    ``checkpoint`` is a repository (with its ``revision``) or a folder. Raises
    OSError when neither is there.
    """

    def __init__(
        self,
        checkpoint: str,
        aligner: Aligner | None,
        hardware: Hardware,
        *,
        revision: str | None = None,
        max_batch: int = 8,
    ) -> None:
        self._processor: Any = WhisperProcessor.from_pretrained(checkpoint, revision=revision)
        model: Any = WhisperForConditionalGeneration.from_pretrained(
            checkpoint,
            revision=revision,
            dtype=hardware.dtype,
            attn_implementation=ATTENTION,
        )
        self._model = model.to(hardware.device).eval()
        self._aligner = aligner
        self._attention = AttentionAligner(self._model)
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._tokens = _SpecialTokens.of(self._processor.tokenizer, model)

    def translate_speech(self, chunks: Sequence[AudioChunk]) -> list[str]:
        """The English of each chunk, in order. Raises ValueError for chunks beyond 30 s."""
        return self._batches.run(self._translated, [replace(each, keyterms=()) for each in chunks])

    @torch.inference_mode()
    def _translated(self, chunks: Sequence[AudioChunk]) -> list[str]:
        encoded = self._encode(chunks)
        ranked, silences = self._first_step(encoded, chunks)
        languages = [each[0][0] for each in ranked]
        decoding = self._decode(encoded, chunks, languages, silences, is_translation=True)
        return [
            "" if is_silence(each.decoded) or is_loop(each.decoded.text) else each.decoded.text
            for each in decoding
        ]

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order. Raises ValueError for chunks beyond 30 s."""

        def shape(index: int) -> tuple[bool, tuple[str, ...]]:
            return chunks[index].has_words, chunks[index].keyterms

        found: dict[int, ChunkTranscript] = {}
        # A prompt is the same for a whole batch, so chunks with the same vocabulary go together.
        for _, members in groupby(sorted(range(len(chunks)), key=shape), key=shape):
            indices = list(members)
            answers = self._batches.run(self._batch, [chunks[index] for index in indices])
            found.update(zip(indices, answers, strict=True))
        return [found[index] for index in range(len(chunks))]

    @torch.inference_mode()
    def align(self, passages: Sequence[SpokenText]) -> list[tuple[Word, ...]]:
        """Known words with times from forced alignment, else from attention; none for what is
        beyond 30 s or longer than the decoder takes, or where neither serves."""
        return [self._aligned(each) for each in passages]

    def _aligned(self, passage: SpokenText) -> tuple[Word, ...]:
        chunk = AudioChunk(passage.samples, passage.language)
        if not 0 < len(chunk.samples) <= self._processor.feature_extractor.n_samples:
            return ()
        encoded = self._encode([chunk])
        [[((language, _), *_)], _] = self._first_step(encoded, [chunk])
        tokens, words = list[int](), list[SpokenWord]()
        for text in passage.words:
            spelt = text if language in SPACELESS else f" {text}"
            found = self._processor.tokenizer(spelt, add_special_tokens=False).input_ids
            words.append(SpokenWord(text, [0.0], len(tokens), len(tokens) + len(found)))
            tokens += found
        is_long = len(tokens) > self._model.config.max_target_positions - len(passage.words) - 8
        decoding = _Decoding(tuple(words), tuple(tokens), Decoded("", 0.0, 0.0), language)
        spans = None if is_long else self._measured(chunk.samples, decoding, encoded)
        pairs = zip(passage.words, spans, strict=True) if spans else ()
        return tuple(Word(text, start, end, 1.0) for text, (start, end) in pairs)

    @torch.inference_mode()
    def _batch(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        encoded = self._encode(chunks)
        ranked, silences = self._first_step(encoded, chunks)
        if not chunks[0].has_words:
            return [ChunkTranscript((), None, languages=each) for each in ranked]
        languages = [each[0][0] for each in ranked]
        decoding = self._decode(encoded, chunks, languages, silences)
        looped = [index for index, item in enumerate(decoding) if is_loop(item.decoded.text)]
        if looped:
            again = self._decode(
                encoded[looped],
                [chunks[index] for index in looped],
                [languages[index] for index in looped],
                [silences[index] for index in looped],
                no_repeat_ngram_size=_NO_REPEAT_NGRAM,
            )
            for index, item in zip(looped, again, strict=True):
                decoding[index] = item
        return [
            self._transcript(chunk, item, encoded[index : index + 1], ranked[index])
            for index, (chunk, item) in enumerate(zip(chunks, decoding, strict=True))
        ]

    def _encode(self, chunks: Sequence[AudioChunk]) -> torch.Tensor:
        """Encoder states, shape (chunks, positions, width)."""
        longest = self._processor.feature_extractor.n_samples
        if any(len(chunk.samples) > longest for chunk in chunks):
            raise ValueError(f"A chunk is longer than {longest / SAMPLE_RATE_HZ:g} seconds.")
        features = self._processor.feature_extractor(
            [chunk.samples for chunk in chunks],
            sampling_rate=SAMPLE_RATE_HZ,
            return_tensors="pt",
            device=str(self._hardware.device),
        ).input_features
        features = features.to(self._hardware.device, self._hardware.dtype)
        states: torch.Tensor = self._model.get_encoder()(features).last_hidden_state
        return states

    def _first_step(
        self, encoded: torch.Tensor, chunks: Sequence[AudioChunk]
    ) -> tuple[list[Ranked], list[float]]:
        """Languages and no-speech probability of each chunk, from the decoder's first step."""
        tokens = self._tokens
        start = torch.full((len(chunks), 1), tokens.start, device=encoded.device)
        logits = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded), decoder_input_ids=start
        ).logits[:, -1]
        silences = torch.softmax(logits.float(), dim=-1)[:, tokens.no_speech].tolist()
        found = []
        for chunk, row in zip(chunks, logits.float().cpu(), strict=True):
            hints = tokens.known_languages((chunk.language or "",))
            names = hints or tokens.known_languages(chunk.languages) or [*tokens.languages]
            shares = torch.softmax(row[[tokens.languages[name] for name in names]], dim=0).tolist()
            pairs = sorted(zip(names, shares, strict=True), key=lambda pair: -pair[1])
            found.append(tuple(pairs[:LISTED_LANGUAGES]))
        return found, silences

    def _decode(
        self,
        encoded: torch.Tensor,
        chunks: Sequence[AudioChunk],
        languages: Sequence[str],
        silences: Sequence[float],
        is_translation: bool = False,
        **options: Any,
    ) -> list[_Decoding]:
        starts = self._starts(chunks[0].keyterms, languages, is_translation).to(encoded.device)
        room = self._model.config.max_target_positions - starts.shape[1] - 1
        # The mixin's own generate: the class's override is the long-form machinery.
        output: Any = GenerationMixin.generate(
            self._model,
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            attention_mask=torch.ones(encoded.shape[:2], dtype=torch.long, device=encoded.device),
            decoder_input_ids=starts,
            max_length=None,
            max_new_tokens=min(room, self._model.config.max_target_positions // 2),
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )
        sequences = output.sequences[:, starts.shape[1] :]
        scores = torch.stack(output.logits, dim=1).float().log_softmax(dim=-1)
        chosen = scores.gather(2, sequences.unsqueeze(2)).squeeze(2)
        return [
            self._decoding(
                sequence.tolist(), doubts.tolist(), "en" if is_translation else language, silence
            )
            for sequence, doubts, language, silence in zip(
                sequences, chosen, languages, silences, strict=True
            )
        ]

    def _starts(
        self, keyterms: tuple[str, ...], languages: Sequence[str], is_translation: bool = False
    ) -> torch.Tensor:
        """Tokens before the first word: the vocabulary as prompt, language and task."""
        tokens = self._tokens
        prompt: list[int] = []
        if keyterms:
            limit = self._model.config.max_target_positions // _PROMPT_SHARE - 1
            text = self._processor.tokenizer(" " + ", ".join(keyterms), add_special_tokens=False)
            prompt = [tokens.previous, *text.input_ids[:limit]]
        return torch.tensor(
            [[*prompt, *tokens.opening(language, is_translation)] for language in languages],
            dtype=torch.long,
        )

    def _decoding(
        self, tokens: list[int], doubts: list[float], language: str, silence: float
    ) -> _Decoding:
        end = tokens.index(self._tokens.end) if self._tokens.end in tokens else len(tokens)
        spoken = [
            (token, min(0.0, doubt))
            for token, doubt in zip(tokens[:end], doubts[:end], strict=True)
            if token < self._tokens.first_special
        ]
        words = words_of_tokens(
            [token for token, _ in spoken],
            [doubt for _, doubt in spoken],
            self._processor.tokenizer.decode,
            spaceless=language in SPACELESS,
        )
        mean = sum(doubt for _, doubt in spoken) / len(spoken) if spoken else 0.0
        text = " ".join(word.text for word in words)
        kept = tuple(token for token, _ in spoken)
        return _Decoding(tuple(words), kept, Decoded(text, mean, silence), language)

    def _transcript(
        self, chunk: AudioChunk, decoding: _Decoding, encoded: torch.Tensor, languages: Ranked
    ) -> ChunkTranscript:
        if not decoding.words or is_silence(decoding.decoded) or is_loop(decoding.decoded.text):
            return ChunkTranscript((), None)
        spans = self._spans(chunk.samples, decoding, encoded)
        words = tuple(
            Word(word.text, start, end, word.confidence)
            for word, (start, end) in zip(decoding.words, spans, strict=True)
        )
        fit = decoding.decoded.mean_log_probability
        return ChunkTranscript(words, decoding.language, languages[0][1], fit, languages)

    def _spans(self, samples: Samples, decoding: _Decoding, encoded: torch.Tensor) -> list[Span]:
        """By the acoustic model, else by attention, else each word as long as its letters."""
        texts = [word.text for word in decoding.words]
        seconds = len(samples) / SAMPLE_RATE_HZ
        return self._measured(samples, decoding, encoded) or spread(texts, 0.0, seconds)

    def _measured(
        self, samples: Samples, decoding: _Decoding, encoded: torch.Tensor
    ) -> list[Span] | None:
        """None where neither an acoustic model nor attention serves."""
        texts = [word.text for word in decoding.words]
        if self._aligner is not None:
            spans = self._aligner.align(samples, texts, decoding.language)
            if spans is not None:
                return spans
        seconds = len(samples) / SAMPLE_RATE_HZ
        if not self._attention.is_able:
            return None
        opening = self._tokens.opening(decoding.language)
        starts = self._attention.starts(
            encoded, opening, decoding.tokens, self._tokens.end, seconds
        )
        return [
            (min(starts[word.first], seconds), min(starts[word.after], seconds))
            for word in decoding.words
        ]


@dataclass(frozen=True, slots=True)
class _SpecialTokens:
    """Ids of the tokens that steer Whisper's decoder."""

    start: int
    previous: int
    no_speech: int
    no_timestamps: int
    transcribe: int
    translate: int
    end: int
    first_special: int
    languages: dict[str, int]

    @classmethod
    def of(cls, tokenizer: Any, model: Any) -> _SpecialTokens:
        config = model.generation_config
        # English-only checkpoints have one language, without a token.
        is_multilingual = bool(getattr(config, "is_multilingual", True))
        languages = config.lang_to_id if is_multilingual else {"en": config.no_timestamps_token_id}
        end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        return cls(
            start=model.config.decoder_start_token_id,
            previous=tokenizer.convert_tokens_to_ids("<|startofprev|>"),
            # Two names in the published tokenizers; always the one before <|notimestamps|>.
            no_speech=config.no_timestamps_token_id - 1,
            no_timestamps=config.no_timestamps_token_id,
            transcribe=config.task_to_id["transcribe"] if is_multilingual else -1,
            translate=config.task_to_id["translate"] if is_multilingual else -1,
            end=end,
            first_special=end,
            languages={token.strip("<|>"): number for token, number in languages.items()},
        )

    def opening(self, language: str, is_translation: bool = False) -> list[int]:
        """The tokens before the first word."""
        if self.transcribe < 0:
            return [self.start, self.no_timestamps]
        task = self.translate if is_translation else self.transcribe
        return [self.start, self.languages[language], task, self.no_timestamps]

    def known_languages(self, tags: Iterable[str]) -> list[str]:
        """The languages of BCP 47 tags, those that Whisper has."""
        found = {primary_language(tag) for tag in tags}
        return [name for name in self.languages if name in found]


def open_whisper(row: Backend, models_dir: Path | None) -> WhisperTranscriber:
    """Whisper with its aligners; the multilingual one is left out where a models folder lacks it.

    Alignment runs in float32: the multilingual checkpoint overflows in half precision.
    """

    def aligner(role: str) -> CtcAligner:
        where = row.location(models_dir, role)
        hardware = pick_hardware(row.device, "float32")
        return CtcAligner(where.source, hardware, revision=where.revision)

    is_lacking = models_dir is not None and not row.weights["align"].is_installed(models_dir)
    where = row.location(models_dir)
    return WhisperTranscriber(
        where.source,
        AlignerByLanguage(aligner("align_en"), None if is_lacking else aligner("align")),
        pick_hardware(row.device, row.dtype),
        revision=where.revision,
        max_batch=row.max_batch,
    )
