"""Cutting speech into chunks: bounded, complete, independent of sharding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contracts import SAMPLE_RATE_HZ
from pipelines.speech.regions import Chunk, ChunkLimits, group_chunks, merge_regions, plan_chunks
from tests.examples import examples

LIMITS = ChunkLimits(max_seconds=20.0, min_seconds=4.0, pause_seconds=0.8, padding_seconds=0.2)
FRAMES_A_SECOND = 50


def flat(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(round(seconds * FRAMES_A_SECOND), -20.0, np.float32)


def times(chunks: list[Chunk]) -> list[tuple[float, float]]:
    return [(round(c.start_seconds, 2), round(c.end_seconds, 2)) for c in chunks]


regions_strategy = st.lists(
    st.tuples(st.floats(0, 300), st.floats(0.1, 60)).map(lambda r: (r[0], min(300.0, r[0] + r[1]))),
    max_size=20,
).map(merge_regions)


@settings(max_examples=examples(60), deadline=None)
@given(regions_strategy, st.integers(0, 1000))
def test_chunks_are_bounded_disjoint_and_cover_all_speech(
    regions: list[tuple[float, float]], seed: int
) -> None:
    levels = np.random.default_rng(seed).uniform(-60, -10, 300 * FRAMES_A_SECOND).astype(np.float32)
    chunks = plan_chunks(regions, levels, LIMITS)
    covered = np.zeros(len(levels), bool)
    previous_end = 0
    for chunk in chunks:
        assert previous_end <= chunk.start_frame < chunk.end_frame <= len(levels)
        assert chunk.seconds <= LIMITS.max_seconds + 1e-9
        covered[chunk.start_frame : chunk.end_frame] = True
        previous_end = chunk.end_frame
        first, last = chunk.sample_span
        assert 0 <= first < last <= 300 * SAMPLE_RATE_HZ
    for start, end in regions:
        inside = covered[int(np.ceil(start * FRAMES_A_SECOND)) : int(end * FRAMES_A_SECOND)]
        assert inside.all()


@settings(max_examples=examples(60), deadline=None)
@given(
    regions_strategy,
    st.one_of(st.none(), st.floats(0.1, 500)),
    st.integers(1, 30),
)
def test_sharding_only_groups_chunks(
    regions: list[tuple[float, float]], shard_seconds: float | None, max_shards: int
) -> None:
    chunks = plan_chunks(regions, flat(300), LIMITS)
    groups = group_chunks(chunks, shard_seconds=shard_seconds, max_shards=max_shards)
    assert [chunk for group in groups for chunk in group] == chunks
    assert all(groups)
    assert len(groups) <= max_shards


def test_a_pause_of_the_limit_ends_a_chunk_and_a_shorter_one_does_not() -> None:
    regions = [(1.0, 2.0), (2.9, 4.0), (5.5, 6.0)]
    assert times(plan_chunks(regions, flat(10), LIMITS)) == [(0.8, 4.2), (5.3, 6.2)]


def test_long_speech_is_cut_at_its_longest_pause() -> None:
    regions = [(0.0, 9.0), (9.5, 14.0), (14.9, 19.0), (19.6, 30.0)]
    chunks = plan_chunks(regions, flat(30), LIMITS)
    assert times(chunks) == [(0.0, 14.2), (14.7, 30.0)]


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    levels = flat(30)
    levels[12 * FRAMES_A_SECOND - 5 : 12 * FRAMES_A_SECOND + 5] = -40
    levels[15 * FRAMES_A_SECOND] = -60  # one frame only: the closure of a stop, not a pause
    first, second = plan_chunks([(0.0, 30.0)], levels, LIMITS)
    assert first.end_frame == second.start_frame
    assert first.end_seconds == pytest.approx(12.0, abs=0.11)
    assert (first.before_frames, first.after_frames) == (0, FRAMES_A_SECOND)
    assert (second.before_frames, second.after_frames) == (FRAMES_A_SECOND, 0)
    assert first.speech[-1][1] - second.speech[0][0] == 2 * FRAMES_A_SECOND
    assert first.detected[-1][1] == second.detected[0][0]


def test_a_chunk_names_its_regions_of_speech() -> None:
    regions = [(0.0, 9.0), (9.5, 14.0), (14.9, 19.0), (19.6, 30.0)]
    chunks = plan_chunks(regions, flat(30), LIMITS)
    spans = [(0, 460), (465, 710), (735, 960), (970, 1500)]
    assert [span for chunk in chunks for span in chunk.speech] == spans


def test_no_speech_gives_no_chunks() -> None:
    assert plan_chunks([], flat(10), LIMITS) == []
    assert plan_chunks([], np.empty(0, np.float32), LIMITS) == []


@pytest.mark.parametrize(
    ("shard_seconds", "sizes"),
    [(5.0, [1, 1, 1, 1]), (20.0, [2, 2]), (None, [4])],
    ids=["5 s", "20 s", "unsharded"],
)
def test_shards_span_at_most_their_length(shard_seconds: float | None, sizes: list[int]) -> None:
    chunks = [Chunk(i * 500, i * 500 + 400) for i in range(4)]
    groups = group_chunks(chunks, shard_seconds=shard_seconds, max_shards=100)
    assert [len(group) for group in groups] == sizes


def test_regions_that_touch_become_one() -> None:
    assert merge_regions([(2.0, 3.0), (0.0, 1.0), (1.0, 2.0), (4.0, 5.0)]) == [(0, 3), (4, 5)]
