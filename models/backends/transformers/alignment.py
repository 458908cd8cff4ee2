"""When each word was spoken: CTC forced alignment over an acoustic model's emissions.

Kürzinger et al. 2020, "CTC-Segmentation of Large Corpora for German End-to-end Speech Recognition";
computed by ``torchaudio.functional.forced_align``. Any CTC checkpoint of transformers serves
(wav2vec 2.0, MMS, ...); its vocabulary decides which characters can be aligned. Words in a script
that it lacks are romanised first, as the multilingual checkpoints expect.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchaudio.functional
from transformers import AutoModelForCTC, AutoProcessor
from transformers.modeling_outputs import BaseModelOutput

from models.backends.transformers import Hardware
from models.contracts import SAMPLE_RATE_HZ, Samples

Span = tuple[float, float]
"""Start and end in seconds from the start of the samples."""

_SEPARATOR = "|"
_SHORTEST_SAMPLES = 400
"""One receptive field of wav2vec 2.0's feature encoder: 25 ms."""
_STEP_SAMPLES = 5 * SAMPLE_RATE_HZ
"""Pieces are filled up with silence to a multiple."""
_MOST_PIECES = 8
"""At once: of half a minute each they take 5 GB in float32."""


class CtcAligner:
    """Places words in time, in speech of about 30 s at most."""

    def __init__(self, checkpoint: str, hardware: Hardware, *, revision: str | None = None) -> None:
        self._processor: Any = AutoProcessor.from_pretrained(checkpoint, revision=revision)
        model: Any = AutoModelForCTC.from_pretrained(
            checkpoint, revision=revision, dtype=hardware.dtype
        )
        self._model = model.to(hardware.device).eval()
        self._hardware = hardware
        # On a GPU with TF32: the range of float32, which the multilingual checkpoint needs, at
        # near the speed of half precision.
        torch.set_float32_matmul_precision("high")
        vocabulary = self._processor.tokenizer.get_vocab()
        self._blank = int(model.config.pad_token_id)
        self._alphabet = Alphabet.of(vocabulary, blank=self._blank)

    @torch.inference_mode()
    def align(
        self, samples: Sequence[Samples], words: Sequence[Sequence[str]], languages: Sequence[str]
    ) -> list[list[Span]]:
        """Of each piece one span a word, in order, inside the samples, not overlapping; in any
        language."""
        worth = [
            index
            for index, own in enumerate(words)
            if own and len(samples[index]) >= _SHORTEST_SAMPLES
        ]
        emissions = self._emissions([samples[index] for index in worth])
        emitted = dict(zip(worth, emissions, strict=True))
        return [
            self._placed(own, emitted.get(index), len(samples[index]) / SAMPLE_RATE_HZ)
            for index, own in enumerate(words)
        ]

    def _placed(
        self, words: Sequence[str], emissions: torch.Tensor | None, seconds: float
    ) -> list[Span]:
        spans = None
        if emissions is not None:
            spans = _aligned(emissions, self._alphabet.targets(words), blank=self._blank)
        if emissions is None or spans is None:
            return spread(words, 0.0, seconds)
        frame_seconds = seconds / emissions.shape[0]
        timed = [
            None if span is None else (span[0] * frame_seconds, span[1] * frame_seconds)
            for span in spans
        ]
        return fill_gaps(words, timed, seconds)

    def _emissions(self, samples: Sequence[Samples]) -> list[torch.Tensor]:
        """Log-probabilities of each piece, shape (frames, vocabulary), float32 on the CPU. Pieces
        that silence fills up to the same length share a batch: some checkpoints take what fills up
        for sound, so it is the piece's own, whatever it comes with."""
        found: dict[int, torch.Tensor] = {}
        groups: dict[int, list[int]] = {}
        for index, piece in enumerate(samples):
            groups.setdefault(-(-len(piece) // _STEP_SAMPLES) * _STEP_SAMPLES, []).append(index)
        batches = [
            (length, own[first : first + _MOST_PIECES])
            for length, own in groups.items()
            for first in range(0, len(own), _MOST_PIECES)
        ]
        for length, indices in batches:
            inputs = self._processor(
                [samples[index] for index in indices],
                sampling_rate=SAMPLE_RATE_HZ,
                padding="max_length",
                max_length=length,
                return_tensors="pt",
            )
            values = inputs.pop("input_values").to(self._hardware.device, self._hardware.dtype)
            logits = self._model(values, **inputs.to(self._hardware.device)).logits.float()
            logits = torch.log_softmax(logits, dim=-1).cpu()
            for index, own in zip(indices, logits, strict=True):
                seen = torch.tensor(len(samples[index]))
                frames = int(self._model._get_feat_extract_output_lengths(seen))  # noqa: SLF001
                found[index] = own[:frames]
        return [found[index] for index in range(len(samples))]


@dataclass(frozen=True, slots=True)
class AlignerByLanguage:
    """English with one acoustic model, other languages with another, where there is one."""

    english: CtcAligner
    other: CtcAligner | None

    def align(
        self, samples: Sequence[Samples], words: Sequence[Sequence[str]], languages: Sequence[str]
    ) -> list[list[Span] | None]:
        """Of each piece one span a word, in order, inside the samples; None without an aligner for
        its language."""
        found: list[list[Span] | None] = [None] * len(samples)
        for aligner, is_english in ((self.english, True), (self.other, False)):
            own = [at for at, name in enumerate(languages) if (name == "en") is is_english]
            if own and aligner is not None:
                spans = aligner.align(
                    [samples[at] for at in own],
                    [words[at] for at in own],
                    [languages[at] for at in own],
                )
                for at, placed in zip(own, spans, strict=True):
                    found[at] = placed
        return found


@dataclass(frozen=True, slots=True)
class Targets:
    """Token ids to align, and which word each of them belongs to (-1: a separator)."""

    tokens: tuple[int, ...]
    word_of: tuple[int, ...]
    words: int


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters that an acoustic model can align."""

    ids: Mapping[str, int]
    separator: int | None

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], *, blank: int) -> Alphabet:
        """From a CTC tokenizer's vocabulary, whichever case it is written in."""
        ids = {
            text.casefold(): number
            for text, number in vocabulary.items()
            if len(text) == 1 and text != _SEPARATOR and number != blank
        }
        return cls(ids, vocabulary.get(_SEPARATOR))

    def targets(self, words: Sequence[str]) -> Targets:
        """What to look for. Words without any character of the alphabet have no token."""
        tokens: list[int] = []
        word_of: list[int] = []
        for position, word in enumerate(words):
            found = self._spelled(word)
            if found and tokens and self.separator is not None:
                tokens.append(self.separator)
                word_of.append(-1)
            tokens.extend(found)
            word_of.extend([position] * len(found))
        return Targets(tuple(tokens), tuple(word_of), len(words))

    def _spelled(self, word: str) -> list[int]:
        folded = unicodedata.normalize("NFC", word).casefold()
        found = [self.ids[character] for character in folded if character in self.ids]
        if found or not any(character.isalpha() for character in folded):
            return found
        romanised = romanise(folded).casefold()
        return [self.ids[character] for character in romanised if character in self.ids]


@functools.lru_cache(maxsize=1)
def _romaniser() -> Any:
    import uroman

    return uroman.Uroman()


def romanise(text: str) -> str:
    """Any script in Latin letters (uroman, Hermjakob et al. 2018)."""
    romanised: str = _romaniser().romanize_string(text)
    return romanised


def _aligned(
    emissions: torch.Tensor, targets: Targets, *, blank: int
) -> list[tuple[int, int] | None] | None:
    """First and past-the-last frame of each word; None for all if they cannot fit."""
    repeats = sum(a == b for a, b in zip(targets.tokens, targets.tokens[1:], strict=False))
    if not targets.tokens or len(targets.tokens) + repeats > emissions.shape[0]:
        return None
    labels, scores = torchaudio.functional.forced_align(
        emissions.unsqueeze(0), torch.tensor([targets.tokens], dtype=torch.int32), blank=blank
    )
    spans: list[tuple[int, int] | None] = [None] * targets.words
    merged = torchaudio.functional.merge_tokens(labels[0], scores[0], blank=blank)
    for word, span in zip(targets.word_of, merged, strict=True):
        if word < 0:
            continue
        known = spans[word]
        spans[word] = (span.start if known is None else known[0], span.end)
    return spans


def fill_gaps(words: Sequence[str], spans: Sequence[Span | None], seconds: float) -> list[Span]:
    """Words without letters (figures, signs) share the time between their neighbours."""
    filled: list[Span] = []
    position = 0
    while position < len(words):
        span = spans[position]
        if span is not None:
            filled.append(span)
            position += 1
            continue
        stop = next((i for i in range(position, len(words)) if spans[i] is not None), len(words))
        following = spans[stop] if stop < len(words) else None
        start = filled[-1][1] if filled else 0.0
        end = following[0] if following is not None else seconds
        filled.extend(spread(words[position:stop], start, max(start, end)))
        position = stop
    return filled


def spread(words: Sequence[str], start: float, end: float) -> list[Span]:
    """Words over an interval of time, each as long as its letters."""
    total = sum(len(word) for word in words) or 1
    spans: list[Span] = []
    at = start
    for word in words:
        until = min(end, at + (end - start) * len(word) / total)
        spans.append((at, until))
        at = until
    return spans


_MEDIAN_FRAMES = 7
FRAME_SECONDS = 0.02
"""Of audio that one position of the encoder stands for."""

Matrix = npt.NDArray[np.float64]


class AttentionAligner:
    """Starts of tokens, for a checkpoint whose generation config names its alignment heads."""

    def __init__(self, model: Any) -> None:
        heads = getattr(model.generation_config, "alignment_heads", None) or []
        self._model = model
        self._heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads.setdefault(layer, []).append(head)

    @property
    def is_able(self) -> bool:
        """Whether the checkpoint names alignment heads."""
        return bool(self._heads)

    @torch.inference_mode()
    def starts(
        self,
        encoded: torch.Tensor,
        openings: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        end: int,
        seconds: Sequence[float],
    ) -> list[list[float]]:
        """Of each chunk the start of each token in seconds, and after the last where it ends.

        ``encoded``: states, shape (chunks, positions, width); ``openings``: what the decoder was
        given before ``tokens``, its last token the one for no timestamps.
        """
        rows = [[*first, *own, end] for first, own in zip(openings, tokens, strict=True)]
        width = max(map(len, rows))
        # What fills up comes after, where it changes nothing before.
        sequence = torch.tensor(
            [row + [end] * (width - len(row)) for row in rows], device=encoded.device
        )
        with self._attention(encoded) as weights:
            self._model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                decoder_input_ids=sequence,
                use_cache=False,
            )
        found = []
        for at, (row, first) in enumerate(zip(rows, openings, strict=True)):
            frames = max(1, min(encoded.shape[1], round(seconds[at] / FRAME_SECONDS)))
            scores = torch.cat([layer[at, :, : len(row), :frames] for layer in weights])
            attention = scores.softmax(dim=-1)
            deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
            smooth = _smoothed((attention - mean) / deviation.clamp(min=1e-9)).mean(dim=0)
            costs = -smooth[len(first) - 1 : -1].double().cpu().numpy()
            found.append([frame * FRAME_SECONDS for frame in first_columns(costs)])
        return found

    @contextmanager
    def _attention(self, encoded: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """Scores of the alignment heads, (chunks, heads, tokens, positions) a layer, of a call
        inside.

        They are worked out beside the model's own kernels, which keep none.
        """
        found: list[torch.Tensor] = []

        def keep(module: Any, arguments: tuple[Any, ...], layer: int) -> None:
            shape = (len(encoded), -1, module.num_heads, module.head_dim)
            queries = (module.q_proj(arguments[0]) * module.scaling).view(shape)
            keys = module.k_proj(encoded).view(shape)
            heads = self._heads[layer]
            scores = torch.einsum("bqhd,bkhd->bhqk", queries[:, :, heads], keys[:, :, heads])
            found.append(scores.float())

        with ExitStack() as stack:
            for layer in sorted(self._heads):
                module = self._model.model.decoder.layers[layer].encoder_attn
                hook = module.register_forward_pre_hook(
                    lambda module, arguments, layer=layer: keep(module, arguments, layer)
                )
                stack.callback(hook.remove)
            yield found


def _smoothed(values: torch.Tensor) -> torch.Tensor:
    """The median of seven neighbours along the last axis, which is mirrored at its ends."""
    reach, length = _MEDIAN_FRAMES // 2, values.shape[-1]
    places = torch.arange(-reach, length + reach, device=values.device) % (2 * length)
    padded = values[..., torch.where(places < length, places, 2 * length - 1 - places)]
    middle: torch.Tensor = padded.unfold(-1, _MEDIAN_FRAMES, 1).median(dim=-1).values
    return middle


def first_columns(costs: Matrix) -> list[int]:
    """Where each row begins on the cheapest path from the first cell to the last.

    Steps go right, down or both (dynamic time warping). With ``S`` a row's running sum, its
    cheapest costs are ``S[j] + min over k <= j of (entry[k] - S[k - 1])``: a running minimum.
    """
    before = np.concatenate([[0.0], np.full(costs.shape[1], np.inf)])
    totals = []
    for row in costs:
        sums = np.cumsum(row)
        entry = np.minimum(before[1:], before[:-1])
        total = sums + np.minimum.accumulate(entry - (sums - row))
        before = np.concatenate([[np.inf], total])
        totals.append(before)
    firsts = [0] * len(costs)
    column = costs.shape[1]
    for row in range(len(costs) - 1, 0, -1):
        above, here = totals[row - 1], totals[row]
        while column > 1 and here[column - 1] < min(above[column - 1], above[column]):
            column -= 1
        firsts[row] = column - 1
        if above[column - 1] <= above[column]:
            column -= 1
    return firsts
