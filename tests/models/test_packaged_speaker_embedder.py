"""The packaged voice embedding: one voice stays near itself, others are far."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torchaudio
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.speech.noises import made
from models.backends.packaged import read_tensors
from models.backends.packaged.sounds import filter_banks
from models.backends.packaged.voices import CamPlusSpeakerEmbedder
from models.contracts import (
    ACTIVITY_FRAME_SAMPLES,
    ACTIVITY_FRAMES,
    ACTIVITY_START_SAMPLES,
    ACTIVITY_WINDOW_SAMPLES,
    SAMPLE_RATE_HZ,
    Samples,
)
from models.provider import LocalModels, open_model
from models.registry import CAM_PLUS, TRANSNETV2
from models.tasks import EMBED_VOICE, SEGMENT_SPEAKERS
from models.weights import WeightsError
from pipelines.media.audio import SampleReader, read_blocks
from tests.tables import every

SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"
EMBEDDER = LocalModels().get(EMBED_VOICE)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As ``open_model`` leaves it: two threads of OpenBLAS wait for each other on busy cores."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="module")
def sentences() -> list[tuple[str, Samples]]:
    """Six sentences, each with the name of its voice."""
    reader = SampleReader(read_blocks(SPEECH / "two_voices.flac"))
    truth = json.loads((SPEECH / "truth.json").read_text())["two_voices.flac"]["sentences"]
    return [
        (each["voice"], reader.read(each["start_ms"] * 16, each["end_ms"] * 16)) for each in truth
    ]


def noise(seconds: float) -> Samples:
    generator = np.random.default_rng(1)
    samples = 0.1 * generator.standard_normal(round(seconds * SAMPLE_RATE_HZ))
    return samples.astype(np.float32)


@every(
    "samples",
    [
        pytest.param(noise(2.5), id="noise"),
        pytest.param(np.zeros(SAMPLE_RATE_HZ, np.float32), id="silence"),
        pytest.param(np.ones(10, np.float32), id="ten samples"),
        pytest.param(np.zeros(0, np.float32), id="no samples"),
    ],
)
def test_vectors_are_finite_and_of_unit_length(samples: Samples) -> None:
    vectors = EMBEDDER.embed([samples, samples])
    assert vectors.shape == (2, 192)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


def test_sentences_of_a_voice_are_near_and_those_of_two_are_far(
    sentences: list[tuple[str, Samples]],
) -> None:
    vectors = EMBEDDER.embed([samples for _, samples in sentences])
    names = np.array([voice for voice, _ in sentences])
    nearness = (vectors @ vectors.T)[np.triu_indices(len(names), 1)]
    same = (names[:, None] == names)[np.triu_indices(len(names), 1)]
    assert nearness[same].min() > nearness[~same].max() + 0.1


@pytest.mark.parametrize("gain", [0.01, 0.1, 2.0])
def test_loudness_does_not_matter(sentences: list[tuple[str, Samples]], gain: float) -> None:
    _, voice = sentences[0]
    one, other = EMBEDDER.embed([voice, (gain * voice).astype(np.float32)])
    assert float(one @ other) > 0.999


def test_filter_banks_are_those_of_kaldi(sentences: list[tuple[str, Samples]]) -> None:
    _, voice = sentences[0]
    expected = torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(voice)[None] * 32768,
        num_mel_bins=80,
        sample_frequency=SAMPLE_RATE_HZ,
        dither=0.0,
    ).numpy()
    assert filter_banks(voice) == pytest.approx(expected, abs=5e-3)


def test_the_tensors_are_those_that_torch_reads() -> None:
    [data] = CAM_PLUS.read(None).values()
    expected = torch.load(io.BytesIO(data), weights_only=True)
    tensors = read_tensors(data)
    floats = {name: tensor.numpy() for name, tensor in expected.items() if tensor.dim()}
    assert tensors.keys() == floats.keys()
    assert all(np.array_equal(tensors[name], floats[name]) for name in floats)


@pytest.mark.parametrize("seconds", [0.1, 0.8, 2.0, 2.01, 4.6])
def test_the_network_computes_what_torch_computes(
    sentences: list[tuple[str, Samples]], seconds: float
) -> None:
    """Where a slip would only cost accuracy. The lengths end in, at and after a hundred frames."""
    [data] = CAM_PLUS.read(None).values()
    tensors = {name: torch.tensor(each) for name, each in read_tensors(data).items()}
    spoken = np.concatenate([samples for _, samples in sentences])[: round(seconds * 16_000)]
    features = filter_banks(spoken)
    expected = vector(tensors, (features - features.mean(axis=0)).T)
    [found] = EMBEDDER.embed([spoken])
    assert found == pytest.approx(expected / np.linalg.norm(expected), abs=1e-4)


def test_a_vector_does_not_depend_on_its_neighbours(sentences: list[tuple[str, Samples]]) -> None:
    [data] = CAM_PLUS.read(None).values()
    embedder = CamPlusSpeakerEmbedder(data, max_batch=3)
    utterances = [samples[: 16_000 * (1 + at % 2)] for at, (_, samples) in enumerate(sentences)]
    together = embedder.embed(utterances)
    alone = np.concatenate([embedder.embed([each]) for each in utterances])
    assert together == pytest.approx(alone, abs=1e-5)


def test_weights_of_another_network_are_refused() -> None:
    [data] = TRANSNETV2.read(None).values()
    with pytest.raises(WeightsError, match=r"no weights of CAM\+\+"):
        CamPlusSpeakerEmbedder(data)


def vector(tensors: dict[str, torch.Tensor], features: np.ndarray[Any, Any]) -> Any:
    """CAM++ in torch, as its authors have it."""
    functional = torch.nn.functional

    def normal(inputs: torch.Tensor, name: str) -> torch.Tensor:
        scale, shift = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
        return functional.batch_norm(inputs, mean, variance, scale, shift)

    def active(inputs: torch.Tensor, name: str) -> torch.Tensor:
        return normal(inputs, f"{name}.batchnorm").relu()

    def linear(inputs: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
        kernel = tensors[f"{name}.weight"]
        return functional.conv1d(inputs, kernel, tensors.get(f"{name}.bias"), **how)

    hidden = torch.from_numpy(head(tensors, features))[None]
    hidden = active(
        linear(hidden, "xvector.tdnn.linear", stride=2, padding=2), "xvector.tdnn.nonlinear"
    )
    for block, (layers, dilation) in enumerate(((12, 1), (24, 2), (16, 2)), start=1):
        for number in range(1, layers + 1):
            name = f"xvector.block{block}.tdnnd{number}"
            narrow = linear(active(hidden, f"{name}.nonlinear1"), f"{name}.linear1")
            narrow = active(narrow, f"{name}.nonlinear2")
            cam = f"{name}.cam_layer"
            local = linear(narrow, f"{cam}.linear_local", padding=dilation, dilation=dilation)
            means = functional.avg_pool1d(narrow, 100, 100, ceil_mode=True)
            means = means.repeat_interleave(100, dim=2)[..., : narrow.shape[2]]
            context = narrow.mean(dim=2, keepdim=True) + means
            mask = linear(linear(context, f"{cam}.linear1").relu(), f"{cam}.linear2").sigmoid()
            hidden = torch.cat([hidden, local * mask], dim=1)
        transit = f"xvector.transit{block}"
        hidden = linear(active(hidden, f"{transit}.nonlinear"), f"{transit}.linear")
    hidden = active(hidden, "xvector.out_nonlinear")
    pooled = torch.cat([hidden.mean(dim=2), hidden.std(dim=2)], dim=1)
    found = linear(pooled[:, :, None], "xvector.dense.linear")
    return normal(found, "xvector.dense.nonlinear.batchnorm")[0, :, 0].numpy()


def head(tensors: dict[str, torch.Tensor], features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The two-dimensional part of CAM++ in torch."""

    def convolved(inputs: torch.Tensor, conv: str, norm: str, stride: int = 1) -> torch.Tensor:
        kernel = tensors[f"{conv}.weight"]
        found = torch.nn.functional.conv2d(
            inputs, kernel, stride=(stride, 1), padding=kernel.shape[2] // 2
        )
        mean, variance = tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"]
        scale, shift = tensors[f"{norm}.weight"], tensors[f"{norm}.bias"]
        return torch.nn.functional.batch_norm(found, mean, variance, scale, shift)

    maps = convolved(torch.from_numpy(features)[None, None], "head.conv1", "head.bn1").relu()
    for layer in ("head.layer1", "head.layer2"):
        for block, stride in ((f"{layer}.0", 2), (f"{layer}.1", 1)):
            inner = convolved(maps, f"{block}.conv1", f"{block}.bn1", stride).relu()
            if stride > 1:
                maps = convolved(maps, f"{block}.shortcut.0", f"{block}.shortcut.1", stride)
            maps = (convolved(inner, f"{block}.conv2", f"{block}.bn2") + maps).relu()
    maps = convolved(maps, "head.conv2", "head.bn2", 2).relu()
    return maps.reshape(-1, maps.shape[-1]).numpy()


