"""Task ``transcribe`` with pocketsphinx and the English model that it bundles."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pocketsphinx

from models.backends.packaged.decoding_text import (
    FRAME_SECONDS,
    DecodedEntry,
    mean_confidence,
    pause_frames,
    spoken_words,
)
from models.backends.packaged.keyterms import with_keyterms
from models.backends.packaged.speech_detector import PackagedSpeechDetector
from models.contracts import SAMPLE_RATE_HZ, AudioChunk, ChunkTranscript, Samples

_LANGUAGE = "en"
_SHORTEST_SAMPLES = SAMPLE_RATE_HZ // 10
"""Less than a tenth of a second holds no word, and too few frames for the decoder."""
_PEAK = 0.5
"""Chunks are scaled to this peak, so that quiet ones do not lose bits as 16-bit integers."""

_NO_SEARCH = "features"
"""A grammar of one word: what it finds is of no interest, it costs next to nothing and
leaves the mean of the cepstra. (``no_search`` of the decoder searches all the same.)"""

_SURE = 0.6
"""Mean confidence from which sentences decoded one by one are believed."""

Pcm = npt.NDArray[np.int16]
_FRAME_SAMPLES = round(SAMPLE_RATE_HZ * FRAME_SECONDS)

_SETTINGS = {
    "loglevel": "FATAL",
    # Weights of the language model in the three passes. The defaults (6.5, 8.5, 9.5) trust it
    # more than this acoustic model deserves: of 5.0 to 8.0 tried, these gave the fewest errors.
    "lw": 5.5,
    "fwdflatlw": 7.0,
    "bestpathlw": 8.0,
}


class PackagedTranscriber:
    """Words of English speech, offline, at a quarter to half of real time on one core.

    The decoder gets each chunk with the mean of the chunk's own cepstra taken off and a
    fresh front end, so that a transcript depends on its chunk only and not on what the
    decoder heard before. Sentences between pauses are decoded one by one, which finds
    their first words better; where the result is in doubt the chunk is decoded in one
    piece, since bad sound needs all the context that there is. Its vocabulary and language
    model are fixed: key terms are put in afterwards, where the words that were heard sound
    like them. The language hint is not used.
    """

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(**_SETTINGS)
        self._search = self._decoder.current_search()
        self._decoder.add_jsgf_string(_NO_SEARCH, "#JSGF V1.0; grammar g; public <g> = the;")
        self._detector = PackagedSpeechDetector()
        self._lock = threading.Lock()

    def transcribe(self, chunks: Sequence[AudioChunk]) -> list[ChunkTranscript]:
        """One transcript a chunk, in order; none of the words that are probably wrong."""
        return [self._transcribe(chunk.samples, chunk.keyterms) for chunk in chunks]

    def _transcribe(self, samples: Samples, keyterms: Sequence[str]) -> ChunkTranscript:
        if len(samples) < _SHORTEST_SAMPLES or not samples.any():
            return ChunkTranscript((), None)
        with self._lock:
            path = self._best_path(samples)
            words = spoken_words(path, len(samples) / SAMPLE_RATE_HZ)
            if keyterms:
                words = with_keyterms(words, keyterms, self._decoder.lookup_word)
        return ChunkTranscript(words=words, language=_LANGUAGE if words else None)

    def _best_path(self, samples: Samples) -> list[DecodedEntry]:
        pcm = _pcm(samples)
        cuts = pause_frames(self._detector.detect(samples))
        if cuts:
            apart = self._cut_at(pcm, cuts)
            if mean_confidence(apart) >= _SURE:
                return apart
        return self._in_one_piece(pcm)

    def _in_one_piece(self, pcm: Pcm) -> list[DecodedEntry]:
        self._process(pcm, full_utt=True)
        return self._path(0)

    def _cut_at(self, pcm: Pcm, cuts: Sequence[int]) -> list[DecodedEntry]:
        """The parts between the cuts (in frames), all with the mean of the whole."""
        self._decoder.activate_search(_NO_SEARCH)
        self._process(pcm, full_utt=True)
        mean = self._decoder.get_cmn(False)
        self._decoder.activate_search(self._search)
        found: list[DecodedEntry] = []
        for first, part in zip([0, *cuts], _parts(pcm, cuts), strict=True):
            self._process(part, mean=mean)
            found.extend(self._path(first))
        return found

    def _process(self, pcm: Pcm, *, full_utt: bool = False, mean: str | None = None) -> None:
        # Or the end of the last utterance is still in the front end, and changes this one.
        self._decoder.reinit_feat()
        if mean is not None:
            self._decoder.set_cmn(mean)
        self._decoder.start_utt()
        self._decoder.process_raw(pcm.tobytes(), no_search=False, full_utt=full_utt)
        self._decoder.end_utt()

    def _path(self, first_frame: int) -> list[DecodedEntry]:
        return [
            DecodedEntry(
                each.word, first_frame + each.start_frame, first_frame + each.end_frame, each.prob
            )
            for each in self._decoder.seg() or ()
        ]


def _parts(pcm: Pcm, cuts: Sequence[int]) -> list[Pcm]:
    return list(np.split(pcm, [cut * _FRAME_SAMPLES for cut in cuts]))


def _pcm(samples: Samples) -> Pcm:
    """16-bit little-endian integers at a fixed peak."""
    scaled = samples.astype(np.float64) * (_PEAK / np.abs(samples).max())
    pcm: Pcm = np.round(scaled * 32767).astype("<i2")
    return pcm
