"""Speech is found, and nothing in what is not speech."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from scipy.signal import lfilter

from benchmarks.speech.material import turns_of
from benchmarks.speech.noises import made
from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.speech.regions import Region, is_supported, regions_of
from tests.pipelines.speech.detection import scanned
from tests.tables import every

TESTS = Path(__file__).resolve().parents[2]
SPEECH = TESTS / "media" / "speech"
SHARED = TESTS.parent / ".." / "shared" / "media"
NOTHING: list[tuple[float, float]] = []


def detected(samples: Samples) -> list[Region]:
    return scanned(samples)[0]


def load(path: Path) -> Samples:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def seconds(count: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.arange(round(count * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ


def noise(level: float) -> Samples:
    return (level * np.random.default_rng(3).normal(size=10 * SAMPLE_RATE_HZ)).astype(np.float32)


def hum() -> Samples:
    tones = [np.sin(2 * np.pi * 50 * k * seconds(10)) / k for k in range(1, 8)]
    samples: Samples = (0.1 * np.sum(tones, axis=0)).astype(np.float32)
    return samples


def chord() -> Samples:
    """Held chords that change every two seconds, as a synthesiser pad."""
    time = seconds(10)
    root = np.array([220.0, 175.0, 262.0, 196.0, 220.0])[(time // 2).astype(int)]
    tones = [np.sin(2 * np.pi * np.cumsum(root * r) / SAMPLE_RATE_HZ) for r in (1, 1.25, 1.5)]
    samples: Samples = (0.1 * np.sum(tones, axis=0)).astype(np.float32)
    return samples


@every(
    "samples",
    [
        pytest.param(np.zeros(0, np.float32), id="no samples"),
        pytest.param(np.zeros(100, np.float32), id="less than a frame"),
        pytest.param(np.zeros(10 * SAMPLE_RATE_HZ, np.float32), id="digital silence"),
        pytest.param(noise(1e-5), id="dither"),
        pytest.param(noise(0.1), id="white noise"),
        pytest.param(lfilter([0.05], [1, -0.98], noise(0.1)), id="brown noise"),
        pytest.param(hum(), id="mains hum"),
        pytest.param(chord(), id="chords"),
        pytest.param(np.append(hum(), np.zeros_like(hum())), id="hum that stops"),
    ],
)
def test_what_is_not_speech_has_no_regions(samples: Samples) -> None:
    assert detected(samples.astype(np.float32)) == NOTHING


@every(
    "kind",
    ["surf", "crowd without words", "machine", "hum", "pink noise", "choir on vowels"],
)
def test_noises_and_sung_vowels_have_no_regions(kind: str) -> None:
    assert detected(made(kind, 30.0, seed=3)) == NOTHING


def test_hardly_any_of_a_tune_is_taken_for_speech() -> None:
    regions = detected(made("band", 60.0, seed=3))
    assert sum(end - start for start, end in regions) < 3.0


@pytest.mark.parametrize("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_spoken_sentences_are_found_and_the_pauses_between_them(gain: float) -> None:
    regions = detected(gain * load(SPEECH / "one_voice.flac"))
    spoken = [(0.5, 3.233), (3.933, 5.887), (6.587, 8.55)]
    assert len(regions) == len(spoken)
    for (start, end), (from_second, to_second) in zip(regions, spoken, strict=True):
        assert start == pytest.approx(from_second, abs=0.25)
        assert end == pytest.approx(to_second, abs=0.25)


def test_quiet_speech_is_found_beside_a_loud_bang() -> None:
    speech = 0.01 * load(SPEECH / "one_voice.flac")
    bang = np.zeros(8 * SAMPLE_RATE_HZ, np.float32)
    bang[3 * SAMPLE_RATE_HZ : 3 * SAMPLE_RATE_HZ + 800] = 0.9
    regions = detected(np.append(bang, speech))
    assert sum(end - start for start, end in regions if start > 8) > 5


def test_the_answer_does_not_depend_on_earlier_calls() -> None:
    speech = load(SPEECH / "two_voices.flac")
    first = detected(speech)
    detected(noise(0.2))
    assert detected(speech) == first
    assert first == sorted(first)


@pytest.mark.shared_media
@pytest.mark.parametrize(
    "name",
    [
        "speech/leopard-empty-nospeech.wav",
        "formats/smpte-2997.mp4",
        "cuts/car-detection.mp4",
    ],
)
def test_recordings_without_speech_have_no_regions(name: str) -> None:
    assert detected(load(SHARED / name)) == NOTHING


@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["jfk.wav", "azure-en.wav", "spk1_snt1.wav", "cards-001.wav"])
def test_recordings_of_speech_are_mostly_speech(name: str) -> None:
    samples = load(SHARED / "speech" / name)
    found = sum(end - start for start, end in detected(samples))
    assert found > 0.6 * len(samples) / SAMPLE_RATE_HZ


@pytest.mark.parametrize(
    ("probabilities", "frames"),
    [
        pytest.param([0.4] * 20, [], id="never probable"),
        pytest.param([0.1] * 5 + [0.6] + [0.4] * 9 + [0.2] * 5, [(5, 15)], id="lasts at 0.4"),
        pytest.param([0.9] * 3 + [0.1] * 9, [], id="96 ms are too short"),
        pytest.param([0.9] * 8 + [0.1] * 3 + [0.9] * 9, [(0, 20)], id="a gap of 96 ms is speech"),
        pytest.param([0.9] * 8 + [0.1] * 4 + [0.9] * 8, [(0, 8), (12, 20)], id="a gap of 128 ms"),
    ],
)
def test_regions_begin_and_end_at_different_probabilities(
    probabilities: list[float], frames: list[tuple[int, int]]
) -> None:
    found = regions_of(np.array(probabilities, np.float32), 0.64)
    assert found == [pytest.approx((start * 0.032, end * 0.032)) for start, end in frames]


@pytest.mark.shared_media
@pytest.mark.parametrize(("name", "share"), [("ami-dev00", 0.9), ("ami-trn05", 0.9)])
def test_most_of_what_is_spoken_in_a_meeting_is_found(name: str, share: float) -> None:
    """Silero alone, at its default threshold, finds 0.60 and 0.75."""
    turns = turns_of(f"speakers/{name}.wav")
    spoken, found = np.zeros(3000, np.bool_), np.zeros(3000, np.bool_)
    for start, end, _ in turns:
        spoken[round(start * 100) : round(end * 100)] = True
    for start, end in detected(load(SHARED / "speakers" / f"{name}.wav")):
        found[round(start * 100) : round(end * 100)] = True
    assert (spoken & found).sum() >= share * spoken.sum()
    assert (found & ~spoken).sum() <= 0.1 * len(found)


@pytest.mark.parametrize(
    ("region", "supported"),
    [
        pytest.param((0.0, 1.0), False, id="Silero has no doubt"),
        pytest.param((2.0, 4.0), False, id="of a quarter"),
        pytest.param((3.0, 4.0), True, id="of a half"),
    ],
)
def test_a_region_of_segmentation_counts_where_silero_doubts_too(
    region: tuple[float, float], supported: bool
) -> None:
    assert is_supported(region, [(3.5, 5.0)]) is supported
