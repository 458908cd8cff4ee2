"""Reading and cutting of tracks as a stream."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contracts import SAMPLE_RATE_HZ, Samples
from pipelines.media.audio import (
    LEVEL_FRAME_SECONDS,
    SampleReader,
    frame_levels,
    overlapping_windows,
    read_blocks,
    write_flac,
)
from tests.pipelines.speech.detection import scanned

SPEECH = Path(__file__).resolve().parents[2] / "media" / "speech"


def counting(total: int) -> Samples:
    return np.arange(total, dtype=np.float32)


def blocks_of(samples: Samples, sizes: list[int]) -> list[Samples]:
    """The samples in blocks of the given sizes, then the rest."""
    edges = [0, *np.cumsum(sizes).tolist()]
    blocks = [samples[start:end] for start, end in pairwise(edges)]
    return [*blocks, samples[edges[-1] :]]


def whole(path: Path) -> Samples:
    return np.concatenate(list(read_blocks(path)))


@given(
    st.integers(0, 400),
    st.lists(st.integers(0, 60), max_size=10),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80)), max_size=10),
)
def test_ranges_come_out_whole_whatever_the_blocks(
    total: int, sizes: list[int], steps: list[tuple[int, int]]
) -> None:
    samples = counting(total)
    reader = SampleReader(blocks_of(samples, sizes))
    start = 0
    for step, length in steps:
        start += step
        assert (
            reader.read(start, start + length).tolist() == samples[start : start + length].tolist()
        )


@given(st.integers(0, 400), st.lists(st.integers(0, 60), max_size=10), st.integers(1, 90))
def test_windows_cover_the_stream_end_to_end_with_context(
    total: int, sizes: list[int], core: int
) -> None:
    samples = counting(total)
    cores = []
    for start, before, window in overlapping_windows(
        blocks_of(samples, sizes), core=core, context=20
    ):
        assert window.tolist() == samples[start - before : start + core + 20].tolist()
        assert before == min(start, 20)
        cores.extend(window[before : before + core].tolist())
    assert cores == samples.tolist()


def test_flac_keeps_16_bit_samples_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(2).integers(-32768, 32768, 50_000)
    samples = (random / 32768).astype(np.float32)
    stream = io.BytesIO()
    write_flac(stream, [samples[:7], samples[7:7], samples[7:30_000], samples[30_000:]])
    path = tmp_path / "track.flac"
    path.write_bytes(stream.getvalue())
    assert np.array_equal(whole(path), samples)


def test_the_same_samples_give_the_same_flac() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    samples = np.sin(counting(10_000) / 20).astype(np.float32)
    for stream in (first, second):
        write_flac(stream, [samples])
    assert first.getvalue() == second.getvalue()


@pytest.mark.parametrize(
    ("samples", "levels"),
    [
        pytest.param(np.ones(640, np.float32), [0.0, 0.0], id="full scale"),
        pytest.param(np.full(320, 0.1, np.float32), [-20.0], id="a tenth"),
        pytest.param(np.zeros(400, np.float32), [-120.0, -120.0], id="silence, part of a frame"),
        pytest.param(np.empty(0, np.float32), [], id="nothing"),
    ],
)
def test_levels_are_in_decibels_of_full_scale(samples: Samples, levels: list[float]) -> None:
    assert frame_levels(samples).tolist() == pytest.approx(levels, abs=1e-4)


def test_speech_is_found_at_the_same_places_in_every_window_of_a_long_track() -> None:
    """Windows of detection have their seams at multiples of two minutes, some amid a word."""
    sentence = whole(SPEECH / "one_voice.flac")[: 8 * SAMPLE_RATE_HZ]
    regions, levels = scanned(np.concatenate([sentence] * 40))
    assert len(levels) * LEVEL_FRAME_SECONDS == pytest.approx(320.0)
    spoken = np.zeros(320 * 100, bool)
    for start, end in regions:
        spoken[round(start * 100) : round(end * 100)] = True
    rounds = spoken.reshape(40, 800)
    differing = np.abs(rounds[1:-1].astype(int) - rounds[1]).sum(axis=1)
    assert differing.max() <= 15  # hundredths of a second in eight


@pytest.mark.parametrize("start", [0, 1, 4_095, 4_096, 79_920, 159_840, 479_999, 480_000, 900_000])
def test_blocks_begin_at_any_sample_without_what_lies_before(tmp_path: Path, start: int) -> None:
    steps = np.random.default_rng(2).integers(-9_000, 9_000, 480_000)
    samples = (steps / 32_768).astype(np.float32)
    path = tmp_path / "track.flac"
    with path.open("wb") as stream:
        write_flac(stream, [samples])
    found = [np.empty(0, np.float32), *read_blocks(path, start)]
    assert np.array_equal(np.concatenate(found), samples[start:])
