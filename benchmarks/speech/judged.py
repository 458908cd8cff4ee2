"""Transcripts of recordings with known text, each word right or wrong; in two halves by speaker.

The halves were named before any of it was looked at: English recordings by name in turns, then
those in other languages in turns; what may be of one speaker stays together. Of the synthetic
podcast one speaker is to tune on, the two others to report on. One recording is left out: the
text of ``mfa-laughter.flac`` has laughter as none, where what is written of it ("Ha ha!") is there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jiwer
import numpy as np

from benchmarks.speech.material import (
    MIXED_RECORDINGS,
    RECORDINGS,
    load,
    scored_tokens,
    truth_of,
)
from benchmarks.speech.plain_loop import transcribe_samples
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.provider import LocalModels
from pipelines.codec import decode, encode
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptResult, TranscriptSegment
from tests.places import SHARED_MEDIA

TUNING, REPORTING = "tuning", "reporting"
_TUNED_ON = frozenset(
    {
        *(f"librivox-austen-{n}.wav" for n in ("0870", "0880", "0890")),
        *("cards-001.wav", "cards-002.wav", "cards-005.wav", "ps-goforward.wav", "friday.mp4"),
        *("leopard-test.wav", "mfa-whispered.flac", "sonnet-I-p001.mp3"),
        *("stereo-two-channels.wav ch0", "azure-de.wav", "fleurs-de.wav", "leopard-test_es.wav"),
        *("zh-meeting-farfield.wav", "podcast speaker 0"),
    }
)
_LAUGHTER = "mfa-laughter.flac"
_PODCAST = SHARED_MEDIA / "speakers2" / "synthetic-podcast-0.json"


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is said in some samples, and the half that they are in."""

    name: str
    language: str
    tokens: tuple[str, ...]
    samples: Callable[[], Samples]

    @property
    def half(self) -> str:
        return TUNING if self.name in _TUNED_ON else REPORTING


@dataclass(frozen=True, slots=True)
class JudgedSegment:
    """A segment, which of its words are right (None: nothing to score), and words it lacks."""

    segment: TranscriptSegment
    right: tuple[bool | None, ...]
    missing: int

    @property
    def wrong(self) -> int:
        return sum(each is False for each in self.right)


def spoken() -> Iterator[Spoken]:
    """All recordings whose text is known."""
    for each in (*RECORDINGS, *MIXED_RECORDINGS):
        if each.name == _LAUGHTER:
            continue
        samples = partial(load, SHARED_MEDIA / each.path, each.channel)
        yield Spoken(each.name, each.language, _tokens(truth_of(each), each.language), samples)
    segments = json.loads(_PODCAST.read_text())["segments"]
    for speaker in (0, 1, 2):
        own = [each for each in segments if each["speaker"] == speaker]
        spans = tuple((each["start"], each["end"]) for each in own)
        tokens = _tokens(" ".join(each["text"] for each in own), "en")
        yield Spoken(f"podcast speaker {speaker}", "en", tokens, partial(_turns, spans))


def _turns(spans: tuple[tuple[float, float], ...]) -> Samples:
    whole = load(_PODCAST.with_suffix(".mp3"))
    parts = [whole[round(a * SAMPLE_RATE_HZ) : round(b * SAMPLE_RATE_HZ)] for a, b in spans]
    return np.concatenate(parts)


def _tokens(text: str, language: str) -> tuple[str, ...]:
    """Word by word on both sides, so that each word has its own."""
    return tuple(token for word in text.split() for token in scored_tokens(word, language))


def transcript_in(folder: Path, each: Spoken) -> TranscriptResult:
    """With the recogniser's own confidences; kept in ``folder``, so that it is made once."""
    kept = folder / f"{each.name}.json".replace(" ", "_")
    if not kept.exists():
        with tempfile.TemporaryDirectory() as scratch:
            samples, config = each.samples(), TranscriptConfig()
            found = transcribe_samples(samples, Path(scratch), LocalModels(), config)
        kept.write_bytes(encode(found))
    return decode(TranscriptResult, kept.read_bytes())


def judged(each: Spoken, found: TranscriptResult) -> list[JudgedSegment]:
    """Each word is right where all its tokens stand in the truth at their place."""
    tokens, homes = list[str](), list[tuple[int, int]]()
    for at, segment in enumerate(found.segments):
        for place, word in enumerate(segment.words):
            own = scored_tokens(word.text, each.language)
            tokens += own
            homes += [(at, place)] * len(own)
    right: list[list[bool | None]] = [[None] * len(it.words) for it in found.segments]
    missing = [0] * len(found.segments)
    if not tokens:
        return []
    aligned = jiwer.process_words(" ".join(each.tokens), " ".join(tokens)).alignments[0]
    for chunk in aligned:
        for index in range(chunk.hyp_start_idx, chunk.hyp_end_idx):
            at, place = homes[index]
            right[at][place] = right[at][place] is not False and chunk.type == "equal"
        if chunk.type == "delete":
            at, _ = homes[min(chunk.hyp_start_idx, len(homes) - 1)]
            missing[at] += chunk.ref_end_idx - chunk.ref_start_idx
    return [
        JudgedSegment(segment, tuple(own), lost)
        for segment, own, lost in zip(found.segments, right, missing, strict=True)
    ]
