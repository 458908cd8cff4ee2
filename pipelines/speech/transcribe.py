"""Step: a shard's chunks to words, through the transcriber."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models.contracts import AudioChunk, ChunkTranscript, Samples, Word
from models.provider import ModelProvider
from models.tasks import TRANSCRIBE
from pipelines.execution.chain import Row, Step, Workspace
from pipelines.media.audio import FRAME_SAMPLES, LEVEL_FRAME_SECONDS, SampleReader, read_blocks
from pipelines.speech.regions import Chunk
from pipelines.speech.words import TrackWord

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


def make_transcribe_step(
    workspace: Workspace,
    models: ModelProvider,
    *,
    language: str | None,
    keyterms: tuple[str, ...],
) -> Step:
    """1:1. ``{audio_key, chunks, words_key}`` to itself; writes the words of each chunk.

    ``chunks`` is the shard's chunks as JSON. Words already stored are kept. A row of the second
    pass names its ``first_words_key`` and the ``track_language``: only the chunks whose language
    was doubtful are transcribed again, in that language.
    """

    def run(row: Row) -> Row:
        if row.get("failure") or workspace.store.exists(row["words_key"]):
            return row
        chunks = chunks_from_json(row["chunks"])
        transcriber = models.get(TRANSCRIBE)
        found: dict[Chunk, ChunkWords] = {}
        if track_language := row.get("track_language"):
            first = words_from_json(workspace.store.read_bytes(row["first_words_key"]))
            pairs = zip(chunks, first, strict=True)
            found = {c: words for c, words in pairs if not is_doubtful(words, track_language)}
        with workspace.store.local_copy(row["audio_key"]) as path:
            for batch, samples in _batches(chunks, found, path):
                workspace.check()
                inputs = [
                    AudioChunk(each, track_language or language, keyterms) for each in samples
                ]
                transcripts = transcriber.transcribe(inputs)
                found |= zip(batch, map(_on_track, batch, transcripts), strict=True)
        words = [found[chunk] for chunk in chunks]
        workspace.store.write_bytes(row["words_key"], words_to_json(words))
        return row

    return run


def is_doubtful(chunk: ChunkWords, track_language: str | None) -> bool:
    """Whether the chunk's language is improbable, and is not that of its track either."""
    return (
        chunk.language != track_language
        and chunk.language_probability is not None
        and chunk.language_probability < LANGUAGE_PROBABILITY
    )


def chunks_to_json(chunks: Sequence[Chunk]) -> str:
    return json.dumps([[chunk.start_frame, chunk.end_frame, chunk.speech] for chunk in chunks])


def chunks_from_json(text: str) -> list[Chunk]:
    return [
        Chunk(start, end, tuple((a, b) for a, b in speech))
        for start, end, speech in json.loads(text)
    ]


def shard_samples(chunks: Sequence[Chunk], path: Path) -> Iterator[Samples]:
    """The samples of each chunk out of the shard's audio."""
    reader = SampleReader(read_blocks(path))
    position = 0
    for chunk in chunks:
        length = (chunk.end_frame - chunk.start_frame) * FRAME_SAMPLES
        yield reader.read(position, position + length)
        position += length


def words_to_json(found: Sequence[ChunkWords]) -> bytes:
    return json.dumps([asdict(each) for each in found]).encode()


def words_from_json(data: bytes) -> list[ChunkWords]:
    return [
        ChunkWords(
            raw["language"],
            tuple(TrackWord(**word) for word in raw["words"]),
            raw["language_probability"],
        )
        for raw in json.loads(data)
    ]


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
