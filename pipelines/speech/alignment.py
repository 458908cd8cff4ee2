"""Measured times for the words of a correction: a track's sound through the task ``align``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from models.contracts import SAMPLE_RATE_HZ, Samples, SpokenText
from models.tasks import WordAligner
from pipelines.media.audio import SampleReader, read_blocks
from pipelines.media.ranged import Fetch, RangedFile
from pipelines.speech.edits import Span, aligned, passages_of
from pipelines.speech.word_times import settled
from pipelines.speech.words import to_ms
from pipelines.types import AudioTrack, TranscriptSegment
from storage.objects import ObjectStore

_AROUND_MS = 500
"""Sound before and after a segment, as far as no other one is there: a word that was not made out
may begin or end in it."""


def align_segment(
    segment: TranscriptSegment,
    room: Span,
    language: str | None,
    track: AudioTrack,
    model: WordAligner,
    store: ObjectStore,
) -> TranscriptSegment:
    """The segment with measured times where its words are estimated, as far as they can be aligned.

    ``room`` is what other segments leave, in milliseconds of the media. Raises ObjectNotFoundError
    where the sound is not kept, and what the model raises.
    """
    words = segment.words
    room = (
        max(room[0], words[0].start_ms - _AROUND_MS),
        min(room[1], words[-1].end_ms + _AROUND_MS),
    )
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
    """The sound of a track from ``start_ms`` to ``end_ms`` of the media, as far as there is some.

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
