"""Sounds of a track: from probabilities of windows to times on the video's timeline."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.speech.noises import made
from models.contracts import ACTIVITY_FRAMES, LOCAL_SPEAKERS, SAMPLE_RATE_HZ, SoundKind
from models.provider import LocalModels
from pipelines.speech.languages import SpokenPart
from pipelines.speech.regions import CELL_SECONDS, find_sounds, without_sung
from pipelines.speech.speakers import LocalVoices, embedded
from pipelines.speech.words import TrackWord
from pipelines.types import AudioTrack
from tests.tables import every

CELLS, STEP_CELLS, MARGIN_CELLS = 73, 37, 18
Span = tuple[SoundKind, float, float]
MUSIC, SINGING, SPEECH = SoundKind.MUSIC, SoundKind.SINGING, SoundKind.SPEECH


def voices(spans: list[Span], windows: int) -> LocalVoices:
    """Windows in which the spans sound, and at the edges, where they lack context, the opposite."""
    sounds = np.zeros((windows, CELLS, len(SoundKind)), np.uint8)
    for window in range(windows):
        times = (window * STEP_CELLS + np.arange(CELLS) + 0.5) * CELL_SECONDS + 0.0225
        for kind, start, end in spans:
            column = list(SoundKind).index(kind)
            sounds[window, (times >= start) & (times < end), column] = 204
        low = MARGIN_CELLS if window else 0
        high = MARGIN_CELLS + STEP_CELLS if window < windows - 1 else CELLS
        sounds[window, :low] = 255 - sounds[window, :low]
        sounds[window, high:] = 255 - sounds[window, high:]
    speaking = np.zeros((windows, ACTIVITY_FRAMES, LOCAL_SPEAKERS), bool)
    vectors = np.zeros((windows, LOCAL_SPEAKERS, 4), np.float16)
    return LocalVoices(speaking, vectors, sounds, np.zeros((windows, ACTIVITY_FRAMES), np.uint8))


@every(
    ("spans", "found"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(MUSIC, 2, 12)], [(MUSIC, 2, 12)], id="over windows"),
        pytest.param(
            [(MUSIC, 0, 25), (SPEECH, 5, 9)], [(MUSIC, 0, 25), (SPEECH, 5, 9)], id="speech over it"
        ),
        pytest.param(
            [(SPEECH, 2, 4), (SPEECH, 4.3, 7)], [(SPEECH, 2, 7)], id="a pause between words"
        ),
        pytest.param([(MUSIC, 2, 4), (MUSIC, 6, 8)], [(MUSIC, 2, 4), (MUSIC, 6, 8)], id="a pause"),
        pytest.param([(SINGING, 2, 2.3)], [], id="too short"),
    ],
)
def test_sounds_are_when_they_are_probable(spans: list[Span], found: list[Span]) -> None:
    track = AudioTrack(0, "camera", "track", 25.0)
    sounds = find_sounds(voices(spans, 5), track, 60_000)
    assert [sound.kind for sound in sounds] == [kind for kind, _, _ in found]
    for sound, (_, start, end) in zip(sounds, found, strict=True):
        assert sound.start_ms / 1000 == pytest.approx(start, abs=0.15)
        assert sound.end_ms / 1000 == pytest.approx(end, abs=0.15)
        assert 0.7 < sound.confidence < 0.81


def test_sounds_lie_inside_the_media_where_their_track_does() -> None:
    track = AudioTrack(0, "camera", "track", 20.0, offset_seconds=-3.0)
    [sound] = find_sounds(voices([(MUSIC, 0, 30)], 5), track, media_duration_ms=14_000)
    assert (sound.start_ms, sound.end_ms) == (0, 14_000)


@every(
    ("spans", "confidences", "kept"),
    [
        pytest.param([(MUSIC, 0, 25)], [0.3, 0.6, 0.2], 0, id="made up of music"),
        pytest.param([(SINGING, 0, 25)], [0.3, 0.6, 0.2], 0, id="made up of singing"),
        pytest.param([(SINGING, 0, 25)], [0.9, 0.3, 0.8], 3, id="a song that it knows"),
        pytest.param([(MUSIC, 0, 25), (SPEECH, 0, 25)], [0.3, 0.2, 0.2], 3, id="speech over music"),
        pytest.param([(SPEECH, 0, 25)], [0.3, 0.2, 0.2], 3, id="speech"),
        pytest.param([], [0.3, 0.2, 0.2], 3, id="no sound that is known"),
        pytest.param([(MUSIC, 0, 7)], [0.1, 0.1, 0.2], 1, id="where the music is"),
    ],
)
def test_doubtful_words_of_music_are_dropped(
    spans: list[Span], confidences: list[float], kept: int
) -> None:
    words = [TrackWord("la", 2.0 + 3 * at, 2.4 + 3 * at, c) for at, c in enumerate(confidences)]
    part = SpokenPart(0, 1000, tuple(words), "en", 0.9, -0.3)
    [found] = without_sung([part], voices(spans, 5))
    assert found.words == tuple(words[len(words) - kept :])


def test_music_that_begins_in_the_middle_is_found_there() -> None:
    samples = np.concatenate([np.zeros(8 * SAMPLE_RATE_HZ, np.float32), made("band", 12.0, seed=3)])
    starts = [79_920 * number for number in range(3)]
    found = embedded([samples[at : at + 160_000] for at in starts], LocalModels())
    track = AudioTrack(0, "camera", "track", 20.0)
    [music] = [each for each in find_sounds(found, track, 20_000) if each.kind is MUSIC]
    assert music.start_ms == pytest.approx(8_000, abs=300)
    assert music.end_ms == pytest.approx(20_000, abs=300)
