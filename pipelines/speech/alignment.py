"""Times of words: measured for a correction by the task ``align``, settled by how loud the sound
is.

The attention of a decoder, which words get their times from, runs ahead of the sound and gives the
pause before a word to it. Against forced alignments of three readings starts were early by 0.06 s
in the median (by 0.3 s after a pause) and ends by 0.04 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.contracts import SAMPLE_RATE_HZ, Samples, SpokenText, Word
from models.tasks import WordAligner
from pipelines.media.audio import SampleReader, read_blocks
from pipelines.media.files import Fetch, RangedFile
from pipelines.speech.edits import aligned, passages_of
from pipelines.speech.words import to_ms
from pipelines.types import AudioTrack, TranscriptSegment
from storage.objects import ObjectStore

_FRAME_SECONDS = 0.01
_AHEAD_SECONDS = 0.06
"""So much earlier than the sound the alignment is."""
_QUIET_SHARE = 0.4
"""Of the way from the quietest to the loudest frames of a chunk, in dB: below it nobody speaks."""
_QUIET_SECONDS = 0.06
"""A pause is at least so long: the closures of stops are mostly shorter."""
_NEAR_SECONDS = 0.12
"""A pause that begins so soon after a word's start, or ends so shortly before its end, is none of
the word."""
_SWALLOWED_SECONDS = 0.4
"""A pause inside a word that is longer parts it from what is none of it."""
_LEAST_SECONDS = 0.04
"""What is left of a word at least."""

_LONGEST_SECONDS = 0.6
_SECONDS_A_LETTER = 0.12
"""No word lasts longer than these allow: what comes after it is something else."""

Span = tuple[float, float]


def settled(words: Sequence[Word], samples: Samples, speech: Sequence[Span] = ()) -> list[Word]:
    """Return the words of a chunk without the pauses around and inside them, in order, none
    overlapping.

    ``words`` and ``speech``, where it was detected, are in seconds of ``samples``.
    """
    seconds = len(samples) / SAMPLE_RATE_HZ
    pauses = [each for each in _pauses(samples) if not _is_soft_speech(each, speech)]
    found: list[Word] = []
    earliest = 0.0
    for word in words:
        start = min(word.start_seconds + _AHEAD_SECONDS, seconds)
        end = min(word.end_seconds + _AHEAD_SECONDS, seconds)
        start, end = _without_pauses(max(start, earliest), max(end, earliest), pauses)
        end = min(end, start + _LONGEST_SECONDS + _SECONDS_A_LETTER * len(word.text))
        found.append(Word(word.text, start, end, word.confidence))
        earliest = end
    return found


def _is_soft_speech(pause: Span, speech: Sequence[Span]) -> bool:
    """Return whether somebody speaks in a long pause, only less loudly than before and after it."""
    length = pause[1] - pause[0]
    inside = sum(max(0.0, min(pause[1], end) - max(pause[0], start)) for start, end in speech)
    return length >= _SWALLOWED_SECONDS and inside > length / 2


def _pauses(samples: Samples) -> list[Span]:
    """Return where a chunk is quiet, in seconds."""
    levels = _levels(samples)
    if not len(levels):
        return []
    low, high = np.percentile(levels, [5, 95])
    quiet = np.concatenate([[False], levels < low + _QUIET_SHARE * (high - low), [False]])
    edges = np.flatnonzero(np.diff(quiet)).reshape(-1, 2) * _FRAME_SECONDS
    return [(start, end) for start, end in edges.tolist() if end - start >= _QUIET_SECONDS]


def _levels(samples: Samples) -> npt.NDArray[np.float64]:
    """dB of full scale of each frame, over three of them."""
    size = round(SAMPLE_RATE_HZ * _FRAME_SECONDS)
    whole = samples[: len(samples) // size * size].astype(np.float64).reshape(-1, size)
    power: npt.NDArray[np.float64] = np.mean(whole**2, axis=1)
    if not len(power):
        return power
    smooth = np.convolve(np.pad(power, 1, mode="edge"), np.full(3, 1 / 3), mode="valid")
    levels: npt.NDArray[np.float64] = 10 * np.log10(np.maximum(smooth, 1e-9))
    return levels


def _without_pauses(start: float, end: float, pauses: Sequence[Span]) -> Span:
    near = ((low, high) for low, high in pauses if low < end and high > start)
    inside = [(max(start, low), min(end, high)) for low, high in near]
    for low, high in inside:
        if high - low < _SWALLOWED_SECONDS:
            continue
        if low - start > end - high:
            end = min(end, low)
        else:
            start = max(start, high)
    for low, high in inside:
        if low - start <= _NEAR_SECONDS and end - high >= _LEAST_SECONDS:
            start = max(start, high)
        elif end - high <= _NEAR_SECONDS and low - start >= _LEAST_SECONDS:
            end = min(end, low)
    return start, max(start, end)


_AROUND_MS = 500
"""Sound before and after a segment, as far as no other one is there: a word that was not made out
may begin or end in it."""


def align_segment(
    segment: TranscriptSegment,
    room: tuple[int, int],
    language: str | None,
    track: AudioTrack,
    model: WordAligner,
    store: ObjectStore,
) -> TranscriptSegment:
    """Return the segment with measured times where its words are estimated, as far as they can be
    aligned.

    ``room`` is what other segments leave, in milliseconds of the media. Raises ObjectNotFoundError
    where the sound is not kept, and what the model raises.
    """
    words = segment.words
    begins, ends = words[0].start_ms - _AROUND_MS, words[-1].end_ms + _AROUND_MS
    room = max(room[0], begins), min(room[1], ends)
    for first, end in passages_of(segment):
        low = words[first - 1].end_ms if first else room[0]
        high = words[end].start_ms if end < len(words) else room[1]
        samples = track_samples(store, track, low, high)
        texts = tuple(word.text for word in words[first:end])
        [found] = model.align([SpokenText(samples, texts, segment.language or language)])
        if found:
            began = max(low / 1000, track.offset_seconds)
            spans = [
                (to_ms(began + word.start_seconds), to_ms(began + word.end_seconds))
                for word in settled(found, samples)
            ]
            segment = aligned(segment, first, spans, room)
    return segment


def track_samples(store: ObjectStore, track: AudioTrack, start_ms: float, end_ms: float) -> Samples:
    """Return the sound of a track from ``start_ms`` to ``end_ms`` of the media, as far as there is
    some.

    Raises ObjectNotFoundError where the sound is not kept.
    """
    start = max(0, round((start_ms / 1000 - track.offset_seconds) * SAMPLE_RATE_HZ))
    end = max(start, round((end_ms / 1000 - track.offset_seconds) * SAMPLE_RATE_HZ))
    with _sound(store, track.key) as file:
        return SampleReader(read_blocks(file, start)).read(0, end - start)


@contextmanager
def _sound(store: ObjectStore, key: str) -> Iterator[Path | RawIOBase]:
    """The track's file; of one in a bucket the bytes that are read."""
    with store.ranged_copy(key) as copy:
        fetch = copy.fetch
        if fetch is None:
            yield copy.path
            return

        def emit(event: object) -> None:
            if isinstance(event, Fetch):
                fetch(event.first, event.end)

        with RangedFile(copy.path, emit) as file:
            yield file
