"""Task ``transcribe`` with pocketsphinx and the English model that it bundles."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pocketsphinx

from models.backends.embedded.decoding_text import DecodedEntry, spoken_words
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, ChunkTranscript, Samples

_LANGUAGE = "en"
_SHORTEST_SAMPLES = SAMPLE_RATE_HZ // 10
"""Less than a tenth of a second holds no word, and too few frames for the decoder."""
_PEAK = 0.5
"""Chunks are scaled to this peak, so that quiet ones do not lose bits as 16-bit integers."""

_SETTINGS = {
    "loglevel": "FATAL",
    # Weights of the language model in the three passes. The defaults (6.5, 8.5, 9.5) trust it
    # more than this acoustic model deserves: of 5.0 to 8.0 tried, these gave the fewest errors.
    "lw": 5.5,
    "fwdflatlw": 7.0,
    "bestpathlw": 8.0,
}


class EmbeddedTranscriber:
    """Words of English speech, offline, at about a quarter of real time on one core.

    Each chunk is one utterance with the mean of its own cepstra taken off
    (``full_utt``) and a fresh front end, so that a transcript depends on its chunk only and
    not on what the decoder heard before. Key terms and the language hint are not used: the
    decoder's vocabulary and language model are fixed.
    """

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(**_SETTINGS)
        self._lock = threading.Lock()

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order; none of the words that are probably wrong."""
        return [self._transcribe(chunk.samples) for chunk in chunks]

    def _transcribe(self, samples: Samples) -> ChunkTranscript:
        words = spoken_words(self._decode(samples), len(samples) / SAMPLE_RATE_HZ)
        return ChunkTranscript(words=words, language=_LANGUAGE if words else None)

    def _decode(self, samples: Samples) -> list[DecodedEntry]:
        if len(samples) < _SHORTEST_SAMPLES or not samples.any():
            return []
        with self._lock:
            # Or the end of the last utterance is still in the front end, and changes this one.
            self._decoder.reinit_feat()
            self._decoder.start_utt()
            self._decoder.process_raw(_pcm(samples), no_search=False, full_utt=True)
            self._decoder.end_utt()
            return [
                DecodedEntry(each.word, each.start_frame, each.end_frame, each.prob)
                for each in self._decoder.seg() or ()
            ]


def _pcm(samples: Samples) -> bytes:
    """16-bit little-endian integers at a fixed peak."""
    scaled = samples.astype(np.float64) * (_PEAK / np.abs(samples).max())
    pcm = np.round(scaled * 32767).astype("<i2")
    return bytes(pcm.tobytes())
