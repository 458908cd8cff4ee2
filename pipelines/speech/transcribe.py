"""Step: a shard's chunks to words, through the transcriber."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.contracts import AudioChunk, ChunkTranscript, Samples, Word
from models.provider import ModelProvider
from models.tasks import TRANSCRIBE
from pipelines.artifacts import Artifact
from pipelines.execution.chain import Step, Workspace
from pipelines.media.audio import FRAME_SAMPLES, LEVEL_FRAME_SECONDS, SampleReader, read_blocks
from pipelines.speech.regions import Chunk, Shard
from pipelines.speech.words import TrackWord
from pipelines.types import StageCode

_BATCH_CHUNKS = 4
"""Chunks a call: enough to fill a batch, few enough to notice a stop and to bound memory."""

LANGUAGE_PROBABILITY = 0.5
"""Below it a chunk's language is doubtful: faster-whisper's own threshold of its detection."""


@dataclass(frozen=True, slots=True)
class ChunkWords:
    """The words of one chunk, in seconds of the track."""

    language: str | None
    words: tuple[TrackWord, ...]
    language_probability: float | None = None


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to transcribe, and where what is found is stored.

    That of a second pass has the ``track_language`` and the ``first_words_key``: only the chunks
    whose language was doubtful are transcribed again, in that language.
    """

    shard: Shard
    words_key: str
    voices_key: str
    track_language: str | None = None
    first_words_key: str = ""


@dataclass(frozen=True)
class Transcribe(Step[ShardTask, ShardTask]):
    """A shard to itself, its words (WORDS) stored unless they are there."""

    name = "Transcription"
    code = StageCode.TRANSCRIPT_FAILED
    version = 1
    workspace: Workspace
    models: ModelProvider
    language: str | None
    keyterms: tuple[str, ...]

    def process(self, task: ShardTask) -> ShardTask:
        WORDS.make(self.workspace.store, task.words_key, lambda: self._words(task))
        return task

    def _words(self, task: ShardTask) -> Words:
        store, chunks = self.workspace.store, task.shard.chunks
        transcriber = self.models.get(TRANSCRIBE)
        found: dict[Chunk, ChunkWords] = {}
        if task.track_language is not None:
            first = zip(chunks, WORDS.load(store, task.first_words_key), strict=True)
            found = {c: words for c, words in first if not is_doubtful(words, task.track_language)}
        language = task.track_language or self.language
        with store.local_copy(task.shard.audio_key) as path:
            for batch, samples in _batches(chunks, found, path):
                self.workspace.check()
                inputs = [AudioChunk(each, language, self.keyterms) for each in samples]
                transcripts = transcriber.transcribe(inputs)
                found |= zip(batch, map(_on_track, batch, transcripts), strict=True)
        return tuple(found[chunk] for chunk in chunks)


Words = tuple[ChunkWords, ...]
"""Those of each chunk of a shard."""

WORDS = Artifact.of(Words, "transcript/words", version=Transcribe.version)


def is_doubtful(chunk: ChunkWords, track_language: str | None) -> bool:
    """Whether the chunk's language is improbable, and is not that of its track either."""
    return (
        chunk.language != track_language
        and chunk.language_probability is not None
        and chunk.language_probability < LANGUAGE_PROBABILITY
    )


def shard_samples(chunks: Sequence[Chunk], path: Path) -> Iterator[Samples]:
    """The samples of each chunk out of the shard's audio."""
    reader = SampleReader(read_blocks(path))
    position = 0
    for chunk in chunks:
        length = (chunk.end_frame - chunk.start_frame) * FRAME_SAMPLES
        yield reader.read(position, position + length)
        position += length


def _batches(
    chunks: Sequence[Chunk], done: Container[Chunk], path: Path
) -> Iterator[tuple[list[Chunk], list[Samples]]]:
    """The chunks that are not ``done``, a few at a time, with their samples."""
    batch: list[tuple[Chunk, Samples]] = []
    for chunk, samples in zip(chunks, shard_samples(chunks, path), strict=True):
        if chunk not in done:
            batch.append((chunk, samples))
        if len(batch) == _BATCH_CHUNKS:
            yield [each for each, _ in batch], [each for _, each in batch]
            batch = []
    if batch:
        yield [each for each, _ in batch], [each for _, each in batch]


def _on_track(chunk: Chunk, transcript: ChunkTranscript) -> ChunkWords:
    """The words in seconds of the track, each cut down to the chunk's regions of speech."""
    spans = [
        (a * LEVEL_FRAME_SECONDS, b * LEVEL_FRAME_SECONDS)
        for a, b in chunk.speech or ((chunk.start_frame, chunk.end_frame),)
    ]
    words = tuple(
        TrackWord(word.text, *inside, word.confidence)
        for word in transcript.words
        if (inside := _within_speech(chunk.start_seconds, word, spans)) is not None
    )
    return ChunkWords(transcript.language, words, transcript.language_probability)


def _within_speech(
    shift: float, word: Word, spans: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """The part of the word in the span that it shares most with; None for a word outside all."""
    start, end = shift + word.start_seconds, shift + word.end_seconds
    low, high = max(spans, key=lambda span: min(end, span[1]) - max(start, span[0]))
    inside = max(start, low), min(end, high)
    return inside if inside[0] <= inside[1] else None
