"""Cuts of a programme: each part's own, and one wherever two parts meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipelines.merge.cuts import CutKind, detect_cuts
from pipelines.merge.frame_features import (
    CHROMA_HEIGHT,
    CHROMA_WIDTH,
    LUMA_HEIGHT,
    LUMA_WIDTH,
    FrameFeatures,
)
from pipelines.merge.programme_cuts import ProgrammeCuts


def frames(*seeds: int, each_ms: int = 3_000, step_ms: int = 40) -> FrameFeatures:
    """Shots that stand still but for noise, one after another."""
    count = each_ms // step_ms
    luma, chroma = [], []
    for seed in seeds:
        random = np.random.default_rng(seed)
        picture = random.integers(20, 235, (LUMA_HEIGHT, LUMA_WIDTH))
        colour = random.integers(60, 200, (2, CHROMA_HEIGHT, CHROMA_WIDTH))
        noise = random.integers(-2, 3, (count, LUMA_HEIGHT, LUMA_WIDTH))
        luma.append((picture + noise).astype(np.uint8))
        chroma.append(np.repeat(colour[np.newaxis].astype(np.uint8), count, axis=0))
    times = np.arange(count * len(seeds), dtype=np.int64) * step_ms
    return FrameFeatures(times, np.concatenate(luma), np.concatenate(chroma))


def moved(features: FrameFeatures, by_ms: int) -> FrameFeatures:
    return replace(features, times_ms=features.times_ms + by_ms)


def test_a_single_part_has_the_cuts_it_always_had() -> None:
    video = frames(1, 2, 3)
    whole = ProgrammeCuts([(0, 9_000)])
    whole.feed(0, video)
    assert whole.finish() == detect_cuts([video], 9_000)


def test_parts_keep_their_cuts_and_meet_at_one() -> None:
    parts = ProgrammeCuts([(0, 6_000), (6_000, 15_000)])
    parts.feed(0, frames(1, 2))
    parts.feed(1, moved(frames(3, 4, 5), 6_000))
    cuts = parts.finish()
    assert [cut.time_ms for cut in cuts] == [3_000, 6_000, 9_000, 12_000]
    assert cuts[1].kind is CutKind.HARD
    assert cuts[1].confidence == 1.0


def test_parts_that_look_the_same_still_meet_at_a_cut() -> None:
    parts = ProgrammeCuts([(0, 3_000), (3_000, 6_000)])
    parts.feed(0, frames(1))
    parts.feed(1, moved(frames(1), 3_000))
    assert [cut.time_ms for cut in parts.finish()] == [3_000]


def test_a_part_without_any_frame_begins_at_its_cut_all_the_same() -> None:
    parts = ProgrammeCuts([(0, 3_000), (3_000, 4_000), (4_000, 10_000)])
    parts.feed(0, frames(1))
    parts.feed(2, moved(frames(2, 3), 4_000))
    assert [cut.time_ms for cut in parts.finish()] == [3_000, 4_000, 7_000]


def test_a_part_may_begin_after_a_stretch_without_picture() -> None:
    parts = ProgrammeCuts([(0, 3_000), (5_000, 8_000)])
    parts.feed(0, frames(1))
    parts.feed(1, moved(frames(2), 5_000))
    assert [cut.time_ms for cut in parts.finish()] == [5_000]
