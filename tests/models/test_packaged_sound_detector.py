"""The packaged detector of sounds: speech, singing, music, and none of them in noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speech.noises import made
from models.backends.packaged.sounds import FireRedSoundDetector
from models.contracts import SAMPLE_RATE_HZ, Samples, SoundKind
from models.provider import LocalModels
from models.registry import FIRE_RED
from models.tasks import DETECT_SOUNDS
from models.weights import WeightsError
from pipelines.media.audio import read_blocks

SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"
DETECTOR = LocalModels().get(DETECT_SOUNDS)
COLUMNS = {kind: number for number, kind in enumerate(SoundKind)}


def shares(samples: Samples) -> dict[SoundKind, float]:
    """In how much of the samples each kind is found."""
    present = (DETECTOR.find_sounds(samples) > 0.5).mean(axis=0)
    return {kind: float(present[number]) for kind, number in COLUMNS.items()}


@pytest.mark.parametrize("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_a_reader_is_speech_and_no_music(gain: float) -> None:
    samples = np.concatenate([*read_blocks(SPEECH / "one_voice.flac")])
    found = shares((gain * samples).astype(np.float32))
    assert found[SoundKind.SPEECH] > 0.5
    assert found[SoundKind.MUSIC] < 0.02
    assert found[SoundKind.SINGING] < 0.02


def test_a_band_is_music_and_hardly_speech() -> None:
    found = shares(made("band", 30.0, seed=3))
    assert found[SoundKind.MUSIC] > 0.9
    assert found[SoundKind.SPEECH] < 0.05


@pytest.mark.parametrize("kind", ["surf", "pink noise", "hum"])
def test_noises_are_neither(kind: str) -> None:
    assert max(shares(made(kind, 20.0, seed=3)).values()) < 0.05


def test_what_is_far_away_changes_nothing() -> None:
    """The network sees eight times twenty frames on both sides: 1.6 s."""
    samples = np.concatenate([*read_blocks(SPEECH / "two_voices.flac")])[: 10 * SAMPLE_RATE_HZ]
    whole = DETECTOR.find_sounds(samples)
    part = DETECTOR.find_sounds(samples[2 * SAMPLE_RATE_HZ : 8 * SAMPLE_RATE_HZ])
    assert part[170:-170] == pytest.approx(whole[370 : 200 + len(part) - 170], abs=1e-4)


@pytest.mark.parametrize("count", [0, 10, 399, 400, 560])
def test_there_is_a_row_a_whole_frame(count: int) -> None:
    found = DETECTOR.find_sounds(np.zeros(count, np.float32))
    assert found.shape == (max(0, 1 + (count - 400) // 160), len(SoundKind))


@pytest.mark.parametrize("length", [0, 10, 5_000, 500_000])
def test_weights_that_are_cut_short_are_refused(length: int) -> None:
    [data] = FIRE_RED.read(None).values()
    with pytest.raises(WeightsError, match="unreadable"):
        FireRedSoundDetector(data[:length])
