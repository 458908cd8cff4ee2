"""Speech, singing and music of a track, from probabilities of its windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from models.contracts import ACTIVITY_START_SAMPLES, SAMPLE_RATE_HZ, SoundKind
from pipelines.speech.voices import (
    CELL_FRAMES,
    FRAME_SECONDS,
    MARGIN_FRAMES,
    STEP_FRAMES,
    LocalVoices,
)
from pipelines.speech.words import to_ms
from pipelines.types import AudioTrack, TimedSound

CELL_SECONDS = CELL_FRAMES * FRAME_SECONDS
PROBABILITIES = {SoundKind.SPEECH: 0.4, SoundKind.SINGING: 0.5, SoundKind.MUSIC: 0.5}
"""From which on a sound is there: FireRedVAD's own."""
_SHORTEST_GAP_SECONDS = 0.5
"""Shorter ones are part of a sound: pauses between words, rests."""
_SHORTEST_SECONDS = 0.5


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
