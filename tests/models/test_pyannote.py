"""pyannote.audio's networks on tiny random weights, and the pure parts around them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.backends.pyannote import (
    Activity,
    PyannoteSpeakerEmbedder,
    PyannoteSpeechDetector,
    same_speakers,
    stitched,
    tidy_regions,
    turns_of,
    window_starts,
)
from models.backends.transformers.hardware import pick_hardware
from models.contracts import SAMPLE_RATE_HZ, Samples
from tests.models.tiny_models import save_tiny_embedding, save_tiny_segmentation

HARDWARE = pick_hardware("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> PyannoteSpeechDetector:
    folder = save_tiny_segmentation(tmp_path_factory.mktemp("segmentation"))
    return PyannoteSpeechDetector(str(folder), HARDWARE, max_batch=3)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> PyannoteSpeakerEmbedder:
    folder = save_tiny_embedding(tmp_path_factory.mktemp("embedding"))
    return PyannoteSpeakerEmbedder(str(folder), HARDWARE, max_batch=2)


def noise(seconds: float, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(round(seconds * SAMPLE_RATE_HZ)) * 0.1).astype(np.float32)


def speakers(*rows: str) -> Activity:
    """A speaker a row, ``x`` where they speak."""
    return np.array([[mark == "x" for mark in row] for row in rows], dtype=np.float32).T


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.0, 2.0, 5.3])
def test_regions_are_sorted_disjoint_and_inside(
    detector: PyannoteSpeechDetector, seconds: float
) -> None:
    regions = detector.detect(noise(seconds))
    assert all(0 <= start < end <= seconds for start, end in regions)
    assert all(a[1] <= b[0] for a, b in pairwise(regions))


def test_the_library_reports_nothing_to_its_makers(detector: PyannoteSpeechDetector) -> None:
    from pyannote.audio.telemetry.metrics import is_metrics_enabled

    assert os.environ["PYANNOTE_METRICS_ENABLED"] == "0"
    assert not is_metrics_enabled()


@given(st.integers(1, 200), st.integers(2, 40))
def test_windows_cover_everything(length: int, window: int) -> None:
    step = window // 2
    starts = list(window_starts(length, window, step))
    assert starts[0] == 0
    assert starts[-1] + window >= length
    assert all(b - a == step for a, b in pairwise(starts))


@pytest.mark.parametrize(
    ("activity", "turns"),
    [
        (speakers("xxxxxxxx", "........"), [(0, 8)]),
        (speakers("xxxx....", "....xxxx"), [(0, 4), (4, 8)]),
        (speakers("xxxxxx..", "..xxxxxx"), [(0, 6), (6, 8)]),
        (speakers("xxx..xxx", "........"), [(0, 3), (5, 8)]),
        (speakers("xxx.xxxx", "...x...."), [(0, 8)]),
        (speakers("........", "........"), []),
    ],
    ids=["one", "two in turn", "overlap", "a pause", "an interjection", "nobody"],
)
def test_turns_end_where_the_speaker_changes(
    activity: Activity, turns: list[tuple[int, int]]
) -> None:
    assert turns_of(activity, frame_seconds=0.25) == turns


def test_windows_agree_on_who_is_who() -> None:
    before = speakers("xxxx....", "....xxxx")
    after = speakers("....xxxx", "xxxx....")
    assert same_speakers(before, after) == [0, 1], (
        "the second half of one is the first of the other"
    )


def test_one_voice_over_many_windows_is_one_turn_whatever_its_local_number() -> None:
    window, frames = 800, 8
    first = speakers("x" * frames, "." * frames)
    second = speakers("." * frames, "x" * frames)
    activities = [first, second, first, second]
    starts = [0, 400, 800, 1200]
    whole = stitched(activities, starts, window, 2000)
    assert whole.shape == (20, 2)
    assert turns_of(whole, 0.1) == [(0, 20)]


def test_a_change_of_speaker_inside_a_window_stays_a_change() -> None:
    window = 800
    activities = [speakers("xxxxxx..", "......xx"), speakers("..xxxxxx", "xx......")]
    whole = stitched(activities, [0, 400], window, 1200)
    assert turns_of(whole, 0.5) == [(0, 6), (6, 12)]


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)), max_size=12))
def test_tidy_regions_keep_order_and_bounds(raw: list[tuple[float, float]]) -> None:
    regions = tidy_regions([(min(r), max(r)) for r in raw], 15.0)
    assert all(0 <= start < end <= 15 for start, end in regions)
    assert all(a[1] <= b[0] for a, b in pairwise(regions))


def test_vectors_are_unit_and_depend_on_their_utterance_only(
    embedder: PyannoteSpeakerEmbedder,
) -> None:
    utterances = [noise(1.0, 1), noise(0.3, 2), noise(2.2, 3), np.zeros(0, dtype=np.float32)]
    together = embedder.embed(utterances)
    assert together.shape == (4, 256)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1.0, abs=1e-5)
    for utterance, vector in zip(utterances, together, strict=True):
        assert embedder.embed([utterance])[0] == pytest.approx(vector, abs=1e-4)


def test_no_utterances_give_no_vectors(embedder: PyannoteSpeakerEmbedder) -> None:
    assert embedder.embed([]).shape == (0, 256)


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="pytorch_model"):
        PyannoteSpeechDetector(str(tmp_path), HARDWARE)
