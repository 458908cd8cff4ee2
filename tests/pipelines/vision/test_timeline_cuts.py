"""Cuts of a programme: each part's own, and one wherever two parts meet."""

from __future__ import annotations

import numpy as np

from pipelines.vision.cuts.pipeline import timeline_cuts
from pipelines.vision.cuts.selection import Cut, CutKind, detect_cuts
from pipelines.vision.features import (
    CHROMA_HEIGHT,
    CHROMA_WIDTH,
    LUMA_HEIGHT,
    LUMA_WIDTH,
    FrameFeatures,
)


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


def own_cuts(*seeds: int) -> tuple[Cut, ...]:
    return detect_cuts([frames(*seeds)], 3_000 * len(seeds))


def test_a_single_part_has_the_cuts_it_always_had() -> None:
    cuts = own_cuts(1, 2, 3)
    assert [cut.time_ms for cut in cuts] == [3_000, 6_000]
    assert timeline_cuts([0], [cuts]) == cuts


def test_parts_keep_their_cuts_and_meet_at_one() -> None:
    cuts = timeline_cuts([0, 6_000], [own_cuts(1, 2), own_cuts(3, 4, 5)])
    assert [cut.time_ms for cut in cuts] == [3_000, 6_000, 9_000, 12_000]
    assert cuts[1].kind is CutKind.HARD
    assert cuts[1].confidence == 1.0


def test_parts_that_look_the_same_still_meet_at_a_cut() -> None:
    cuts = timeline_cuts([0, 3_000], [own_cuts(1), own_cuts(1)])
    assert [cut.time_ms for cut in cuts] == [3_000]


def test_a_part_without_any_frame_begins_at_its_cut_all_the_same() -> None:
    cuts = timeline_cuts([0, 3_000, 4_000], [own_cuts(1), (), own_cuts(2, 3)])
    assert [cut.time_ms for cut in cuts] == [3_000, 4_000, 7_000]


def test_a_part_may_begin_after_a_stretch_without_picture() -> None:
    cuts = timeline_cuts([0, 5_000], [own_cuts(1), own_cuts(2)])
    assert [cut.time_ms for cut in cuts] == [5_000]