def archive(pickled: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", pickled)
    return stream.getvalue()


@every(
    "data",
    [
        pytest.param(archive(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00echotR."), id="os.system"),
        pytest.param(archive(b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR."), id="eval"),
        pytest.param(archive(b"\x80\x02]."), id="no dictionary"),
        pytest.param(archive(b"\x80\x02"), id="cut short"),
        pytest.param(b"nothing", id="no archive"),
        pytest.param(b"", id="empty"),
    ],
)
def test_weights_that_are_no_tensors_are_refused_and_not_run(data: bytes) -> None:
    with pytest.raises(WeightsError, match="unreadable"):
        read_tensors(data)


def test_an_opened_model_leaves_one_thread_to_openblas() -> None:
    with threadpool_limits(2, user_api="blas"):
        open_model("packaged", EMBED_VOICE)
        found = [each for each in threadpool_info() if each["internal_api"] == "openblas"]
    assert [each["num_threads"] for each in found] == [1] * len(found)
    assert found


SEGMENTER = LocalModels().get(SEGMENT_SPEAKERS)
FRAMES_MS = (
    (ACTIVITY_START_SAMPLES + ACTIVITY_FRAME_SAMPLES * (np.arange(ACTIVITY_FRAMES) + 0.5))
    / SAMPLE_RATE_HZ
    * 1000
)
"""The middle of each frame."""


def window_of(name: str, start_second: int = 0) -> Samples:
    first = start_second * SAMPLE_RATE_HZ
    return SampleReader(read_blocks(SPEECH / name)).read(first, first + ACTIVITY_WINDOW_SAMPLES)


def frames_of(name: str, voice: str) -> npt.NDArray[np.bool_]:
    """Where the voice speaks in the first ten seconds."""
    sentences = json.loads((SPEECH / "truth.json").read_text())[name]["sentences"]
    spans = [(each["start_ms"], each["end_ms"]) for each in sentences if each["voice"] == voice]
    frames = np.zeros(ACTIVITY_FRAMES, np.bool_)
    for start, end in spans:
        frames |= (start <= FRAMES_MS) & (end > FRAMES_MS)
    return frames


@every("gain", [1.0, 0.05], ids=["as recorded", "26 dB quieter"])
def test_a_reader_is_one_speaker_where_sentences_are(gain: float) -> None:
    [activity] = SEGMENTER.segment([gain * window_of("one_voice.flac")])
    truth = frames_of("one_voice.flac", "rms")
    assert np.mean((activity.speech > 0.5) == truth) > 0.95
    assert np.mean(activity.speaking.any(axis=1) == truth) > 0.95
    assert np.count_nonzero(activity.speaking.any(axis=0)) == 1


def test_two_voices_in_turn_are_two_speakers() -> None:
    [activity] = SEGMENTER.segment([window_of("two_voices.flac")])
    truths = [frames_of("two_voices.flac", voice) for voice in ("rms", "slt")]
    for truth in truths:
        assert max(np.mean(each == truth) for each in activity.speaking.T) > 0.95


def test_two_voices_at_a_time_overlap() -> None:
    one, other = window_of("two_voices.flac"), window_of("two_voices.flac", 3)
    length = 2 * SAMPLE_RATE_HZ
    both = one[SAMPLE_RATE_HZ // 2 :][:length] + other[SAMPLE_RATE_HZ // 2 :][:length]
    window = np.concatenate([one[: 3 * SAMPLE_RATE_HZ], both, other[: 3 * SAMPLE_RATE_HZ]])
    [activity] = SEGMENTER.segment([window])
    together = FRAMES_MS[activity.speaking.sum(axis=1) == 2]
    assert len(together) * ACTIVITY_FRAME_SAMPLES > SAMPLE_RATE_HZ
    assert 2500 < np.median(together) < 5500


def test_what_follows_a_short_window_is_silent() -> None:
    window = window_of("one_voice.flac")[: 3 * SAMPLE_RATE_HZ]
    [activity] = SEGMENTER.segment([window])
    assert activity.speaking[FRAMES_MS < 3000].any()
    assert not activity.speaking[FRAMES_MS > 3300].any()


@every("kind", ["surf", "machine", "hum", "pink noise"])
def test_noises_have_no_speakers(kind: str) -> None:
    [activity] = SEGMENTER.segment([made(kind, 10.0, seed=3)])
    assert not activity.speaking.any()


def test_silence_has_no_speakers() -> None:
    silence = np.zeros(ACTIVITY_WINDOW_SAMPLES, np.float32)
    assert not any(each.speaking.any() for each in SEGMENTER.segment([silence, silence[:0]]))
