"""Step: a shard's chunks to words, through the transcriber."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.contracts import Samples
from models.provider import ModelProvider
from models.tasks import TRANSCRIBE
from pipelines.artifacts import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.media.audio import SampleReader, read_blocks
from pipelines.speech.decoding import ChunkDecoder
from pipelines.speech.languages import LanguageChoice, SpokenPart
from pipelines.speech.regions import Chunk, Shard
from pipelines.speech.words import TrackWord
from pipelines.types import StageCode

_BATCH_CHUNKS = 4
"""Chunks a call: enough to fill a batch, few enough to notice a stop and to bound memory."""
_BETTER_FIT = 0.15
"""Text in another language than its track's is kept where its mean log-probability is that much
above that of the track's language."""


@dataclass(frozen=True, slots=True)
class ChunkWords:
    """The words of one chunk; its parts cover it."""

    parts: tuple[SpokenPart, ...]

    @property
    def words(self) -> tuple[TrackWord, ...]:
        """Of all parts, in order."""
        return tuple(word for part in self.parts for word in part.words)


_SAME_WORD_SECONDS = 0.3
"""Two neighbours that were decoded apart have the start of a word so far apart at most."""


def without_overlaps(chunks: Sequence[Chunk], found: Sequence[ChunkWords]) -> list[ChunkWords]:
    """The words of chunks in order, what two of them have both only once."""
    bounds = [(-math.inf, math.inf)] * len(chunks)
    for at, (one, other) in enumerate(itertools.pairwise(found)):
        if chunks[at].after_frames:
            last, before = _seam(one.words, other.words, chunks[at].end_seconds)
            bounds[at : at + 2] = (bounds[at][0], last), (before, math.inf)
    return [
        ChunkWords(
            tuple(
                replace(
                    part, words=tuple(w for w in part.words if before < w.start_seconds <= last)
                )
                for part in each.parts
            )
        )
        for each, (before, last) in zip(found, bounds, strict=True)
    ]


def _seam(
    words: Sequence[TrackWord], following: Sequence[TrackWord], seam_seconds: float
) -> tuple[float, float]:
    """Starts of the last word of the first chunk, and of that after which the second goes on: a
    word that both have, as near to the seam as there is one."""
    common = [
        (one.start_seconds, other.start_seconds)
        for one in words
        for other in following
        if abs(one.start_seconds - other.start_seconds) < _SAME_WORD_SECONDS
        and one.text.casefold().strip(".,!?") == other.text.casefold().strip(".,!?")
    ]
    before = math.nextafter(seam_seconds, 0.0)
    return min(common, key=lambda each: abs(each[0] - seam_seconds), default=(before, before))


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to transcribe, and where its words are stored.

    That of a second pass has the ``track_language`` and the ``first_words_key``: only the parts
    whose language is uncertain are transcribed again, in that language.
    """

    shard: Shard
    words_key: str
    track_language: str | None = None
    first_words_key: str = ""


@dataclass(frozen=True)
class Transcribe(Step[ShardTask, ShardTask]):
    """A shard to itself, its words (WORDS) stored unless they are there."""

    name = "Transcription"
    code = StageCode.TRANSCRIPT_FAILED
    version = 5
    workspace: Workspace
    models: ModelProvider
    choice: LanguageChoice = field(default_factory=LanguageChoice)
    keyterms: tuple[str, ...] = ()

    def process(self, task: ShardTask) -> ShardTask:
        compute = self._words if task.track_language is None else self._words_again
        WORDS.make(self.workspace.store, task.words_key, lambda: compute(task))
        return task

    def _words(self, task: ShardTask) -> Words:
        decoder = self._decoder(self.choice)
        found: list[ChunkWords] = []
        with self.workspace.store.local_copy(task.shard.audio_key) as path:
            for batch, samples in _batches(task.shard.chunks, path):
                self.workspace.check()
                found += map(ChunkWords, decoder.decode(batch, samples))
        return tuple(found)

    def _words_again(self, task: ShardTask) -> Words:
        """Those of the first pass, each uncertain part in whichever language fits better."""
        store, language = self.workspace.store, task.track_language
        decoder = self._decoder(replace(self.choice, language=language))
        found: list[ChunkWords] = []
        with store.local_copy(task.shard.audio_key) as path:
            for chunk, samples, first in zip(
                task.shard.chunks,
                shard_samples(task.shard.chunks, path),
                WORDS.load(store, task.first_words_key),
                strict=True,
            ):
                self.workspace.check()
                parts = []
                for part in first.parts:
                    again = part
                    if part.may_be_in(language):
                        again = _better(part, decoder.decode_part(part, chunk, samples))
                    parts.append(again)
                found.append(ChunkWords(tuple(parts)))
        return tuple(found)

    def _decoder(self, choice: LanguageChoice) -> ChunkDecoder:
        return ChunkDecoder(self.models.get(TRANSCRIBE), choice, self.keyterms)


Words = tuple[ChunkWords, ...]
"""Those of each chunk of a shard."""

WORDS = Artifact.of(Words, "transcript/words", version=Transcribe.version)


def _better(first: SpokenPart, second: SpokenPart) -> SpokenPart:
    """The part in its own language or in its track's; probabilities are those of the detection."""
    if not second.words:
        return first
    if (first.log_probability or 0.0) > (second.log_probability or 0.0) + _BETTER_FIT:
        return first
    probability = dict(first.languages).get(second.language or "", 0.0)
    return replace(second, languages=first.languages, language_probability=probability)


def shard_samples(chunks: Sequence[Chunk], path: Path) -> Iterator[Samples]:
    """The samples of each chunk out of the shard's audio."""
    reader = SampleReader(read_blocks(path))
    position = 0
    for chunk in chunks:
        start, end = chunk.sample_span
        yield reader.read(position, position + end - start)
        position += end - start


def _batches(
    chunks: Sequence[Chunk], path: Path
) -> Iterator[tuple[Sequence[Chunk], list[Samples]]]:
    """The chunks, a few at a time, with their samples."""
    samples = shard_samples(chunks, path)
    for first in range(0, len(chunks), _BATCH_CHUNKS):
        batch = chunks[first : first + _BATCH_CHUNKS]
        yield batch, [next(samples) for _ in batch]
