"""The segmentation of speakers by pyannote.audio: the published network, on a processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backends.packaged.voices import PyannoteSpeakerSegmenter, open_pyannote_segmenter
from models.contracts import ACTIVITY_WINDOW_SAMPLES, Samples
from models.provider import LocalModels
from models.registry import REGISTRY
from models.tasks import SEGMENT_SPEAKERS
from pipelines.media.audio import SampleReader, read_blocks

SPEECH = Path(__file__).resolve().parents[1] / "media" / "speech"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def segmenter() -> PyannoteSpeakerSegmenter:
    row = replace(REGISTRY["gpu"][SEGMENT_SPEAKERS], device="cpu", max_batch=2)
    return open_pyannote_segmenter(row, None)


@pytest.fixture(scope="module")
def windows() -> list[Samples]:
    reader = SampleReader(read_blocks(SPEECH / "two_voices.flac"))
    first, second = (reader.read(at, at + ACTIVITY_WINDOW_SAMPLES) for at in (0, 80_000))
    return [first, second, np.zeros(0, np.float32)]


def test_it_finds_what_the_packaged_network_finds(
    segmenter: PyannoteSpeakerSegmenter, windows: list[Samples]
) -> None:
    packaged = LocalModels().get(SEGMENT_SPEAKERS).segment(windows)
    for one, other in zip(segmenter.segment(windows), packaged, strict=True):
        assert one.speech == pytest.approx(other.speech, abs=1e-3)
        assert np.mean(one.speaking != other.speaking) < 1e-3
    assert packaged[0].speaking.any(axis=0).sum() == 2


def test_the_library_reports_nothing_to_its_makers(segmenter: PyannoteSpeakerSegmenter) -> None:
    from pyannote.audio.telemetry.metrics import is_metrics_enabled

    assert os.environ["PYANNOTE_METRICS_ENABLED"] == "0"
    assert not is_metrics_enabled()
