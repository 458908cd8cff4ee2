"""The packaged voice embedding: one voice stays near itself, others are far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from threadpoolctl import threadpool_info, threadpool_limits

from models.backends.packaged.speech import (
    open_speaker_embedder,
    open_speech_detector,
    read_tensors,
)
from models.contracts import SAMPLE_RATE_HZ, Samples
from models.opening import open_model
from models.registry.packaged import PACKAGED, RESEMBLYZER
from models.tasks import DETECT_SPEECH, EMBED_VOICE
from models.weights import WeightsError
from pipelines.speech.speakers import SpeakerRules, assign_voices

TESTS = Path(__file__).resolve().parents[1]
SHARED = TESTS.parent / ".." / "shared" / "media"
EMBEDDER = open_speaker_embedder(PACKAGED[EMBED_VOICE], None)
DETECTOR = open_speech_detector(PACKAGED[DETECT_SPEECH], None)
VOWELS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (570, 840, 2410),
)
"""First three formants of a man's a, i, u, e, o in Hz (Peterson and Barney 1952)."""
BASS, TENOR, ALTO = (95.0, 0.95), (150.0, 1.05), (215.0, 1.2)
"""Synthetic voices: mean pitch in Hz, formants relative to VOWELS."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As ``open_model`` leaves it: two threads of OpenBLAS wait for each other on busy cores."""
    with threadpool_limits(1, user_api="blas"):
        yield


def load(path: Path) -> Samples:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(str(path)) as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def babble(voice: tuple[float, float], *, seed: int, seconds: float = 2.5) -> Samples:
    """Random vowels of a voice: pulses at its pitch through resonators at its formants."""
    random = np.random.default_rng(seed)
    syllables = []
    for _ in range(round(seconds / 0.25)):
        vowel = VOWELS[random.integers(len(VOWELS))]
        pitch = voice[0] * 2 ** random.normal(0, 0.1)
        count = SAMPLE_RATE_HZ // 4
        phase = np.cumsum(np.full(count, pitch / SAMPLE_RATE_HZ))
        sound = np.diff(np.floor(phase), prepend=0.0) + random.normal(0, 0.002, count)
        for formant in vowel:
            sound = resonate(sound, formant * voice[1])
        syllables.append(sound / np.abs(sound).max() * np.hanning(count) * random.uniform(0.3, 0.6))
    return np.concatenate(syllables).astype(np.float32)


def resonate(
    sound: np.ndarray[tuple[int], np.dtype[np.float64]], hz: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    radius = np.exp(-np.pi * 90 / SAMPLE_RATE_HZ)
    filtered: np.ndarray[tuple[int], np.dtype[np.float64]] = lfilter(
        [1.0], [1.0, -2 * radius * np.cos(2 * np.pi * hz / SAMPLE_RATE_HZ), radius**2], sound
    )
    return filtered


def clustered(utterances: list[Samples]) -> list[int]:
    vectors = EMBEDDER.embed(utterances)
    seconds = np.array([len(each) / SAMPLE_RATE_HZ for each in utterances])
    return [int(label) for label in assign_voices(seconds, vectors, SpeakerRules())]


def utterances_of(samples: Samples) -> list[Samples]:
    """Stretches of about 2 s of speech, as the pipeline cuts them."""
    found: list[Samples] = []
    for start, end in DETECTOR.detect(samples):
        count = max(1, math.ceil((end - start) / 2.0))
        if (end - start) / count >= 1.0:
            part = samples[round(start * SAMPLE_RATE_HZ) : round(end * SAMPLE_RATE_HZ)]
            found.extend(np.array_split(part, count))
    return found


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(babble(TENOR, seed=1), id="a voice"),
        pytest.param(np.zeros(SAMPLE_RATE_HZ, np.float32), id="silence"),
        pytest.param(np.ones(10, np.float32), id="ten samples"),
    ],
)
def test_vectors_are_finite_and_of_unit_length(samples: Samples) -> None:
    vectors = EMBEDDER.embed([samples, samples])
    assert vectors.shape[0] == 2
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


def test_no_utterances_give_no_vectors() -> None:
    assert EMBEDDER.embed([]).shape[0] == 0


@pytest.mark.parametrize("gain", [0.1, 0.9])
def test_loudness_does_not_matter(gain: float) -> None:
    voice = babble(TENOR, seed=1)
    one, other = EMBEDDER.embed([voice, (gain * voice).astype(np.float32)])
    assert float(one @ other) > 0.999


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00echotR.", id="os.system"),
        pytest.param(b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.", id="eval"),
        pytest.param(b"\x80\x02}.", id="cut short"),
        pytest.param(b"", id="empty"),
    ],
)
def test_weights_that_are_no_tensors_are_refused_and_not_run(opcodes: bytes) -> None:
    with pytest.raises(WeightsError, match="unreadable"):
        read_tensors(opcodes)


def test_the_network_gives_what_torch_gives() -> None:
    [data] = RESEMBLYZER.read(None).values()
    tensors = {name: torch.tensor(values) for name, values in read_tensors(data).items()}
    lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
    lstm.load_state_dict({n[5:]: t for n, t in tensors.items() if n.startswith("lstm.")})
    windows = np.random.default_rng(0).random((3, 160, 40)).astype(np.float32)
    with torch.no_grad():
        _, (hidden, _) = lstm(torch.tensor(windows))
        raw = torch.relu(hidden[-1] @ tensors["linear.weight"].T + tensors["linear.bias"])
    expected = (raw / raw.norm(dim=1, keepdim=True)).numpy()
    assert np.abs(EMBEDDER._encoded(windows) - expected).max() < 1e-5


@pytest.mark.shared_media
@pytest.mark.parametrize("name", ["jfk.wav", "azure-en.wav", "azure-ja.wav", "sonnet-I-p001.mp3"])
def test_one_reader_is_one_speaker(name: str) -> None:
    assert set(clustered(utterances_of(load(SHARED / "speech" / name)))) == {0}


@pytest.mark.shared_media
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("azure-en.wav", "sonnet-I-p001.mp3"),
        ("jfk.wav", "azure-en.wav"),
        ("sonnet-I-p001.mp3", "leopard-test_fr.wav"),
    ],
)
def test_two_readers_are_two_speakers(one: str, other: str) -> None:
    parts = [utterances_of(load(SHARED / "speech" / name)) for name in (one, other)]
    truth = [0] * len(parts[0]) + [1] * len(parts[1])
    assert clustered(parts[0] + parts[1]) == truth


def test_an_opened_model_leaves_one_thread_to_openblas() -> None:
    with threadpool_limits(2, user_api="blas"):
        open_model("packaged", EMBED_VOICE)
        threads = [each["num_threads"] for each in _openblas()]
    assert threads == [1] * len(threads)
    assert threads


def _openblas() -> list[dict[str, Any]]:
    return [each for each in threadpool_info() if each["internal_api"] == "openblas"]
