"""Task ``transcribe`` with pocketsphinx and the English model that it bundles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pocketsphinx

from models.backends.embedded.decoding_text import spoken_words
from models.contracts import AudioChunk, ChunkTranscript, Samples

_LANGUAGE = "en"


class EmbeddedTranscriber:
    """Words of English speech, offline. Not safe for use by several threads at once."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(
            loglevel="FATAL", lw=5.5, fwdflatlw=7.0, bestpathlw=8.0
        )

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order; words below the confidence floor are left out."""
        return [self._transcribe(chunk) for chunk in chunks]

    def _transcribe(self, chunk: AudioChunk) -> ChunkTranscript:
        segments = self._decode(chunk.samples)
        duration_seconds = len(chunk.samples) / 16_000
        words = spoken_words(segments, duration_seconds)
        return ChunkTranscript(words=words, language=_LANGUAGE if words else None)

    def _decode(self, samples: Samples) -> list[tuple[str, int, int, float]]:
        raw = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        decoder = self._decoder
        decoder.start_utt()
        decoder.process_raw(raw, no_search=False, full_utt=True)
        decoder.end_utt()
        return [
            (each.word, each.start_frame, each.end_frame, each.prob) for each in decoder.seg() or ()
        ]
