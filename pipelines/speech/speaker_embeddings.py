"""Step: a shard's words to voice vectors of the windows they lie in."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.contracts import SAMPLE_RATE_HZ, Samples, SpeakerEmbedder
from models.provider import ModelProvider
from pipelines.execution.chain import Row, Step, Workspace
from pipelines.speech.chunks import Chunk
from pipelines.speech.speakers import Vectors, VoiceWindow, WindowLimits, voice_windows
from pipelines.speech.transcribe import (
    ChunkWords,
    chunks_from_json,
    shard_samples,
    words_from_json,
)


@dataclass(frozen=True, slots=True)
class ShardVoices:
    """Windows of a shard in time order: seconds and words of each, and their vectors."""

    seconds: npt.NDArray[np.float64]
    word_counts: npt.NDArray[np.int64]
    vectors: Vectors

    def to_npz(self) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, seconds=self.seconds, word_counts=self.word_counts, vectors=self.vectors)
        return stream.getvalue()

    @staticmethod
    def from_npz(data: bytes) -> ShardVoices:
        with np.load(io.BytesIO(data)) as arrays:
            return ShardVoices(arrays["seconds"], arrays["word_counts"], arrays["vectors"])


def make_speaker_embeddings_step(
    workspace: Workspace, models: ModelProvider, limits: WindowLimits
) -> Step:
    """1:1. ``{audio_key, chunks, words_key, voices_key}`` to itself; writes ShardVoices."""

    def run(row: Row) -> Row:
        store = workspace.store
        if row.get("failure") or store.exists(row["voices_key"]):
            return row
        words = words_from_json(store.read_bytes(row["words_key"]))
        chunks = chunks_from_json(row["chunks"])
        embedder = models.speaker_embedder() if any(each.words for each in words) else None
        found: list[ShardVoices] = []
        with store.local_copy(row["audio_key"]) as path:
            for chunk, said, samples in zip(
                chunks, words, shard_samples(chunks, path), strict=True
            ):
                workspace.check()
                if embedder is not None and said.words:
                    found.append(_voices(chunk, said, samples, embedder, limits))
        store.write_bytes(row["voices_key"], join_voices(found).to_npz())
        return row

    return run


def join_voices(parts: Sequence[ShardVoices]) -> ShardVoices:
    """The windows of all parts, in order."""
    parts = [part for part in parts if len(part.seconds)]
    if not parts:
        return ShardVoices(np.empty(0), np.empty(0, np.int64), np.empty((0, 1), np.float32))
    return ShardVoices(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.word_counts for part in parts]),
        np.concatenate([part.vectors for part in parts]),
    )


def _voices(
    chunk: Chunk,
    said: ChunkWords,
    samples: Samples,
    embedder: SpeakerEmbedder,
    limits: WindowLimits,
) -> ShardVoices:
    spans = [(word.start_seconds, word.end_seconds) for word in said.words]
    windows = voice_windows(spans, (chunk.start_seconds, chunk.end_seconds), limits)
    vectors = embedder.embed([_cut(samples, chunk, window) for window in windows])
    return ShardVoices(
        np.array([window.end_seconds - window.start_seconds for window in windows]),
        np.array([window.word_count for window in windows], np.int64),
        vectors,
    )


def _cut(samples: Samples, chunk: Chunk, window: VoiceWindow) -> Samples:
    start = round((window.start_seconds - chunk.start_seconds) * SAMPLE_RATE_HZ)
    end = round((window.end_seconds - chunk.start_seconds) * SAMPLE_RATE_HZ)
    return samples[max(0, start) : end]
