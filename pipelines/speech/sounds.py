"""Speech, singing and music of a track, from probabilities of its windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from models.contracts import ACTIVITY_START_SAMPLES, SAMPLE_RATE_HZ, SoundKind
from pipelines.speech.languages import SpokenPart
from pipelines.speech.voices import (
    CELL_FRAMES,
    FRAME_SECONDS,
    MARGIN_FRAMES,
    STEP_FRAMES,
    LocalVoices,
)
from pipelines.speech.words import TrackWord, to_ms
from pipelines.types import AudioTrack, TimedSound

CELL_SECONDS = CELL_FRAMES * FRAME_SECONDS
PROBABILITIES = {SoundKind.SPEECH: 0.4, SoundKind.SINGING: 0.5, SoundKind.MUSIC: 0.5}
"""From which on a sound is there: FireRedVAD's own."""
_SHORTEST_GAP_SECONDS = 0.5
"""Shorter ones are part of a sound: pauses between words, rests."""
_SHORTEST_SECONDS = 0.5
_SUNG_CONFIDENCE = 0.5
"""Mean of a part's words in music or singing below which they are made up."""


def find_sounds(
    voices: LocalVoices, track: AudioTrack, media_duration_ms: int
) -> tuple[TimedSound, ...]:
    """Sounds inside the media, by start; kinds overlap, as speech over music does."""
    curve = sound_curve(voices)
    found = []
    for column, kind in enumerate(SoundKind):
        for first, last in _runs(curve[:, column] >= PROBABILITIES[kind]):
            start, end = (
                ACTIVITY_START_SAMPLES / SAMPLE_RATE_HZ + cell * CELL_SECONDS
                for cell in (first, last)
            )
            start_ms = max(0, to_ms(start + track.offset_seconds))
            end_ms = to_ms(min(end, track.duration_seconds) + track.offset_seconds)
            end_ms = min(media_duration_ms, end_ms)
            if start_ms < end_ms:
                confidence = float(curve[first:last, column].mean())
                found.append(TimedSound(kind, start_ms, end_ms, confidence))
    return tuple(sorted(found, key=lambda sound: (sound.start_ms, sound.end_ms)))


def without_sung(parts: Sequence[SpokenPart], voices: LocalVoices) -> list[SpokenPart]:
    """The parts without words where music or singing is and no speech, if those are doubtful.

    A decoder makes words up of music. Of a song that it knows well the words stay, also the
    doubtful ones among them.
    """
    curve = sound_curve(voices)
    present = {kind: curve[:, at] >= PROBABILITIES[kind] for at, kind in enumerate(SoundKind)}
    tuneful = present[SoundKind.MUSIC] | present[SoundKind.SINGING]
    sung = np.concatenate([[0], np.cumsum(tuneful & ~present[SoundKind.SPEECH])])

    def is_sung(word: TrackWord) -> bool:
        begin = ACTIVITY_START_SAMPLES / SAMPLE_RATE_HZ
        first = max(0, math.floor((word.start_seconds - begin) / CELL_SECONDS))
        last = min(len(curve), max(first + 1, math.ceil((word.end_seconds - begin) / CELL_SECONDS)))
        return bool(2 * (sung[last] - sung[min(first, last)]) > last - first)

    found = []
    for part in parts:
        doubts = [1 - word.confidence for word in part.words if is_sung(word)]
        if doubts and sum(doubts) / len(doubts) > 1 - _SUNG_CONFIDENCE:
            found.append(replace(part, words=tuple(w for w in part.words if not is_sung(w))))
        else:
            found.append(part)
    return found


def sound_curve(voices: LocalVoices) -> npt.NDArray[np.float32]:
    """Probabilities over the whole track, shape (cells, kinds), a cell each CELL_SECONDS."""
    low = MARGIN_FRAMES // CELL_FRAMES
    high = low + STEP_FRAMES // CELL_FRAMES
    middle = voices.sounds[:, low:high].reshape(-1, len(SoundKind))
    parts = [voices.sounds[0, :low], middle, voices.sounds[-1, high:]]
    return (np.concatenate(parts) / np.float32(255)).astype(np.float32)


def _runs(present: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """First cell and the one after the last of each sound."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], present, [False])))).reshape(-1, 2)
    runs: list[tuple[int, int]] = []
    for first, last in edges.tolist():
        if runs and (first - runs[-1][1]) * CELL_SECONDS < _SHORTEST_GAP_SECONDS:
            runs[-1] = runs[-1][0], last
        else:
            runs.append((first, last))
    yield from (run for run in runs if (run[1] - run[0]) * CELL_SECONDS >= _SHORTEST_SECONDS)
