"""Speech to words with Whisper (Radford et al. 2022) through transformers.

Chunks are cut by our own segmentation and are at most 30 seconds, so the library's long-form
machinery and its timestamps are not used: one encoder pass a batch, one decoder step for language
and silence, then greedy decoding. Times come from forced alignment, or, where no acoustic model
serves for a language, from the decoder's attention (both in ``alignment.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    GenerationMixin,
    LogitsProcessor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)
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
from models.backends.transformers import ATTENTION, Batches, Hardware, alignment, pick_hardware
from models.contracts import (
    SAMPLE_RATE_HZ,
    AudioChunk,
    ChunkTranscript,
    Samples,
    SpokenText,
    Word,
    primary_language,
)

Prepared = tuple[Sequence[AudioChunk], torch.Tensor]
"""Chunks and their features, on the device."""

_NO_REPEAT_NGRAM = 3
"""Second try of a chunk that came out as a loop."""

_PROMPT_SHARE = 2
"""At most half of the decoder's positions are for the prompt, as the paper has it."""

_LANGUAGE_SECONDS, _WINDOW_SECONDS = 4, 15
"""What only languages are detected of is encoded in the second where it is no longer than the
first, so that three seconds do not pay for thirty: the window of the packaged transcriber."""


class Aligner(Protocol):
    """Places words in time."""

    def align(
        self, samples: Sequence[Samples], words: Sequence[Sequence[str]], languages: Sequence[str]
    ) -> Sequence[list[alignment.Span] | None]:
        """Of each piece of speech one span a word, or None for a language that it lacks."""
        ...


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One chunk's words before they have times."""

    words: tuple[SpokenWord, ...]
    tokens: tuple[int, ...]
    """Of the text alone; the words' positions count in them."""
    decoded: Decoded
    language: str


