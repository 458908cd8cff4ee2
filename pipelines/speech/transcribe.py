"""Step: a shard's chunks to words, through the transcriber."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models.contracts import AudioChunk, ChunkTranscript, Samples
from models.provider import ModelSource
from pipelines.execution.chain import Row, Step, Workspace
from pipelines.media.audio import FRAME_SAMPLES, SampleReader, read_blocks
from pipelines.speech.chunks import Chunk
from pipelines.speech.words import TrackWord

_BATCH_CHUNKS = 4
"""Chunks a call: enough to fill a batch, few enough to hear a stop and to bound memory."""


@dataclass(frozen=True, slots=True)
class ChunkWords:
    """What was said in one chunk, in seconds of the track."""

    language: str | None
    words: tuple[TrackWord, ...]


def make_transcribe_step(
    workspace: Workspace,
    models: ModelSource,
    *,
    language: str | None,
    keyterms: tuple[str, ...],
) -> Step:
    """1:1. ``{audio_key, chunks, words_key}`` to itself; writes the words of each chunk.

    ``chunks`` is the shard's chunks as JSON. Words already stored are kept.
    """

    def run(row: Row) -> Row:
        if row.get("failure") or workspace.store.exists(row["words_key"]):
            return row
        chunks = chunks_from_json(row["chunks"])
        transcriber = models.transcriber()
        found: list[ChunkWords] = []
        with workspace.store.local_copy(row["audio_key"]) as path:
            for batch, samples in _batches(chunks, path):
                workspace.check()
                asked = [AudioChunk(each, language, keyterms) for each in samples]
                heard = transcriber.transcribe(asked)
                found.extend(map(_on_track, batch, heard))
        workspace.store.write_bytes(row["words_key"], words_to_json(found))
        return row

    return run


def chunks_to_json(chunks: Sequence[Chunk]) -> str:
    return json.dumps([[chunk.start_frame, chunk.end_frame] for chunk in chunks])


def chunks_from_json(text: str) -> list[Chunk]:
    return [Chunk(start, end) for start, end in json.loads(text)]


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
        ChunkWords(raw["language"], tuple(TrackWord(**word) for word in raw["words"]))
        for raw in json.loads(data)
    ]


def _batches(chunks: Sequence[Chunk], path: Path) -> Iterator[tuple[list[Chunk], list[Samples]]]:
    samples = shard_samples(chunks, path)
    for first in range(0, len(chunks), _BATCH_CHUNKS):
        batch = list(chunks[first : first + _BATCH_CHUNKS])
        yield batch, [next(samples) for _ in batch]


def _on_track(chunk: Chunk, heard: ChunkTranscript) -> ChunkWords:
    start = chunk.start_seconds
    words = (
        TrackWord(w.text, start + w.start_seconds, start + w.end_seconds, w.confidence)
        for w in heard.words
    )
    return ChunkWords(heard.language, tuple(words))