class _Doubts(LogitsProcessor):  # type: ignore[misc]
    """The logarithm of the probability of each token that is chosen, for one greedy decoding. The
    logits of all steps, which ``generate`` can keep, are gigabytes."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        self._logits = torch.empty(0)

    def see(self, _module: Any, _inputs: Any, logits: torch.Tensor) -> None:
        """A hook of the last layer: logits before anything is forbidden."""
        self._logits = logits[:, -1]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logits = self._logits.float()
        chosen = logits.gather(1, scores.argmax(dim=-1, keepdim=True))[:, 0]
        self.found.append(chosen - logits.logsumexp(dim=-1))
        return scores


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
            checkpoint, revision=revision, dtype=hardware.dtype, attn_implementation=ATTENTION
        )
        self._model = model.to(hardware.device).eval()
        self._aligner = aligner
        self._attention = alignment.AttentionAligner(self._model)
        self._hardware = hardware
        self._batches = Batches(max_batch)
        self._tokens = _SpecialTokens.of(self._processor.tokenizer, model)

    def translate_speech(self, chunks: Sequence[AudioChunk]) -> list[str]:
        """The English of each chunk, in order. Raises ValueError for chunks beyond 30 s."""
        bare = [replace(each, keyterms=()) for each in chunks]
        return self._batches.run_prepared(self._features, self._translated, bare)

    @torch.inference_mode()
    def _translated(self, prepared: Prepared) -> list[str]:
        chunks, features = prepared
        encoded = self._encode(features)
        ranked, silences = self._first_step(encoded, chunks)
        languages = [each[0][0] for each in ranked]
        decoding = self._decode(encoded, chunks, languages, silences, is_translation=True)
        return [
            "" if is_silence(each.decoded) or is_loop(each.decoded.text) else each.decoded.text
            for each in decoding
        ]

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order. Raises ValueError for chunks beyond 30 s."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for index, chunk in enumerate(chunks):
            groups.setdefault((chunk.has_words, self._window(chunk)), []).append(index)
        found: dict[int, ChunkTranscript] = {}
        for (has_words, _), indices in groups.items():
            work = self._transcribed if has_words else self._ranked
            own = [chunks[index] for index in indices]
            answers = self._batches.run_prepared(self._features, work, own)
            found.update(zip(indices, answers, strict=True))
        return [found[index] for index in range(len(chunks))]

    def _window(self, chunk: AudioChunk) -> int:
        """How many samples, silence at the end included, the encoder gets of a chunk."""
        whole: int = self._processor.feature_extractor.n_samples
        is_short = len(chunk.samples) <= _LANGUAGE_SECONDS * SAMPLE_RATE_HZ
        return _WINDOW_SECONDS * SAMPLE_RATE_HZ if is_short and not chunk.has_words else whole

    def align(self, passages: Sequence[SpokenText]) -> list[tuple[Word, ...]]:
        """Known words with times from forced alignment, else from attention; none for what is
        beyond 30 s or longer than the decoder takes, or where neither serves."""
        longest = self._processor.feature_extractor.n_samples
        fit = [index for index, each in enumerate(passages) if 0 < len(each.samples) <= longest]
        answers = self._batches.run_prepared(
            lambda own: (
                [each.words for each in own],
                *self._features([AudioChunk(each.samples, language=each.language) for each in own]),
            ),
            self._aligned,
            [passages[index] for index in fit],
        )
        found = dict(zip(fit, answers, strict=True))
        return [found.get(index, ()) for index in range(len(passages))]

    @torch.inference_mode()
    def _aligned(
        self, prepared: tuple[list[tuple[str, ...]], Sequence[AudioChunk], torch.Tensor]
    ) -> list[tuple[Word, ...]]:
        words, chunks, features = prepared
        encoded = self._encode(features)
        ranked, _ = self._first_step(encoded, chunks)
        decoding = [
            self._spelt(own, languages[0][0]) for own, languages in zip(words, ranked, strict=True)
        ]
        room = self._model.config.max_target_positions - 8
        fit = [
            index
            for index, item in enumerate(decoding)
            if len(item.tokens) + len(item.words) <= room
        ]
        own = [chunks[index] for index in fit], [decoding[index] for index in fit]
        spans = dict(zip(fit, self._measured(*own, encoded[fit]), strict=True))
        return [
            tuple(Word(text, *span, 1.0) for text, span in zip(texts, placed, strict=True))
            if (placed := spans.get(index)) is not None
            else ()
            for index, texts in enumerate(words)
        ]

    def _spelt(self, texts: tuple[str, ...], language: str) -> _Decoding:
        """Known words as if they had been decoded."""
        tokens, words = list[int](), list[SpokenWord]()
        for text in texts:
            spelt = text if language in SPACELESS else f" {text}"
            found = self._processor.tokenizer(spelt, add_special_tokens=False).input_ids
            words.append(SpokenWord(text, [0.0], len(tokens), len(tokens) + len(found)))
            tokens += found
        return _Decoding(tuple(words), tuple(tokens), Decoded("", 0.0, 0.0), language)

    @torch.inference_mode()
    def _ranked(self, prepared: Prepared) -> list[ChunkTranscript]:
        """Languages alone."""
        chunks, features = prepared
        ranked, _ = self._first_step(self._encode(features), chunks)
        return [ChunkTranscript((), None, languages=each) for each in ranked]

    @torch.inference_mode()
    def _transcribed(self, prepared: Prepared) -> list[ChunkTranscript]:
        chunks, features = prepared
        encoded = self._encode(features)
        ranked, silences = self._first_step(encoded, chunks)
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
        found = [ChunkTranscript((), None)] * len(chunks)
        spoken = [
            index
            for index, item in enumerate(decoding)
            if item.words and not is_silence(item.decoded) and not is_loop(item.decoded.text)
        ]
        own = [chunks[index] for index in spoken]
        timed = self._measured(own, [decoding[index] for index in spoken], encoded[spoken])
        for index, spans in zip(spoken, timed, strict=True):
            found[index] = _transcript(chunks[index], decoding[index], spans, ranked[index])
        return found

    @torch.inference_mode()
    def _features(self, chunks: Sequence[AudioChunk]) -> Prepared:
        """Filter banks of chunks of one window, on the device."""
        extractor = self._processor.feature_extractor
        if any(len(chunk.samples) > extractor.n_samples for chunk in chunks):
            limit = extractor.n_samples / SAMPLE_RATE_HZ
            raise ValueError(f"A chunk is longer than {limit:g} seconds.")
        features = extractor(
            [chunk.samples for chunk in chunks],
            sampling_rate=SAMPLE_RATE_HZ,
            padding="max_length",
            max_length=self._window(chunks[0]),
            return_tensors="pt",
            device=str(self._hardware.device),
        ).input_features
        return chunks, features.to(self._hardware.device, self._hardware.dtype)

    def _encode(self, features: torch.Tensor) -> torch.Tensor:
        """Encoder states, shape (chunks, positions, width); the library's encoder, which takes 30 s
        and no less, over as many positions as there are features for."""
        encoder, gelu = self._model.get_encoder(), torch.nn.functional.gelu
        states = gelu(encoder.conv2(gelu(encoder.conv1(features)))).permute(0, 2, 1)
        states = states + encoder.embed_positions.weight[: states.shape[1]]
        for layer in encoder.layers:
            states = layer(states, None)
        found: torch.Tensor = encoder.layer_norm(states)
        return found

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
        starts, given = self._starts(
            [chunk.keyterms for chunk in chunks], languages, is_translation
        )
        device, doubts = encoded.device, _Doubts()
        room = self._model.config.max_target_positions - starts.shape[1] - 1
        if not given.all():
            options["decoder_attention_mask"] = given.to(device)
        hook = self._model.proj_out.register_forward_hook(doubts.see)
        try:
            # The mixin's own generate: the class's override is the long-form machinery.
            sequences: torch.Tensor = GenerationMixin.generate(
                self._model,
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                attention_mask=torch.ones(encoded.shape[:2], dtype=torch.long, device=device),
                decoder_input_ids=starts.to(device),
                max_length=None,
                max_new_tokens=min(room, self._model.config.max_target_positions // 2),
                do_sample=False,
                num_beams=1,
                logits_processor=[doubts],
                **options,
            )
        finally:
            hook.remove()
        written = sequences[:, starts.shape[1] :].tolist()
        chosen = torch.stack(doubts.found, dim=1).tolist()
        return [
            self._decoding(sequence, doubts, "en" if is_translation else language, silence)
            for sequence, doubts, language, silence in zip(
                written, chosen, languages, silences, strict=True
            )
        ]

    def _starts(
        self,
        keyterms: Sequence[tuple[str, ...]],
        languages: Sequence[str],
        is_translation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens before the first word (the vocabulary as prompt, language and task), a row a
        chunk, filled up on the left; and 1 where there is one of the row's own."""
        tokens, limit = self._tokens, self._model.config.max_target_positions // _PROMPT_SHARE - 1
        rows = []
        for terms, language in zip(keyterms, languages, strict=True):
            prompt: list[int] = []
            if terms:
                text = self._processor.tokenizer(" " + ", ".join(terms), add_special_tokens=False)
                prompt = [tokens.previous, *text.input_ids[:limit]]
            rows.append([*prompt, *tokens.opening(language, is_translation)])
        width = max(map(len, rows))
        starts = [[tokens.end] * (width - len(row)) + row for row in rows]
        given = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(starts, dtype=torch.long), torch.tensor(given, dtype=torch.long)

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

    def _measured(
        self, chunks: Sequence[AudioChunk], decoding: Sequence[_Decoding], encoded: torch.Tensor
    ) -> list[list[alignment.Span] | None]:
        """Of each chunk when its words are spoken, by the acoustic model, else by attention; None
        where neither serves."""
        found: list[list[alignment.Span] | None] = [None] * len(chunks)
        if self._aligner is not None and chunks:
            spans = self._aligner.align(
                [chunk.samples for chunk in chunks],
                [[word.text for word in each.words] for each in decoding],
                [each.language for each in decoding],
            )
            found = list(spans)
        left = [index for index, spans in enumerate(found) if spans is None]
        if not left or not self._attention.is_able:
            return found
        seconds = [len(chunks[index].samples) / SAMPLE_RATE_HZ for index in left]
        starts = self._attention.starts(
            encoded[left],
            [self._tokens.opening(decoding[index].language) for index in left],
            [decoding[index].tokens for index in left],
            self._tokens.end,
            seconds,
        )
        for index, own, end in zip(left, starts, seconds, strict=True):
            found[index] = [
                (min(own[word.first], end), min(own[word.after], end))
                for word in decoding[index].words
            ]
        return found


def _transcript(
    chunk: AudioChunk, decoding: _Decoding, spans: list[alignment.Span] | None, languages: Ranked
) -> ChunkTranscript:
    """Each word as long as its letters where nothing measured it."""
    seconds = len(chunk.samples) / SAMPLE_RATE_HZ
    placed = spans or alignment.spread([word.text for word in decoding.words], 0.0, seconds)
    words = tuple(
        Word(word.text, start, end, word.confidence)
        for word, (start, end) in zip(decoding.words, placed, strict=True)
    )
    fit = decoding.decoded.mean_log_probability
    return ChunkTranscript(words, decoding.language, languages[0][1], fit, languages)


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

    def aligner(role: str) -> alignment.CtcAligner:
        where = row.location(models_dir, role)
        hardware = pick_hardware(row.device, "float32")
        return alignment.CtcAligner(where.source, hardware, revision=where.revision)

    is_lacking = models_dir is not None and not row.weights["align"].is_installed(models_dir)
    where = row.location(models_dir)
    return WhisperTranscriber(
        where.source,
        alignment.AlignerByLanguage(aligner("align_en"), None if is_lacking else aligner("align")),
        pick_hardware(row.device, row.dtype),
        revision=where.revision,
        max_batch=row.max_batch,
    )
